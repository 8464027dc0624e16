# SPDX-License-Identifier: Apache-2.0
"""What ends the motion of an arm: a pure function of what is known at a moment.

Rules that need no looking (limits, steps, workspace) are the pipeline's: no command beyond them is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from openeta_ros.embodiment import Embodiment
from openeta_ros.envs.arm_operator import Operator
from openeta_ros.envs.arm_robot import Vitals

Array = npt.NDArray[np.float64]


# Who gives chunks is a process like others, without priority: it may be silent for so long at least.
ABANDONED_S = 0.5


class Trip(NamedTuple):
    """Why motion ends: a kind of `HOLDS`, and a sentence."""

    kind: str
    text: str


class Guard:
    """The rules of one contract.

    Args:
        joints: names of the joints (J,) that positions are commanded of.
        tracking: whether to watch that the arm is where it is commanded to be (not in a dry run).
    """

    def __init__(
        self, embodiment: Embodiment, operator: Operator, joints: Sequence[str], *, tracking: bool
    ) -> None:
        self._operator = operator
        safety = embodiment.safety
        self._watchdog_s = safety.watchdog_s
        self._patience_s = {
            'stale_camera': ('camera_watchdog_s', safety.camera_watchdog_s or self._watchdog_s)
        }
        arm_joints = [joint for arm in embodiment.arms.values() for joint in arm.joints]
        self._arm_joints = tuple(arm_joints)
        self._columns = np.array([joints.index(joint) for joint in arm_joints])
        self._largest_error = embodiment.safety.max_tracking_error_rad if tracking else None

    def trip(self, now_s: float, late_s: float, vitals: Vitals, commanded: Array) -> Trip | None:
        """Return why motion must end, if it must.

        Args:
            now_s: now. late_s: how much later than planned this moment is. vitals: of the robot.
            commanded: positions (J,).
        """
        forbidden = self._operator.forbids()
        if forbidden is not None:
            return Trip(*forbidden)
        if late_s > self._watchdog_s:
            return Trip('late', f'the control thread stood still for {late_s:.2f} s: the machine is too busy')
        for kind, text in vitals.faults.items():
            return Trip(kind, text)
        for (kind, name), heard_s in vitals.heard_s.items():
            key, limit_s = self._patience_s.get(kind, ('watchdog_s', self._watchdog_s))
            if now_s - heard_s > limit_s:
                silent = f'nothing new of {name} for {now_s - heard_s:.2f} s'
                return Trip(kind, f'{silent}, longer than safety.{key} ({limit_s:g} s)')
        client_s = self._operator.heard_s
        if client_s is not None and now_s - client_s > max(self._watchdog_s, ABANDONED_S):
            return Trip('abandoned', f'who gives chunks said nothing for {now_s - client_s:.2f} s')
        error, joint = self.tracking_error(vitals, commanded)
        if self._largest_error is not None and error > self._largest_error:
            return Trip(
                'tracking',
                f'{joint} is {error:.4g} away from where it is commanded to be, more than '
                f'safety.max_tracking_error_rad ({self._largest_error:g}): is something in its way, or its '
                'controller not active?',
            )
        return None

    def tracking_error(self, vitals: Vitals, commanded: Array) -> tuple[float, str]:
        """Return how far the joint that is furthest from its command is from it, and its name."""
        measured = [vitals.positions.get(joint, np.nan) for joint in self._arm_joints]
        away = np.abs(np.array(measured) - commanded[self._columns])
        if np.isnan(away).all():
            return 0.0, ''
        worst = int(np.nanargmax(away))
        return float(away[worst]), self._arm_joints[worst]
