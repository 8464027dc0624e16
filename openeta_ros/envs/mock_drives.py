# SPDX-License-Identifier: Apache-2.0
"""Joints with drives of finite velocity and acceleration, which is all that a real arm promises of a step."""

from __future__ import annotations

import numpy as np

from openeta_ros.embodiment import Embodiment
from openeta_ros.envs.backend import Array

# Drives can do more than a contract asks of them, which is kept below what they can.
VELOCITY_RESERVE, ACCELERATION_RESERVE = 1.5, 3.0
# Seconds that a gripper takes for its whole way, and to be as fast as that.
GRIPPER_S, GRIPPER_START_S = 0.2, 0.05
# 1/s: how an error that the movement of the target does not explain is made up for.
STIFFNESS = 25.0


class Drives:
    """All commanded joints of a contract: of each arm its joints, its gripper's, and the latter's mimics.

    `positions` and `velocities` (J,) are where the drives are, in the joints' own units; there are no limits
    of position, as the real mock components have none.
    """

    def __init__(self, embodiment: Embodiment) -> None:
        names: list[str] = []
        start: list[float] = []
        velocity: list[float] = []
        acceleration: list[float] = []
        self._mimics: list[tuple[int, int, float]] = []  # place, place of what is followed, ratio
        for arm in embodiment.arms.values():
            names += arm.joints
            start += arm.home[: len(arm.joints)]
            limits = arm.limits
            velocity += [VELOCITY_RESERVE * value for value in limits.velocity]
            acceleration += [ACCELERATION_RESERVE * value for value in limits.acceleration or limits.velocity]
            if arm.gripper is None:
                continue
            way, place = abs(arm.gripper.open - arm.gripper.closed), len(names)
            for joint, ratio in {arm.gripper.joint: 1.0, **arm.gripper.mimics}.items():
                self._mimics.append((len(names), place, ratio))
                names.append(joint)
                start.append(ratio * arm.gripper.to_native(arm.home[-1]))
                velocity.append(abs(ratio) * way / GRIPPER_S)
                acceleration.append(abs(ratio) * way / GRIPPER_S / GRIPPER_START_S)
        self.joints = tuple(names)
        self.home = np.array(start)
        self._fastest, self._strongest = np.array(velocity), np.array(acceleration)
        self.place(self.home)

    def place(self, positions: Array) -> None:
        """Put them at positions (J,), at rest, with these as their targets."""
        self.positions = positions.copy()
        self.velocities = np.zeros(len(positions))
        self._targets = positions.copy()

    def step(self, targets: Array, period_s: float) -> None:
        """Go on by a period towards targets (J,). What is NaN stays where it was commanded before."""
        wanted = np.where(np.isfinite(targets), targets, self._targets)
        for place, followed, ratio in self._mimics:
            wanted[place] = ratio * wanted[followed]
        error = self._targets - self.positions
        # Along with the target, and towards it as fast as it can still be stopped at.
        speed = np.minimum(STIFFNESS * np.abs(error), np.sqrt(self._strongest * np.abs(error)))
        velocity = (wanted - self._targets) / period_s + np.sign(error) * speed
        velocity = np.clip(velocity, -self._fastest, self._fastest)
        change = self._strongest * period_s
        self.velocities = np.clip(velocity, self.velocities - change, self.velocities + change)
        self.positions = self.positions + self.velocities * period_s
        self._targets = wanted
