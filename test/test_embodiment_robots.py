# SPDX-License-Identifier: Apache-2.0
"""The shipped contracts of real robots: kinematics there and back, and each robot's own traps.

Descriptions come from packages that may be missing: then a test is skipped and says how to install them.
"""

from __future__ import annotations

import numpy as np
import pytest
from contracts import described

from openeta_ros.control import ActionPipeline
from openeta_ros.embodiment import Embodiment, Kinematics, load

ROBOTS = ('franka', 'ur5e_2f85', 'so101', 'xarm7', 'aloha')
POSES, FROM_HOME = 1000, 12
POSITION_M, ROTATION_RAD = 1e-4, np.radians(0.1)


@pytest.fixture(params=ROBOTS)
def robot(request: pytest.FixtureRequest) -> Embodiment:
    embodiment = load(request.param)
    described(embodiment)
    return embodiment


def joint_ranges(embodiment: Embodiment, kinematics: Kinematics) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    ranges, start = {}, 0
    for name, arm in embodiment.arms.items():
        low, high = kinematics.position_limits[start : start + len(arm.joints)].T
        ranges[name] = (low, high)
        start += len(arm.joints)
    return ranges


def away(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return how far two poses are apart, in metres and in radians."""
    turn = 2 * np.arccos(min(1.0, abs(float(one[3:] @ other[3:]))))
    return float(np.linalg.norm(one[:3] - other[:3])), turn


def test_poses_come_back_from_joints_that_come_back_from_poses(robot):
    kinematics = Kinematics(robot)
    random = np.random.default_rng(11)
    for name, (low, high) in joint_ranges(robot, kinematics).items():
        worst = np.zeros(2)
        for _ in range(POSES):
            q = random.uniform(low, high)
            pose = kinematics.forward(name, q)
            seed = np.clip(q + random.normal(0, 0.2, len(q)), low, high)
            found = kinematics.inverse(name, pose, seed)
            assert np.all((low <= found) & (found <= high))
            worst = np.maximum(worst, away(kinematics.forward(name, found), pose))
        assert worst[0] <= POSITION_M
        assert worst[1] <= ROTATION_RAD


@pytest.mark.slow
def test_poses_are_reached_from_home_too(robot):
    kinematics = Kinematics(robot)
    random = np.random.default_rng(12)
    for name, (low, high) in joint_ranges(robot, kinematics).items():
        home = robot.arms[name].home[: len(low)]
        for _ in range(FROM_HOME):
            pose = kinematics.forward(name, random.uniform(low, high))
            position_m, rotation_rad = away(
                kinematics.forward(name, kinematics.inverse(name, pose, home)), pose
            )
            assert position_m <= POSITION_M
            assert rotation_rad <= ROTATION_RAD


def test_home_is_inside_all_limits_and_a_chunk_that_stays_there_passes(robot):
    pipeline = ActionPipeline(robot, Kinematics(robot))
    plan = pipeline.plan(np.tile(robot.home_qpos, (4, 1)), 'qpos', robot.home_qpos)
    assert len(plan) == 4
    assert not any(plan.clamped)


def test_every_arm_can_be_commanded(robot):
    for arm in robot.arms.values():
        assert arm.command is not None
        assert arm.limits.acceleration is not None
        assert arm.gripper is not None
        assert arm.command_joints[: len(arm.joints)] == arm.joints


@pytest.mark.parametrize(
    ('name', 'opened', 'closed', 'mimic', 'ratio'),
    [
        ('franka', 0.04, 0.0, 'fr3_finger_joint2', 1.0),
        ('ur5e_2f85', 0.0, 0.8, 'right_outer_knuckle_joint', 1.0),  # closes upwards
        ('so101', 1.74533, -0.174533, None, None),  # closed is below zero
        ('xarm7', 0.0, 0.85, 'right_finger_joint', 1.0),
        ('aloha', 0.057, 0.021, 'vx300s_left/right_finger', -1.0),  # the other finger's range is negative
    ],
)
def test_one_is_open_on_the_wire_whatever_a_gripper_counts(name, opened, closed, mimic, ratio):
    embodiment = load(name)
    described(embodiment)
    pipeline = ActionPipeline(embodiment, Kinematics(embodiment))
    arm = next(iter(embodiment.arms.values()))
    assert arm.gripper is not None
    row = embodiment.home_qpos
    for openness, expected in ((1.0, opened), (0.0, closed), (0.25, closed + 0.25 * (opened - closed))):
        row[len(arm.joints)] = openness
        plan = pipeline.plan(row, 'qpos', embodiment.home_qpos)
        targets = dict(zip(plan.joints, plan.targets[0], strict=True))
        assert targets[arm.gripper.joint] == pytest.approx(expected)
        if mimic is not None:
            assert mimic in plan.mimics
            assert targets[mimic] == pytest.approx(ratio * expected)


def test_the_arms_of_aloha_are_told_apart_by_the_prefix_of_their_drivers():
    aloha = load('aloha')
    assert [state.prefix for state in aloha.state] == ['vx300s_left/', 'vx300s_right/']
    for arm, state in zip(aloha.arms.values(), aloha.state, strict=True):
        assert arm.command is not None
        assert arm.command.prefix == state.prefix
        assert all(joint.startswith(state.prefix) for joint in arm.command_joints)


def test_the_panda_of_the_simulators_moves_as_the_fr3():
    pandas, franka = load('franka_genesis'), load('franka')
    described(franka)
    ours, theirs = Kinematics(pandas), Kinematics(franka)
    for q in np.random.default_rng(3).uniform(
        theirs.position_limits[:, 0], theirs.position_limits[:, 1], (50, 7)
    ):
        assert theirs.forward('arm', q) == pytest.approx(ours.forward('arm', q), abs=1e-6)


def test_so101_follows_poses_that_five_joints_cannot_turn_to():
    so101 = load('so101')
    described(so101)
    kinematics = Kinematics(so101)
    home = np.array(so101.arms['arm'].home[:-1])
    pose = kinematics.forward('arm', home)
    q = home
    for step in range(20):
        sideways = np.add(pose, [0, 0.004 * (step + 1), 0, 0, 0, 0, 0])
        found = kinematics.inverse('arm', sideways, q, same_posture=True)
        reached = kinematics.forward('arm', found)
        assert reached[:3] == pytest.approx(sideways[:3], abs=1e-4)
        assert np.abs(found - q).max() < 0.1
        q = found
