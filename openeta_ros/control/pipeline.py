# SPDX-License-Identifier: Apache-2.0
"""One way for an action into any robot: the whole chunk is checked before any of it moves.

Nothing is remembered between chunks. What the seam of two chunks needs, where the last one left the targets,
the caller hands over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openeta_ros.control.errors import ActionError
from openeta_ros.control.limits import Mask, RowLimits
from openeta_ros.control.rows import Array, decode_rows, labels
from openeta_ros.control.workspace import Workspace
from openeta_ros.embodiment import Arm, Embodiment, Kinematics, KinematicsError

# A quaternion shorter than this has no direction worth following; policies answer lengths near 1.
SHORTEST_QUATERNION = 1e-3


@dataclass(frozen=True)
class JointPlan:
    """A checked chunk, ready to be executed row by row.

    `joints` (J names) are all commanded joints: of each arm its joints, its gripper's joint, then the
    latter's mimics. These are in `mimics` too: who commands a robot whose mimics follow by themselves leaves
    them out. `targets` (H, J) are in the joints' own units, `qpos` (H, D) is the same as wire rows. `clamped`
    names, for each of the H rows, the joints that were clamped in it; `<arm>.workspace` is a tool point moved
    into the workspace.
    """

    joints: tuple[str, ...]
    targets: Array
    qpos: Array
    clamped: tuple[tuple[str, ...], ...]
    mimics: frozenset[str]

    def __len__(self) -> int:
        return len(self.qpos)


class ActionPipeline:
    """Policy actions of one robot to joint targets.

    `limits`, `workspace` and `native` are its parts, for those who plan over several chunks
    (`ChunkSchedule`).
    """

    def __init__(self, embodiment: Embodiment, kinematics: Kinematics) -> None:
        self.embodiment = embodiment
        self.limits = RowLimits(embodiment, kinematics)
        self.workspace = Workspace(embodiment, kinematics)
        self.native = Native(embodiment)
        self._kinematics = kinematics

    def plan(
        self,
        actions: npt.ArrayLike,
        action_type: str,
        qpos_now: npt.ArrayLike,
        qpos_before: npt.ArrayLike | None = None,
    ) -> JointPlan:
        """Return the joint targets of a row (A,) or chunk (H, A), or refuse all of it.

        Args:
            actions: absolute targets laid out as the contract says, oldest first, one each 1/rate_hz. A
            policy's
                relative actions become absolute by `absolute_rows` first.
            action_type: 'qpos' or 'ee'.
            qpos_now: (D,) wire row of the targets now: the last one commanded, or measured at the start.
            qpos_before: (D,) wire row that was commanded one row before `qpos_now`, so that acceleration is
                limited across the seam; None: the arm rests.

        Raises:
            ActionError: see its kinds. Non-finite numbers, poses out of reach and joint rows whose tool point
                leaves the workspace are refused even where the contract clamps.
        """
        now = self.wire_row(qpos_now, 'qpos_now')
        before = now if qpos_before is None else self.wire_row(qpos_before, 'qpos_before')
        rows, moved = self.joint_rows(actions, action_type, now)
        rows, clamped = self.limits.apply(rows, now, before)
        self.workspace.check(rows)
        names = clamped_names(moved | dict(zip(self.limits.joints, clamped.T, strict=True)), len(rows))
        return JointPlan(self.native.joints, self.native.targets(rows), rows, names, self.native.mimics)

    def approach(self, qpos_target: npt.ArrayLike, qpos_now: npt.ArrayLike) -> JointPlan:
        """Return the rows that bring a resting arm to rest at a wire row (D,), as home, within the limits.

        Joints go straight, all the same part of their way, without a jerk at either end. The last row is the
        target.

        Raises:
            ActionError: kinds 'limit', 'workspace'.
        """
        now, target = self.wire_row(qpos_now, 'qpos_now'), self.wire_row(qpos_target, 'qpos_target')
        way, limits = np.abs(target - now), self.limits
        # Of the polynomial 10 s^3 - 15 s^4 + 6 s^5 the largest slope is 15/8, the largest curvature
        # 10/sqrt(3).
        count = max(1.0, (way * 15 / 8 / limits.largest_step).max())
        count = max(count, np.sqrt(way * 10 / np.sqrt(3) / limits.largest_change).max())
        part = np.arange(1, np.ceil(count) + 1)[:, None] / np.ceil(count)
        rows = now + (target - now) * (part**3 * (10 + part * (6 * part - 15)))
        return self.plan(rows, 'qpos', now)

    def wire_row(self, values: npt.ArrayLike, name: str) -> Array:
        """Return a wire row (D,) as float64; raises ValueError unless it is D finite numbers."""
        row = np.array(values, dtype=np.float64)
        if row.shape != (self.embodiment.qpos_size,) or not np.isfinite(row).all():
            raise ValueError(f'{name} must be {self.embodiment.qpos_size} finite numbers; found {row}')
        return row

    def measured_row(self, positions: Mapping[str, float]) -> Array | None:
        """Return measured positions by joint as a wire row (D,); None when one is missing."""
        row: list[float] = []
        for arm in self.embodiment.arms.values():
            row += [positions.get(joint, np.nan) for joint in arm.joints]
            if arm.gripper is not None:
                row.append(arm.gripper.to_openness(positions.get(arm.gripper.joint, np.nan)))
        return np.array(row) if np.isfinite(row).all() else None

    def joint_rows(
        self, actions: npt.ArrayLike, action_type: str, qpos_now: Array
    ) -> tuple[Array, dict[str, Mask]]:
        """Return what the actions ask of the joints, as wire rows (H, D) that no limit was applied to.

        Beside them: for `<arm>.workspace` the rows (H,) in which a tool point was moved.

        Raises:
            ActionError: as `plan`, but for 'limit' and 'step'.
        """
        rows = decode_rows(actions, labels(self.embodiment, action_type), action_type)
        if action_type == 'qpos':
            return rows, {}
        wire = np.empty((len(rows), self.embodiment.qpos_size))
        moved = {}
        ee_slices, qpos_slices = self.embodiment.slices('ee'), self.embodiment.slices('qpos')
        for name, arm in self.embodiment.arms.items():
            poses = rows[:, ee_slices[name]].copy()
            moved[f'{name}.workspace'] = self.workspace.enter(name, poses)
            place = qpos_slices[name]
            wire[:, place] = self._solve(name, arm, poses, qpos_now[place])
        return wire, moved

    def _solve(self, name: str, arm: Arm, poses: Array, now: Array) -> Array:
        """Return an arm's wire columns (H, ...) of its poses; each row in the posture of the row before."""
        wire = np.empty((len(poses), arm.qpos_size))
        q = now[: len(arm.joints)]
        for row, pose in enumerate(poses):
            if np.abs(pose[3:7]).max() < SHORTEST_QUATERNION:
                raise ActionError(
                    'quaternion',
                    f'row {row}: the quaternion of {name} is {pose[3:7]}, which has no direction; '
                    'send qw qx qy qz of length 1',
                    row=row,
                    joint=f'{name}.qw',
                )
            try:
                q = self._kinematics.inverse(name, pose[:7], q, same_posture=True)
            except KinematicsError as error:
                raise ActionError('unreachable', f'row {row}: {error}', row=row) from error
            wire[row, : len(q)] = q
        wire[:, len(arm.joints) :] = poses[:, 7:]
        return wire


class Native:
    """From wire columns to the joints' own values: all are scaled columns, mimics of their gripper's."""

    def __init__(self, embodiment: Embodiment) -> None:
        joints: list[str] = []
        mimics: list[str] = []
        terms: list[tuple[int, float, float]] = []  # wire column, offset, scale
        for name, place in embodiment.slices('qpos').items():
            arm = embodiment.arms[name]
            joints += arm.joints
            terms += [(column, 0.0, 1.0) for column in range(place.start, place.start + len(arm.joints))]
            gripper = arm.gripper
            if gripper is not None:
                for joint, ratio in {gripper.joint: 1.0, **gripper.mimics}.items():
                    joints.append(joint)
                    closed, opened = ratio * gripper.to_native(0.0), ratio * gripper.to_native(1.0)
                    terms.append((place.stop - 1, closed, opened - closed))
                mimics += gripper.mimics
        self.joints = tuple(joints)
        self.mimics = frozenset(mimics)
        columns, offsets, scales = zip(*terms, strict=True)
        self._columns, self._offsets, self._scales = np.array(columns), np.array(offsets), np.array(scales)

    def targets(self, rows: Array) -> Array:
        """Return the joint values (..., J) of wire rows (..., D)."""
        return np.asarray(self._offsets + self.rates(rows))

    def rates(self, rates: Array) -> Array:
        """Return the joint velocities (..., J) of wire rows' velocities (..., D)."""
        return np.asarray(rates[..., self._columns] * self._scales)


def clamped_names(masks: dict[str, Mask], rows: int) -> tuple[tuple[str, ...], ...]:
    """Return, for each row, the names whose mask (H,) holds it."""
    names: list[list[str]] = [[] for _ in range(rows)]
    for name, mask in masks.items():
        for row in np.flatnonzero(mask):
            names[row].append(name)
    return tuple(map(tuple, names))
