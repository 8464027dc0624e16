# SPDX-License-Identifier: Apache-2.0
"""Cameras that go on sending the same picture while the robot moves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# So many equal pictures in a row are no still scene where a joint moves so far (rad or m, grippers 0 to 1).
LEAST_EQUAL = 10
LEAST_MOTION = 0.05
# Bytes that are compared before all of them are.
SAMPLE = 997


class _Run(NamedTuple):
    message: Any
    pictures: int
    since_s: float
    until_s: float
    low: NDArray[np.float64]
    high: NDArray[np.float64]


class FrozenCheck:
    """Looks at rows in their order.

    Attributes:
        notes: a sentence for each time that a camera stood still.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._runs: dict[str, _Run] = {}

    def look(self, images: Mapping[str, Any], qpos: NDArray[np.float64], moment_s: float) -> None:
        """Take a row: its picture messages by camera, `qpos` (D,), and its time in the arrays."""
        for camera, message in images.items():
            run = self._runs.get(camera)
            if run is not None and run.message is message:
                continue  # it is held, which is counted elsewhere
            if run is not None and _equal(run.message.data, message.data):
                low, high = np.minimum(run.low, qpos), np.maximum(run.high, qpos)
                self._runs[camera] = _Run(message, run.pictures + 1, run.since_s, moment_s, low, high)
                continue
            self._end(camera)
            self._runs[camera] = _Run(message, 1, moment_s, moment_s, qpos, qpos)

    def finish(self) -> None:
        """There are no more rows."""
        for camera in list(self._runs):
            self._end(camera)

    def _end(self, camera: str) -> None:
        run = self._runs.pop(camera, None)
        if run is None or run.pictures < LEAST_EQUAL or (run.high - run.low).max() < LEAST_MOTION:
            return
        self.notes.append(
            f'camera {camera} sent the same picture {run.pictures} times, from {run.since_s:.2f} to '
            f'{run.until_s:.2f} s, while a joint moved by {(run.high - run.low).max():.2f}: it may be frozen'
        )


def _equal(first: Any, second: Any) -> bool:
    one, other = np.asarray(first), np.asarray(second)
    if one.size != other.size or not np.array_equal(one[::SAMPLE], other[::SAMPLE]):
        return False
    return np.array_equal(one, other)
