# SPDX-License-Identifier: Apache-2.0
"""What a row of wire joints may be, how far one row may lie from the row before, and how to keep to it.

All that a row says of time is in the differences to the rows before it: the first (a step) is a velocity,
the second (a change of step) an acceleration, each times a power of `rate_hz`. The splines that rows become
(`spline`) never move faster and never accelerate more than these differences, so that what is checked here
holds at any time. A limit of jerk lowers that of acceleration to jerk / (2 * rate_hz): third differences
then keep it by themselves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from openeta_ros.control.errors import ActionError
from openeta_ros.embodiment import Arm, Embodiment, Kinematics

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# What rounding to float32 does to a row that stands exactly on a limit.
SLACK = 1e-6
# Stands for no limit where infinity would make sums of nothing and everything.
UNLIMITED = 1e9


class _Violation(NamedTuple):
    kind: str  # 'first', 'step', 'change' or 'stop'
    row: int
    column: int


class RowLimits:
    """The limits of wire rows (H, D): positions, and steps from row to row. Grippers may step freely.

    `low`, `high`, `largest_step` and `largest_change` (D,) are in the joints' units, per row and per row^2;
    `first_step` is how far a first row may lie away. `stepped` says of which columns that is true, those of
    arm joints.
    """

    def __init__(self, embodiment: Embodiment, kinematics: Kinematics) -> None:
        self.joints = embodiment.wire_joints
        self._rate_hz = embodiment.rate_hz
        self._clamp = embodiment.safety.on_limit == 'clamp'
        width = embodiment.qpos_size
        arms, safety = embodiment.arms.values(), embodiment.safety
        grippers = {arm.gripper.joint for arm in arms if arm.gripper}
        arm_columns = [column for column, joint in enumerate(self.joints) if joint not in grippers]
        self.stepped: Mask = np.isin(np.arange(width), arm_columns)
        self._units = ['(0 closed, 1 open)'] * width
        self.low, self.high = np.zeros(width), np.ones(width)
        self.low[arm_columns], self.high[arm_columns] = kinematics.position_limits.T
        self.largest_step = np.full(width, UNLIMITED)
        self.largest_change = np.full(width, UNLIMITED)
        self._step_reason = [''] * width
        velocity = np.concatenate([arm.limits.velocity for arm in arms])
        acceleration = np.concatenate([_accelerations(arm, self._rate_hz) for arm in arms])
        for index, column in enumerate(arm_columns):
            unit = self._units[column] = kinematics.units[index]
            self.largest_step[column] = velocity[index] / self._rate_hz
            self._step_reason[column] = f'{velocity[index]:g} {unit}/s at {self._rate_hz:g} Hz'
            max_step = safety.max_step_rad
            if max_step is not None and unit == 'rad' and max_step < self.largest_step[column]:
                self.largest_step[column] = max_step
                self._step_reason[column] = 'safety.max_step_rad'
            self.largest_change[column] = min(acceleration[index] / self._rate_hz**2, UNLIMITED)
        revolute = np.array([unit == 'rad' for unit in self._units])
        first = np.where(revolute, safety.first_row_rad or 0.0, 0.0)
        self.first_step = np.maximum(self.largest_step, first)

    def apply(self, rows: Array, qpos_now: Array, qpos_before: Array) -> tuple[Array, Mask]:
        """Return rows (H, D) within all limits, and which values (H, D) were changed to get there.

        Args:
            rows: (H, D) as they are asked for.
            qpos_now: (D,) the row before the first.
            qpos_before: (D,) the row before that.

        Raises:
            ActionError: kinds 'limit', 'step': the contract refuses, and a row is beyond a limit.
        """
        inside, beyond = self._clip(rows)
        found = self._violation(inside, qpos_now, qpos_before, SLACK)
        if found is None:
            return inside, beyond
        if not self._clamp:
            raise self._step_error(inside, qpos_now, qpos_before, found)
        followed = self.follow(inside, qpos_now, qpos_before)
        return followed, np.abs(rows - followed) > SLACK

    def check_start(self, measured: Array, commanded: Array) -> None:
        """Refuse to start where the arm is not: a controller that is told positions would leap there.

        Raises:
            ActionError: kind 'step': `measured` (D,) is further from `commanded` than a first row may be.
        """
        away = np.abs(measured - commanded)
        for column in np.flatnonzero((away > self.first_step) & self.stepped):
            joint = self.joints[column]
            raise ActionError(
                'step',
                f'row 0: {joint} is {away[column]:.4g} away from where it was commanded to be, and would '
                'leap; reset first',
                row=0,
                joint=joint,
            )

    def blend(self, rows: Array, due: Array, qpos_now: Array, qpos_before: Array) -> tuple[Array, Mask]:
        """Return rows (H, D) within all limits that go over from what was due to a new chunk.

        The first row may lie away from where the arm is, or was about to be, as far as
        `safety.first_row_rad`, and ask for another velocity than the arm has: the rows are caught up with
        within the limits. The chunk itself is checked as always.

        Args:
            rows: (H, D) as they are asked for.
            due: (B, D) the rows that are replaced, to fade from; (0, D) where there are none.
            qpos_now: (D,) the row before the first.
            qpos_before: (D,) the row before that.
        """
        inside, _ = self._clip(rows)
        found = None if self._clamp else self._chunk_violation(inside, due[0] if len(due) else qpos_now)
        if found is not None:
            raise self._step_error(inside, qpos_now, qpos_before, found)
        count = min(len(due), len(inside))
        weights = np.arange(1, count + 1)[:, None] / (count + 1)
        inside[:count] = (1 - weights) * due[:count] + weights * inside[:count]
        # What is streamed is inside the limits, and not only but for rounding.
        if self._violation(inside, qpos_now, qpos_before, 0.0) is not None:
            inside = self.follow(inside, qpos_now, qpos_before)
        return inside, np.abs(rows - inside) > SLACK

    def _clip(self, rows: Array) -> tuple[Array, Mask]:
        """Return rows within the position limits as a new array, and where they were beyond."""
        inside = np.clip(rows, self.low, self.high)
        beyond = np.abs(rows - inside) > SLACK
        if beyond.any() and not self._clamp:
            raise self._position_error(rows, *np.argwhere(beyond)[0])
        return inside, beyond

    def follow(self, rows: Array, qpos_now: Array, qpos_before: Array) -> Array:
        """Return rows that catch up with the asked ones within the limits, without shooting past them.

        From every returned row the arm can still stop before its position limits.
        """
        followed = np.empty_like(rows)
        now, last = qpos_now, qpos_now - qpos_before
        previous = rows[0] if len(rows) == 1 else 2 * rows[0] - rows[1]
        low, high = np.minimum(self.low, now), np.maximum(self.high, now)
        for index, row in enumerate(rows):
            gap = previous - now
            step = row - previous + np.sign(gap) * self._stopping_step(np.abs(gap))
            upper = np.minimum(self.largest_step, self._stopping_step(high - now))
            lower = -np.minimum(self.largest_step, self._stopping_step(now - low))
            # Of limits that contradict each other, which only a wrong start can bring about, acceleration
            # wins.
            upper = np.maximum(np.minimum(upper, last + self.largest_change), last - self.largest_change)
            lower = np.minimum(np.maximum(lower, last - self.largest_change), upper)
            followed[index] = np.clip(now + np.clip(step, lower, upper), low, high)
            now, last, previous = followed[index], followed[index] - now, row
        return followed

    def stop(self, qpos_now: Array, qpos_before: Array) -> Array:
        """Return the rows (K, D) in which the arm comes to rest soonest; none when it rests already."""
        rows, now, last = [], qpos_now, qpos_now - qpos_before
        while np.abs(last).max() > 0:
            last = np.sign(last) * np.maximum(np.abs(last) - self.largest_change, 0.0)
            now = np.clip(now + last, np.minimum(self.low, now), np.maximum(self.high, now))
            rows.append(now)
        return np.array(rows).reshape(-1, len(qpos_now))

    def _stopping_step(self, distance: Array) -> Array:
        """Return the largest step after which the arm, slowing down at once, stops within a distance.

        The steps s, s - c, s - 2c, ... of which m are above zero sum up to m s - c m (m - 1) / 2.
        """
        distance, change = np.clip(distance, 0.0, UNLIMITED), self.largest_change
        count = np.maximum(np.ceil((np.sqrt(1 + 8 * distance / change) - 1) / 2), 1.0)
        return np.asarray(distance / count + change * (count - 1) / 2)

    def _stopping_distance(self, step: Array) -> Array:
        """Return how far the arm goes on after a step, slowing down at once."""
        count = np.floor(np.abs(step) / self.largest_change)
        return np.asarray(count * np.abs(step) - self.largest_change * count * (count + 1) / 2)

    def _violation(self, rows: Array, now: Array, before: Array, slack: float) -> _Violation | None:
        """Return the first value that is beyond a limit, all of the rows coming after `now`."""
        steps = np.diff(rows, axis=0, prepend=now[None])
        changes = np.diff(steps, axis=0, prepend=(now - before)[None])
        return self._first(rows, steps, changes, slack)

    def _chunk_violation(self, rows: Array, now: Array) -> _Violation | None:
        """Return the first value that is beyond a limit within the chunk, or too far from the arm."""
        away = np.flatnonzero(np.abs(rows[0] - now) > self.first_step + SLACK)
        if len(away):
            return _Violation('first', 0, int(away[0]))
        # The way to the first row is not the chunk's own: it is made within the limits.
        steps = np.diff(rows, axis=0, prepend=rows[:1])
        changes = np.diff(steps, axis=0, prepend=steps[:1])
        changes[:2] = 0.0
        return self._first(rows, steps, changes, SLACK)

    def _first(self, rows: Array, steps: Array, changes: Array, slack: float) -> _Violation | None:
        onward = rows + np.sign(steps) * self._stopping_distance(steps)
        wrong = {
            'step': np.abs(steps) > self.largest_step + slack,
            'change': np.abs(changes) > self.largest_change + slack,
            'stop': (onward > self.high + SLACK) | (onward < self.low - SLACK),
        }
        any_wrong = wrong['step'] | wrong['change'] | wrong['stop']
        if not any_wrong.any():
            return None
        row, column = (int(index) for index in np.argwhere(any_wrong)[0])
        return _Violation(next(kind for kind, mask in wrong.items() if mask[row, column]), row, column)

    def _position_error(self, rows: Array, row: int, column: int) -> ActionError:
        joint, value, unit = self.joints[column], rows[row, column], self._units[column]
        low, high = self.low[column], self.high[column]
        side, limit = ('below', low) if value < low else ('above', high)
        return ActionError(
            'limit',
            f'row {row}: {joint} would be {value:.6g} {unit}, {side} its limit {limit:.6g}; '
            f'send {low:.6g} to {high:.6g}, or let the contract clamp (safety.on_limit)',
            row=int(row),
            joint=joint,
        )

    def _step_error(self, rows: Array, now: Array, before: Array, found: _Violation) -> ActionError:
        kind, row, column = found
        joint, unit, square = self.joints[column], self._units[column], self._rate_hz**2
        path = np.concatenate([[before[column], now[column]], rows[:, column]])[row : row + 3]
        step, change = path[2] - path[1], path[2] - 2 * path[1] + path[0]
        acceleration = f'{self.largest_change[column] * square:.6g} {unit}/s^2'
        if kind == 'step':
            where = f'row {row - 1}' if row else 'where the arm is'
            what = f'would step {step:+.6g} {unit} from {where} ({path[1]:.6g} {unit})'
            limit = f'{self.largest_step[column]:.6g} {unit} a row ({self._step_reason[column]})'
        elif kind == 'first':
            what = f'would be {step:+.6g} {unit} away from where the arm is'
            limit = f'{self.first_step[column]:.6g} {unit} for a first row (safety.first_row_rad)'
        elif kind == 'change':
            what, limit = f'would accelerate by {change * square:+.6g} {unit}/s^2', acceleration
        else:
            what = f'would come too fast ({step * self._rate_hz:+.6g} {unit}/s) to its position limit'
            limit = f'stopping with {acceleration}'
        return ActionError(
            'step',
            f'row {row}: {joint} {what}, its limit is {limit}; '
            'send rows that lie closer together, or let the contract clamp (safety.on_limit)',
            row=row,
            joint=joint,
        )


def _accelerations(arm: Arm, rate_hz: float) -> Array:
    """Return the largest accelerations (J,) of an arm's joints that keep its limits of jerk as well."""
    nothing = (np.inf,) * len(arm.joints)
    limits = arm.limits
    jerk = np.array(limits.jerk or nothing)
    return np.asarray(np.minimum(limits.acceleration or nothing, jerk / (2 * rate_hz)))
