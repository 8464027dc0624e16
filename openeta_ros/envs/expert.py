# SPDX-License-Identifier: Apache-2.0
"""Way points of a task to joint rows: inverse kinematics, smooth profiles, the contract's limits."""

from __future__ import annotations

import math

import numpy as np

from openeta_ros.embodiment import Embodiment, Kinematics, KinematicsError
from openeta_ros.envs.backend import Array
from openeta_ros.envs.errors import EnvError
from openeta_ros.envs.tasks import Waypoint

# Of the contract's velocity, acceleration and largest step: what the expert does must never be refused, and
# a servo follows a slower row more closely.
SHARE_OF_LIMITS = 0.8
OPENNESS_PER_ROW = 0.25
# The minimum-jerk profile 10 s^3 - 15 s^4 + 6 s^5: its steepest slope and largest curvature.
PEAK_SLOPE = 1.875
PEAK_CURVATURE = 5.7736


def expert_rows(embodiment: Embodiment, kinematics: Kinematics, arm: str, waypoints: list[Waypoint]) -> Array:
    """Return (H, D) float64 `qpos` rows that lead the arm from home through `waypoints`.

    The tool points down: its z axis is the approach, its y axis the direction in which the fingers open.
    Every row keeps to the contract's velocity, acceleration and largest step.

    Raises:
        EnvError: kind 'no_expert': a way point cannot be reached.
    """
    path = _Path(embodiment, kinematics, arm)
    for index, waypoint in enumerate(waypoints):
        try:
            path.move(waypoint)
        except KinematicsError as error:
            raise EnvError(
                'no_expert', f'{embodiment.name} does not reach way point {index} of the expert: {error}'
            ) from error
    return np.array(path.rows)


class _Path:
    def __init__(self, embodiment: Embodiment, kinematics: Kinematics, arm: str) -> None:
        self._kinematics = kinematics
        self._arm = arm
        self._rate_hz = embodiment.rate_hz
        limits = embodiment.arms[arm].limits
        largest_step = embodiment.safety.max_step_rad or math.inf
        self._velocity = SHARE_OF_LIMITS * np.minimum(limits.velocity, largest_step * self._rate_hz)
        self._acceleration = SHARE_OF_LIMITS * np.array(
            limits.acceleration or (math.inf,) * len(limits.velocity)
        )
        self._joints = np.array(embodiment.home_qpos[:-1])
        self._openness = float(embodiment.home_qpos[-1])
        pose = kinematics.forward(arm, self._joints)
        self._position = pose[:3]
        self._yaw = _tool_yaw(pose)
        self.rows: list[Array] = []

    def move(self, waypoint: Waypoint) -> None:
        position = np.array(waypoint.position_m)
        yaw = self._yaw if waypoint.yaw_rad is None else self._nearest_yaw(waypoint)
        if waypoint.path == 'line':
            track = self._line(position, yaw, waypoint.speed_m_s)
        else:
            track = self._swing(self._kinematics.inverse(self._arm, _tool_pose(position, yaw), self._joints))
        for joints in track:
            self._append(joints, self._openness)
        while abs(waypoint.openness - self._openness) > 1e-9:
            change = np.clip(waypoint.openness - self._openness, -OPENNESS_PER_ROW, OPENNESS_PER_ROW)
            self._append(self._joints, self._openness + float(change))
        for _ in range(waypoint.hold_rows):
            self._append(self._joints, self._openness)
        self._position, self._yaw = position, yaw

    def _append(self, joints: Array, openness: float) -> None:
        self._joints, self._openness = joints, openness
        self.rows.append(np.append(joints, openness))

    def _nearest_yaw(self, waypoint: Waypoint) -> float:
        assert waypoint.yaw_rad is not None
        turn = math.pi / 2 if waypoint.quarter_turns else math.pi
        return waypoint.yaw_rad + turn * round((self._yaw - waypoint.yaw_rad) / turn)

    def _swing(self, goal: Array) -> Array:
        """Return rows from here (left out) to `goal`, all joints arriving together."""
        way = np.abs(goal - self._joints)
        seconds = max(
            float(np.max(PEAK_SLOPE * way / self._velocity)),
            float(np.max(np.sqrt(PEAK_CURVATURE * way / self._acceleration))),
        )
        weights = _profile(max(1, math.ceil(seconds * self._rate_hz)))
        return self._joints + weights[:, None] * (goal - self._joints)

    def _line(self, position: Array, yaw: float, speed_m_s: float) -> Array:
        """Return rows from here (left out) along a straight line, slow enough for every joint."""
        length = float(np.linalg.norm(position - self._position))
        count = max(2, math.ceil(PEAK_SLOPE * length / speed_m_s * self._rate_hz))
        while True:
            rows, joints = [self._joints], self._joints
            for weight in _profile(count):
                pose = _tool_pose(
                    self._position + weight * (position - self._position),
                    self._yaw + weight * (yaw - self._yaw),
                )
                joints = self._kinematics.inverse(self._arm, pose, joints)
                rows.append(joints)
            track = np.array(rows)
            # At rest before and after: the first and the last row change the velocity as well.
            velocity = np.diff(track, axis=0, prepend=track[:1], append=track[-1:]) * self._rate_hz
            acceleration = np.diff(velocity, axis=0) * self._rate_hz
            excess = max(
                float(np.max(np.abs(velocity) / self._velocity)),
                math.sqrt(float(np.max(np.abs(acceleration) / self._acceleration))),
            )
            if excess <= 1.0:
                return track[1:]
            count = math.ceil(count * max(excess, 1.05))


def _profile(count: int) -> Array:
    """Return `count` weights that rise smoothly to 1, without the 0 at the start."""
    s = np.arange(1, count + 1) / count
    return s**3 * (10.0 - 15.0 * s + 6.0 * s**2)


def _tool_pose(position: Array, yaw: float) -> Array:
    """Return the pose (7,) of a tool pointing down: half a turn about x, then `yaw` about z."""
    return np.array([*position, 0.0, math.cos(yaw / 2), math.sin(yaw / 2), 0.0])


def _tool_yaw(pose: Array) -> float:
    """Return the yaw of the tool's x axis, which lies flat when the tool points down."""
    w, x, y, z = pose[3:]
    return math.atan2(2.0 * (x * y + w * z), 1.0 - 2.0 * (y * y + z * z))
