# SPDX-License-Identifier: Apache-2.0
"""Whether recorded numbers can be in the units that the contract says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from openeta_ros.embodiment import Embodiment, Kinematics

# A gripper this far outside of its range (0 to 1) is in another unit, or the contract's ends are wrong.
GRIPPER_TOLERANCE = 0.25
# Beyond so many rad or m is no joint of an arm, when there is no description to ask.
LARGEST_POSITION = 4 * np.pi
# A joint so far (rad or m) beyond its limits is in degrees, counts or millimetres.
JOINT_TOLERANCE = 0.5
REMEDY = 'correct the unit (`unit`, `scales`) of its topic, or the contract'


class UnitCheck:
    """Looks at rows of `qpos` (D,), states and actions.

    Attributes:
        notes: a sentence for each joint that is far outside of its range.
    """

    def __init__(self, embodiment: Embodiment, kinematics: Kinematics | None) -> None:
        self.notes: list[str] = []
        self._joints = embodiment.wire_joints
        grippers = [arm.gripper.joint for arm in embodiment.arms.values() if arm.gripper is not None]
        self._grippers = np.array([joint in grippers for joint in self._joints])
        self._low = np.where(self._grippers, -GRIPPER_TOLERANCE, -np.inf)
        self._high = np.where(self._grippers, 1 + GRIPPER_TOLERANCE, np.inf)
        low, high = (_limits(embodiment) if kinematics is None else kinematics.position_limits).T
        self._low[~self._grippers], self._high[~self._grippers] = (
            low - JOINT_TOLERANCE,
            high + JOINT_TOLERANCE,
        )

    def look(self, row: NDArray[Any]) -> None:
        """Note which joints of a row are far outside of their range."""
        for index in np.flatnonzero((row < self._low) | (row > self._high)):
            what = 'gripper' if self._grippers[index] else 'joint'
            ends = 'open and closed values' if self._grippers[index] else 'limits'
            note = f'{what} {self._joints[index]} is far outside of its {ends}; {REMEDY}'
            if note not in self.notes:
                self.notes.append(note)


def _limits(embodiment: Embodiment) -> NDArray[np.float64]:
    """Return (joints, 2) low and high of every arm joint as the contract alone has them."""
    limits: list[tuple[float, float]] = []
    for arm in embodiment.arms.values():
        position = arm.limits.position
        unknown = [(-LARGEST_POSITION, LARGEST_POSITION)] * len(arm.joints)
        limits += unknown if isinstance(position, str) else position
    return np.array(limits, dtype=np.float64)
