# SPDX-License-Identifier: Apache-2.0
"""Where grippers that have an action of their own are to be sent, and when. From any thread."""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

import numpy as np

from openeta_ros.control import Accepted
from openeta_ros.embodiment import Embodiment

# A gripper is sent there again when its openness changes by as much.
GRIPPER_STEP = 1e-3


class _Grip(NamedTuple):
    time_s: float
    openness: dict[str, float]


class Grips:
    """The grippers of a contract: a row's openness is due when the arm sets off for the row."""

    def __init__(self, embodiment: Embodiment) -> None:
        self._columns = {
            name: place.stop - 1
            for name, place in embodiment.slices('qpos').items()
            if embodiment.arms[name].gripper is not None
        }
        self._lock = threading.Lock()
        self._waiting: deque[_Grip] = deque()
        self._sent: dict[str, float] = {}

    def add(self, accepted: Accepted, row_s: float) -> None:
        """Take the rows of a chunk, in the place of those that were due later."""
        with self._lock:
            while len(accepted.rows) and self._waiting:
                if self._waiting[-1].time_s < accepted.due_s[0] - row_s:
                    break
                self._waiting.pop()
            for row, due_s in zip(accepted.rows, accepted.due_s, strict=True):
                openness = {name: float(row[column]) for name, column in self._columns.items()}
                self._waiting.append(_Grip(due_s - row_s, openness))

    def due(self, time_s: float) -> dict[str, float]:
        """Return where grippers are to be sent now, by arm, 0 closed .. 1 open: where that is new."""
        found: dict[str, float] = {}
        with self._lock:
            while self._waiting and self._waiting[0].time_s <= time_s:
                found |= self._waiting.popleft().openness
            new = {
                name: value
                for name, value in found.items()
                if abs(value - self._sent.get(name, np.inf)) > GRIPPER_STEP
            }
            self._sent |= new
        return new

    def drop(self) -> None:
        """Forget what is still due."""
        with self._lock:
            self._waiting.clear()

    def forget(self) -> None:
        """Forget everything: where grippers are is not known any more."""
        with self._lock:
            self._waiting.clear()
            self._sent.clear()
