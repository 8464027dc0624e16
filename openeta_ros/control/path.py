# SPDX-License-Identifier: Apache-2.0
"""A schedule as it stands, as plain data: for whoever follows it in another thread or process."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from openeta_ros.control.pipeline import Native
from openeta_ros.control.spline import Array, Brake, evaluate

# Positions that differ by no more are the same but for rounding.
SAME = 1e-6


@dataclass(frozen=True)
class Path:
    """Where an arm is commanded to be at any time, in seconds of the monotonic clock, which processes share.

    `control` (N, D) are the control points from index `first` on, one each `row_s`; the arm is at index
    `base` from `base_s` on and rests at `end`. Until `base_s` it slows down, where there is a `brake`.
    `velocity` (D,) per s and `deceleration` (D,) per s^2 are the largest.
    """

    native: Native
    control: Array
    first: int
    base: int
    base_s: float
    end: int
    row_s: float
    velocity: Array
    deceleration: Array
    brake: Brake | None

    def index(self, time_s: float | Array) -> Any:
        """Return how many rows have passed at a time, or at times (K,)."""
        rows = self.base + (time_s - self.base_s) / self.row_s
        return np.minimum(np.maximum(rows, self.base), self.end)

    def resting(self, time_s: float) -> bool:
        """Whether the arm stands still from a time on."""
        return bool(self.index(time_s) >= self.end and time_s >= self.base_s)

    def row_at(self, time_s: float | Array) -> tuple[Array, Array]:
        """Return the wire row (D,) at a time, and its velocity per s.

        Or those (K, D) at times (K,), all of which are from `base_s` on.
        """
        if self.brake is not None and np.ndim(time_s) == 0 and time_s < self.base_s:
            return self.brake.evaluate(float(time_s))
        position, step = evaluate(self.control, np.maximum(self.index(time_s) - self.first, 1.0))
        return position, step / self.row_s

    @property
    def at_rest(self) -> Path:
        """The path of an arm that rests where this one begins."""
        return replace(self, end=self.base)

    def at(self, time_s: float) -> tuple[Array, Array]:
        """Return positions and velocities (J,) of all commanded joints at a time."""
        position, velocity = self.row_at(time_s)
        return self.native.targets(position), self.native.rates(velocity)

    def sets_off(self, before: Path, time_s: float) -> bool:
        """Whether this path leads away from where an arm on another one rests at a time."""
        return before.resting(time_s) and before.end == self.base

    def wait_s(self, before: Path, time_s: float, slack_s: float) -> float | None:
        """Return how much later this path must come so that an arm on another one goes on from there.

        It must when it leads away from where the other one rests, and its time to do so is past. None when
        the arm has left it behind: it would leap, by more than its acceleration moves it in `slack_s`.
        """
        wait_s = max(time_s - self.base_s, 0.0) if self.sets_off(before, time_s) else 0.0
        if self.index(time_s - wait_s) < self.first + 1:
            return None  # where the arm is on it is no longer known
        away = np.abs(self.row_at(time_s - wait_s)[0] - before.row_at(time_s)[0])
        slack = np.minimum(self.deceleration * slack_s**2, self.velocity * slack_s) / 2
        return None if (away > slack + SAME).any() else wait_s

    def braked(self, time_s: float, rate: float = 1.0) -> Path:
        """Return the path that slows down from a time on, each joint as fast as it may, and then rests.

        `rate`: the share of the path's own velocity that the arm has.
        """
        if self.resting(time_s):
            return self
        position, velocity = self.row_at(time_s)
        brake = Brake(time_s, position, rate * velocity, self.deceleration)
        end_s = float(brake.stops_s.max())
        index = math.ceil(self.index(time_s))
        return replace(
            self,
            control=np.tile(brake.evaluate(end_s)[0], (4, 1)),
            first=index - 1,
            base=index,
            base_s=end_s,
            end=index,
            brake=brake,
        )
