# SPDX-License-Identifier: Apache-2.0
"""Straight lines of a tool point as joint rows that keep to the contract's limits.

Rows come out as a policy would send them; `ActionPipeline` checks them as it checks a policy's.
"""

from __future__ import annotations

import math

import numpy as np

from openeta_ros.control import ActionError, ActionPipeline
from openeta_ros.control.rows import Array
from openeta_ros.embodiment import Kinematics, KinematicsError

# Of the contract's velocity and acceleration: what is planned here must never be refused, and a servo follows
# a slower row more closely.
SHARE_OF_LIMITS = 0.8
# A line that takes longer leads through a posture where joints would have to race.
LONGEST_S = 60.0


def line_rows(
    pipeline: ActionPipeline, kinematics: Kinematics, arm: str, pose: Array, now: Array, speed: float
) -> Array:
    """Return wire rows (H, D) that lead an arm's tool point to `pose` (7,) along a straight line, from rest
    to rest, while everything else stays.

    Args:
        now: (D,) the row that the arm rests at.
        speed: part of the fastest that the limits allow, above 0 to 1.

    Raises:
        ActionError: kind 'unreachable': a pose on the line cannot be reached in the arm's posture.
    """
    embodiment = pipeline.embodiment
    place = embodiment.slices('qpos')[arm]
    joints = np.arange(place.start, place.start + len(embodiment.arms[arm].joints))
    start = kinematics.forward(arm, now[joints])
    goal = np.array([*pose[:3], *_nearest(pose[3:] / np.linalg.norm(pose[3:]), start[3:])])
    largest_step = SHARE_OF_LIMITS * pipeline.limits.largest_step[joints]
    largest_change = SHARE_OF_LIMITS * pipeline.limits.largest_change[joints]
    most = round(LONGEST_S * embodiment.rate_hz)
    count = 4
    while True:
        track = _solved(kinematics, arm, _between(start, goal, profile(count)), now[joints])
        steps = np.diff(track, axis=0, prepend=now[None, joints], append=track[-1:])
        changes = np.diff(steps, axis=0, prepend=np.zeros((1, len(joints))))
        excess = max(
            float(np.max(np.abs(steps) / largest_step)),
            math.sqrt(float(np.max(np.abs(changes) / largest_change))),
        )
        if excess <= 1.0:
            break
        count = math.ceil(count * excess)
        if count > most:
            raise ActionError(
                'unreachable',
                f'the straight line to {np.round(goal, 4).tolist()} would take {arm} more than '
                f'{LONGEST_S:g} s within its limits; go by way of another pose',
            )
    if speed < 1.0:
        count = math.ceil(count / speed)
        track = _solved(kinematics, arm, _between(start, goal, profile(count)), now[joints])
    rows = np.repeat(now[None], len(track), axis=0)
    rows[:, joints] = track
    return rows


def gripper_rows(pipeline: ActionPipeline, arm: str, openness: float, now: Array) -> Array:
    """Return wire rows (H, D) that bring a gripper to `openness` in 0.2 s (full travel), and rest 0.2 s."""
    embodiment = pipeline.embodiment
    column = embodiment.slices('qpos')[arm].stop - 1
    count = math.ceil(abs(openness - now[column]) * 0.2 * embodiment.rate_hz - 1e-9)
    settle = max(1, round(0.2 * embodiment.rate_hz)) if count else 1
    rows = np.repeat(now[None], count + settle, axis=0)
    rows[:count, column] = now[column] + (openness - now[column]) * np.arange(1, count + 1) / max(count, 1)
    rows[count:, column] = openness
    return rows


def profile(count: int) -> Array:
    """Return `count` weights that rise to 1 without a jerk at either end, the 0 at the start left out."""
    s = np.arange(1, count + 1) / count
    return np.asarray(s**3 * (10.0 - 15.0 * s + 6.0 * s**2))


def _between(start: Array, goal: Array, weights: Array) -> Array:
    """Return poses (H, 7) from `start` to `goal`; positions on a line, rotations about one axis."""
    cosine = float(np.clip(start[3:] @ goal[3:], -1.0, 1.0))
    angle = math.acos(cosine)
    part = weights[:, None]
    if angle < 1e-6:
        turned = (1 - part) * start[3:] + part * goal[3:]
    else:
        turned = (np.sin((1 - part) * angle) * start[3:] + np.sin(part * angle) * goal[3:]) / math.sin(angle)
    return np.hstack([start[:3] + part * (goal[:3] - start[:3]), turned])


def _nearest(quaternion: Array, reference: Array) -> Array:
    return quaternion if quaternion @ reference >= 0 else -quaternion


def _solved(kinematics: Kinematics, arm: str, poses: Array, q: Array) -> Array:
    track = np.empty((len(poses), len(q)))
    for row, pose in enumerate(poses):
        try:
            q = kinematics.inverse(arm, pose, q, same_posture=True)
        except KinematicsError as error:
            raise ActionError(
                'unreachable',
                f'the line of {arm} cannot be followed at {np.round(pose[:3], 4).tolist()} m: {error}',
                row=row,
            ) from error
        track[row] = q
    return track
