# SPDX-License-Identifier: Apache-2.0
"""Rows as a path in time: uniform cubic B-splines; and how a moving arm comes to rest at once.

With rows r as control points, one each row time, the position at row time k is (r[k-1] + 4 r[k] + r[k+1]) /
6. At any time it is a mean of four neighbouring rows, the velocity one of three neighbouring steps, the
acceleration one of two neighbouring changes of step, and the jerk their difference: so the path keeps every
limit that the rows keep, without any search, and is smooth (C2) across everything that is appended: chunks
have no seams of their own. Between row times it is one cubic, so that a controller which interpolates
positions and velocities by cubics (joint_trajectory_controller) follows exactly this path. The price is that
corners are cut: by a sixth of the change of step, at most the largest acceleration * row time^2 / 6 (4 mrad
for 10 rad/s^2 at 20 Hz).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# What of the control points k-1, k, k+1, k+2 a time between rows k and k+1 takes; powers of the time from k.
POSITION = np.array([[1, -3, 3, -1], [4, 0, -6, 3], [1, 3, 3, -3], [0, 0, 0, 1]]) / 6
STEP = np.array([[-3, 6, -3], [0, -12, 9], [3, 6, -9], [0, 0, 3]]) / 6


def evaluate(control: Array, index: float | Array) -> tuple[Array, Array]:
    """Return the position (D,) and the velocity (D,), per row time, at an index of control points (N, D).

    Or those (K, D) at indices (K,). An index is from 1 to N - 2, and N at least 4: one point more on each
    side has its part in the path.
    """
    row = np.minimum(np.asarray(index, dtype=np.intp), len(control) - 3)
    powers = np.power(np.asarray(index - row)[..., None], np.arange(4))
    near = control[row[..., None] + np.arange(-1, 3)]
    positions = (powers @ POSITION.T)[..., None, :] @ near
    return positions[..., 0, :], ((powers[..., :3] @ STEP.T)[..., None, :] @ near)[..., 0, :]


@dataclass(frozen=True)
class Brake:
    """A moving arm slowing down, each joint as fast as it may, from a time on.

    Each joint on its own, so that none goes further than it must: the path may bend, by less than the
    shortest way to stop. `position`, `velocity` (per s), `deceleration` (per s^2): (D,).
    """

    start_s: float
    position: Array
    velocity: Array
    deceleration: Array

    @property
    def stops_s(self) -> Array:
        """When each joint comes to rest (D,)."""
        return np.asarray(self.start_s + np.abs(self.velocity) / self.deceleration)

    def evaluate(self, time_s: float) -> tuple[Array, Array]:
        """Return the position (D,) and velocity (D,), per s; before the start, those of going on evenly."""
        early_s = min(time_s - self.start_s, 0.0)
        passed = np.clip(time_s, self.start_s, self.stops_s) - self.start_s
        slowing = np.sign(self.velocity) * self.deceleration
        velocity = np.where(time_s >= self.stops_s, 0.0, self.velocity - slowing * passed)
        way = early_s * self.velocity + passed * (self.velocity - slowing * passed / 2)
        return self.position + way, velocity
