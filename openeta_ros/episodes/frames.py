# SPDX-License-Identifier: Apache-2.0
"""Rows of a recording as the frames of data sets: what was seen, and what was commanded then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]

# Rows farther apart than so many periods have a gap between them.
GAP_PERIODS = 1.5


class FrameWriter(Protocol):
    """What writes frames."""

    def frame(self, observation: Mapping[str, Array], action: Array, time_s: float) -> None:
        """Take what was seen at a moment (seconds from the first), and what was commanded then (D,)."""

    def gap(self) -> None:
        """Know that what comes does not follow what came."""


class Frames:
    """A `RowSink` that makes frames.

    T rows become T - 1 frames: nothing was commanded at the last. Where rows are missing in between, or time
    went back, the last one before the gap is no frame either: what was commanded then is not known.
    """

    def __init__(self, writer: FrameWriter, rate_hz: float) -> None:
        self._writer = writer
        self._longest_s = GAP_PERIODS / rate_hz
        self._seen: Mapping[str, Array] = {}
        self._now: Mapping[str, Array] = {}
        self._cut = False

    def append(self, rows: Mapping[str, Array]) -> None:
        """Take an observation with its time, or the action before it."""
        if 'actions' not in rows:
            self._seen, self._now = self._now, rows
            return
        if self._cut or float(self._now['times'] - self._seen['times']) > self._longest_s:
            self._cut = False
            self._writer.gap()
            return
        observation = {name: array for name, array in self._seen.items() if name != 'times'}
        self._writer.frame(observation, rows['actions'], float(self._seen['times']))

    def cut(self) -> None:
        """Take the next row as one behind a gap."""
        self._cut = True

    def complete(self, scalars: Mapping[str, Array], info: Mapping[str, Any]) -> None:
        """Do nothing: who owns the writer ends it."""
