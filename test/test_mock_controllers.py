# SPDX-License-Identifier: Apache-2.0
"""The mock's forward and Cartesian controllers, its drives, and what its drivers tell, by contract."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from contracts import contract, described, written

from openeta_ros.control.commands import Channel
from openeta_ros.embodiment import Kinematics, available, load
from openeta_ros.envs.mock_controllers import (
    Commanded,
    ForwardController,
    PoseController,
    activate,
    controllers_of,
)
from openeta_ros.envs.mock_drives import Drives
from openeta_ros.envs.mock_plant import BarePlant
from openeta_ros.envs.mock_robot import MockRobot, state_streams
from openeta_ros.envs.mock_trajectory import Point, Rejected, Trajectory, TrajectoryController
from openeta_ros.observation import NS_PER_S

REAL = [name for name in available() if all(arm.command for arm in load(name).arms.values())]
STILL = np.zeros(2)


def test_a_forward_controller_steps_and_holds_for_ever() -> None:
    controller = ForwardController(('a', 'b'))
    assert np.isnan(controller.update(0, STILL, STILL)).all()
    controller.accept([1.0, 2.0])
    for now_ns in (0, 1, 10**12):
        assert controller.update(now_ns, STILL, STILL).tolist() == [1.0, 2.0]


def test_nan_is_dropped_and_an_empty_message_does_nothing() -> None:
    controller = ForwardController(('a', 'b'))
    controller.accept([1.0, 2.0])
    with pytest.raises(Rejected, match='NaN'):
        controller.accept([np.nan, 3.0])
    controller.accept([])
    assert controller.active and controller.update(0, STILL, STILL).tolist() == [1.0, 2.0]


@pytest.mark.parametrize('values', [[1.0], [1.0, 2.0, 3.0]])
def test_a_wrong_length_deactivates_until_somebody_activates(values: list[float]) -> None:
    controller = ForwardController(('a', 'b'))
    controller.accept([1.0, 2.0])
    with pytest.raises(Rejected, match='deactivated until it is activated by hand'):
        controller.accept(values)
    with pytest.raises(Rejected, match='not active'):
        controller.accept([3.0, 4.0])
    assert np.isnan(controller.update(0, STILL, STILL)).all()
    controller.activate()
    controller.accept([3.0, 4.0])
    assert controller.update(0, STILL, STILL).tolist() == [3.0, 4.0]


def test_a_velocity_controller_goes_on_with_the_last_velocity() -> None:
    controller = ForwardController(('a', 'b'), 'velocity')
    controller.update(0, STILL, STILL)
    controller.accept([0.5, -1.0])
    positions = controller.update(2 * NS_PER_S, STILL, STILL)
    np.testing.assert_allclose(positions, [1.0, -2.0])
    np.testing.assert_allclose(controller.update(4 * NS_PER_S, STILL, STILL), [2.0, -4.0])
    controller.deactivate()
    assert np.isnan(controller.update(5 * NS_PER_S, STILL, STILL)).all()


def test_activating_what_another_one_holds_is_refused() -> None:
    first, second, third = (
        Commanded(Channel(f'{name}/commands', 'forward_position', 'arm', joints, joints), controller)
        for name, joints in (('one', ('a', 'b')), ('two', ('b', 'c')), ('three', ('d',)))
        for controller in [ForwardController(joints)]
    )
    for one in (second, third):
        one.controller.deactivate()
    everyone = [first, second, third]
    assert activate(everyone, second) == 'one is active and holds b' and not second.controller.active
    assert activate(everyone, third) is None and third.controller.active
    first.controller.deactivate()
    assert activate(everyone, second) is None and second.controller.active


def test_a_cartesian_controller_reaches_poses_and_rejects_what_is_out_of_reach() -> None:
    robot = load('light_arm')
    kinematics = Kinematics(robot)
    home = np.array(robot.home_qpos[:-1])
    controller = PoseController(robot.arms['arm'].joints, 'arm', kinematics)
    pose = kinematics.forward('arm', home)
    pose[2] += 0.05
    controller.accept(pose, home)
    reached = kinematics.forward('arm', controller.update(0, home, home))
    np.testing.assert_allclose(reached[:3], pose[:3], atol=1e-3)
    pose[2] += 9.0
    with pytest.raises(Rejected, match='does not reach'):
        controller.accept(pose, home)


# --- drives


def test_a_step_is_followed_with_finite_velocity_and_acceleration_and_not_overshot() -> None:
    robot = load('franka')
    drives = Drives(robot)
    target = drives.home.copy()
    target[0] += 1.0
    path = [drives.positions]
    for _ in range(400):
        drives.step(target, 0.01)
        path.append(drives.positions)
    velocity = np.diff(np.array(path)[:, 0]) / 0.01
    assert velocity.max() <= 1.5 * robot.arms['arm'].limits.velocity[0] + 1e-9
    assert np.abs(np.diff(velocity, prepend=0.0)).max() / 0.01 <= 3 * 8.0 + 1e-6
    assert np.max(path, axis=0)[0] <= target[0] + 1e-3
    np.testing.assert_allclose(drives.positions, target, atol=1e-4)


def test_what_a_contract_allows_is_followed_closely() -> None:
    drives = Drives(load('franka'))
    behind = []
    for tick in range(400):
        target = drives.home.copy()
        target[0] += 0.25 * (1 - np.cos(tick * 0.04))  # up to 1 rad/s and 4 rad/s^2
        drives.step(target, 0.01)
        behind.append(abs(drives.positions[0] - target[0]))
    assert max(behind) < 1e-6


def test_nan_never_moves_and_mimics_follow_also_below_zero(tmp_path: Path) -> None:
    data = contract('light_arm')
    data['arms']['arm']['gripper']['mimics'] = {'finger_right': -1.0}
    del data['simulation']
    robot = written(data, tmp_path)
    drives = Drives(robot)
    assert drives.home[-2:].tolist() == [0.04, -0.04]
    targets = np.full(len(drives.joints), np.nan)
    drives.step(targets, 0.01)
    assert (drives.positions == drives.home).all()
    targets[-2] = 0.01
    for _ in range(100):
        drives.step(targets, 0.01)
    np.testing.assert_allclose(drives.positions[-2:], [0.01, -0.01], atol=1e-4)
    np.testing.assert_allclose(drives.positions[:-2], drives.home[:-2])


# --- the contracts that ship


@pytest.mark.parametrize('name', REAL)
def test_every_contract_that_ships_moves_its_mock(name: str) -> None:
    robot = load(name)
    described(robot)
    plant = BarePlant(robot)
    mock = MockRobot(plant, controllers_of(robot, Kinematics(robot)))
    carried = [joint for one in mock.controllers for joint in one.channel.joints]
    assert sorted(carried) == sorted(robot.wire_joints)
    before = plant.positions()
    for one in mock.controllers:
        values = mock.measured(one) + 0.01
        if isinstance(one.controller, TrajectoryController):
            names = tuple(reversed(one.channel.names))  # a controller has an order of its own
            one.controller.accept(Trajectory(names, (Point(0.2, values[::-1]),)), 0)
        else:
            assert isinstance(one.controller, ForwardController)
            one.controller.accept(values)
    for tick in range(200):
        mock.tick(tick * 10_000_000, 0.01)
    moved = dict(zip(plant.joints, plant.positions() - before, strict=True))
    ratios = {}
    for arm in robot.arms.values():
        if arm.gripper:
            ratios |= arm.gripper.mimics
    for joint, way in moved.items():
        assert way == pytest.approx(0.01 * ratios.get(joint, 1.0), abs=1e-4)


@pytest.mark.parametrize('name', REAL)
def test_joint_states_say_all_joints_once_in_the_order_of_the_alphabet(name: str) -> None:
    robot = load(name)
    joints = BarePlant(robot).joints
    streams = state_streams(robot, joints)
    said = [joint for stream in streams for joint in stream.joints]
    assert sorted(said) == sorted(joints)
    assert all(list(stream.names) == sorted(stream.names) for stream in streams)
    if name == 'aloha':
        left, right = streams
        assert left.names == right.names and left.topic != right.topic
        assert 'vx300s_left/waist' in left.joints and 'waist' in left.names


def test_states_are_said_in_the_units_and_names_of_the_contract(tmp_path: Path) -> None:
    data = contract('light_arm')
    names = data['arms']['arm']['joints']
    data['state'] = [
        {'topic': 'arm', 'unit': 'deg', 'joints': names},
        {'topic': 'gripper', 'scales': {'finger_left': {'scale': 0.001, 'offset': -0.01}}},
    ]
    robot = written(data, tmp_path)
    arm, gripper = state_streams(robot, BarePlant(robot).joints)
    assert arm.names == () and arm.joints == tuple(names)
    np.testing.assert_allclose(arm.positions(np.full(6, np.pi)), 180.0)
    np.testing.assert_allclose(arm.velocities(np.full(6, np.pi)), 180.0)
    assert gripper.names == ('finger_left', 'finger_right')
    np.testing.assert_allclose(gripper.positions(np.array([0.03, 0.03])), [40.0, 0.03])
