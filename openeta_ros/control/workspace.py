# SPDX-License-Identifier: Apache-2.0
"""Where tool points may be, and what no part of an arm may go below."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from openeta_ros.control.errors import ActionError
from openeta_ros.control.limits import SLACK
from openeta_ros.control.rows import POSE_COLUMNS, Array
from openeta_ros.embodiment import Embodiment, Kinematics

Mask = npt.NDArray[np.bool_]


class Workspace:
    """The workspace box and the table plane of a contract, in each arm's base frame; both may be missing."""

    def __init__(self, embodiment: Embodiment, kinematics: Kinematics) -> None:
        self._arms, self._places = embodiment.arms, embodiment.slices('qpos')
        self._kinematics = kinematics
        safety = embodiment.safety
        self._clamp = safety.on_limit == 'clamp'
        self._table_z = safety.table_z_m
        self._bounded = safety.workspace is not None or safety.table_z_m is not None
        self._low: Array = np.full(3, -np.inf)
        self._high: Array = np.full(3, np.inf)
        if safety.workspace is not None:
            self._low, self._high = np.array(safety.workspace.min), np.array(safety.workspace.max)
        if safety.table_z_m is not None:
            self._low[2] = max(self._low[2], safety.table_z_m)

    def enter(self, name: str, poses: Array) -> Mask:
        """Move tool points of poses (H, 7 or 8) into the workspace where the contract clamps.

        Returns:
            (H,) bool: which were moved.

        Raises:
            ActionError: kind 'workspace': the contract refuses, and a tool point is outside.
        """
        inside = np.clip(poses[:, :3], self._low, self._high)
        outside = np.abs(inside - poses[:, :3]) > SLACK
        if outside.any() and not self._clamp:
            row, axis = (int(index) for index in np.argwhere(outside)[0])
            column = f'{name}.{POSE_COLUMNS[axis]}'
            raise ActionError(
                'workspace',
                f'row {row}: {column} of the tool point would be {poses[row, axis]:.6g} m, outside of its '
                f'workspace {self._low[axis]:g} to {self._high[axis]:g} m; send poses inside of it',
                row=row,
                joint=column,
            )
        poses[:, :3] = inside
        return np.asarray(outside.any(axis=1))

    def check(self, rows: Array) -> None:
        """Refuse wire rows (H, D) that bring a tool point outside, or a joint below the table.

        Joints cannot be moved into a box without changing what they do: this refuses where the contract
        clamps too.

        Raises:
            ActionError: kind 'workspace'.
        """
        if not self._bounded:
            return
        for row, wire in enumerate(rows):
            for name, arm in self._arms.items():
                self._check_arm(row, name, wire[self._places[name]][: len(arm.joints)])

    def _check_arm(self, row: int, name: str, q: Array) -> None:
        slack = SLACK + self._arms[name].ik.position_tolerance_m
        point = self._kinematics.forward(name, q)[:3]
        if np.abs(np.clip(point, self._low, self._high) - point).max() > slack:
            raise ActionError(
                'workspace',
                f'row {row}: the tool point of {name} would be at {np.round(point, 4)} m, outside of its '
                f'workspace {self._low} to {self._high} m; send rows that keep it inside',
                row=row,
            )
        lowest = self._kinematics.lowest(name, q) if self._table_z is not None else np.inf
        if self._table_z is not None and lowest < self._table_z - slack:
            raise ActionError(
                'workspace',
                f'row {row}: a joint of {name} would be at a height of {lowest:.4g} m, below the table '
                f'({self._table_z:g} m, safety.table_z_m); send rows that keep the arm above it',
                row=row,
            )
