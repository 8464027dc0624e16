# SPDX-License-Identifier: Apache-2.0
"""What must not jump along an episode: the sign of a quaternion, and the turns of a joint without end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from openeta_ros.observation.stream import Array

if TYPE_CHECKING:
    from openeta_ros.embodiment import Embodiment, Kinematics

TURN = 2 * np.pi


class Continuity:
    """Makes each observation continue the one before it.

    Both signs of a quaternion are the same orientation, and drivers send joints without end as they like,
    within one turn or counted on. The first observation keeps what came (of FK: the sign nearer to home);
    each next one takes what is nearest to the one before.
    """

    def __init__(self, embodiment: Embodiment, kinematics: Kinematics | None) -> None:
        self._endless = _endless(embodiment, kinematics)
        self._quaternions = [
            slice(place.start + 3, place.start + 7) for place in embodiment.slices('ee').values()
        ]
        self.restart()

    def restart(self) -> None:
        """Begin an episode: the next observation has none before it."""
        self._qpos: Array | None = None
        self._endpose: Array | None = None

    def continued(self, qpos: Array, endpose: Array | None) -> tuple[Array, Array | None]:
        """Return qpos (D,) and endpose (E,) as they continue the observation before."""
        if self._endless.any():
            if self._qpos is not None:
                turns = np.round((self._qpos - qpos) / TURN)
                qpos = np.where(self._endless, qpos + TURN * turns, qpos)
            self._qpos = qpos
        if endpose is not None:
            if self._endpose is not None:
                endpose = endpose.copy()
                for place in self._quaternions:
                    if endpose[place] @ self._endpose[place] < 0:
                        endpose[place] *= -1
            self._endpose = endpose
        return qpos, endpose


def _endless(embodiment: Embodiment, kinematics: Kinematics | None) -> Array:
    """Return (D,) bool: the joints of `qpos` that turn without limit."""
    endless = np.zeros(embodiment.qpos_size, dtype=bool)
    if kinematics is None:
        return endless
    limited = np.isfinite(kinematics.position_limits).any(axis=1)
    turns = ~limited & (np.array(kinematics.units) == 'rad')
    arm_joints = [name for arm in embodiment.arms.values() for name in arm.joints]
    return np.array(
        [joint in arm_joints and turns[arm_joints.index(joint)] for joint in embodiment.wire_joints]
    )
