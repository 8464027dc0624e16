# SPDX-License-Identifier: Apache-2.0
"""What leaves for controllers: their joints in their order, whole paths that end at rest, and never a number
that is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import contract, two_arms, written

from openeta_ros.control import ActionError, ActionPipeline, ChunkSchedule, Points
from openeta_ros.control.commands import (
    Channel,
    Commands,
    GoalCommand,
    PathCommand,
    PoseCommand,
    ValuesCommand,
    channels,
)
from openeta_ros.embodiment import Embodiment, EmbodimentError, Kinematics

JOINTS = ('shoulder_yaw', 'shoulder_pitch', 'elbow', 'wrist_roll', 'wrist_pitch', 'wrist_yaw')
TOPIC = 'controller/commands'


def arm(folder: Path, command: dict[str, Any], gripper: dict[str, Any] | None = None) -> Embodiment:
    data = contract('light_arm')
    data['arms']['arm']['command'] = {'topic': TOPIC, **command}
    data['arms']['arm']['limits']['acceleration'] = [8.0] * 6
    if gripper:
        data['arms']['arm']['gripper']['command'] = {'topic': 'gripper', **gripper}
    return written(data, folder)


def made(embodiment: Embodiment) -> tuple[Commands, ChunkSchedule]:
    kinematics = Kinematics(embodiment)
    schedule = ChunkSchedule(ActionPipeline(embodiment, kinematics))
    schedule.start(embodiment.home_qpos, 0.0)
    return Commands(embodiment, kinematics, schedule.joints), schedule


def moving(embodiment: Embodiment, schedule: ChunkSchedule) -> Points:
    rows = np.repeat(embodiment.home_qpos[None], 8, axis=0)
    rows[:, 0] += 0.01 * np.cumsum([1, 2, 3, 3, 3, 2, 1, 0])
    schedule.add(rows, 'qpos', schedule.observe(0.0), 0.0)
    return schedule.points(0.0)


def test_a_path_carries_the_controllers_joints_under_its_names_and_ends_at_rest(tmp_path: Path) -> None:
    order = ['finger_left', *reversed(JOINTS)]
    embodiment = arm(tmp_path, {'interface': 'joint_trajectory', 'joints': order, 'prefix': 'shoulder_'})
    commands, schedule = made(embodiment)
    (path,) = commands.paths(moving(embodiment, schedule))
    assert isinstance(path, PathCommand)
    assert path.channel.joints == tuple(order)
    assert path.channel.names == ('finger_left', *(name.removeprefix('shoulder_') for name in order[1:]))
    assert path.times_s[0] > 0 and np.all(np.diff(path.times_s) > 0)
    assert not path.velocities[-1].any() and path.velocities[:-1].any()
    yaw = order.index('shoulder_yaw')
    assert path.positions[-1, yaw] == pytest.approx(0.15)
    # Open is 0.04 m of this finger; the other one mimics it, and is told nothing.
    assert path.positions[:, 0] == pytest.approx(0.04)
    assert 'finger_right' in schedule.joints and 'finger_right' not in path.channel.joints
    assert not commands.servo(*schedule.at(0.1), {})


def test_forward_controllers_are_told_exactly_their_joints(tmp_path: Path) -> None:
    embodiment = arm(tmp_path, {'interface': 'forward_position'}, {'interface': 'forward_position'})
    commands, schedule = made(embodiment)
    moving(embodiment, schedule)
    one, gripper = commands.servo(*schedule.at(0.2), {})
    assert isinstance(one, ValuesCommand) and one.channel.joints == JOINTS
    assert one.values[0] == pytest.approx(schedule.qpos_at(0.2)[0]) != 0
    assert gripper.channel.topic == 'gripper' and gripper.channel.gripper
    assert gripper.values == pytest.approx([0.04])


def test_velocities_bring_the_arm_back_to_its_path_within_its_limits(tmp_path: Path) -> None:
    embodiment = arm(tmp_path, {'interface': 'forward_velocity'}, {'interface': 'forward_position'})
    commands, schedule = made(embodiment)
    moving(embodiment, schedule)
    positions, velocities = schedule.at(0.2)
    on_it = dict(zip(schedule.joints, positions, strict=True))
    assert commands.servo(positions, velocities, on_it)[0].values[0] == velocities[0] > 0
    behind = on_it | {'shoulder_yaw': positions[0] - 0.05}
    assert commands.servo(positions, velocities, behind)[0].values[0] == pytest.approx(velocities[0] + 0.05)
    far = on_it | {'shoulder_yaw': positions[0] - 50.0}
    fastest = commands.servo(positions, np.full(len(positions), 2.2), far)[0].values[0]
    assert fastest == pytest.approx(2.2)


def test_poses_are_those_of_the_joints_with_the_scalar_last(tmp_path: Path) -> None:
    embodiment = arm(tmp_path, {'interface': 'pose'}, {'interface': 'forward_position'})
    commands, schedule = made(embodiment)
    pose, _ = commands.servo(*schedule.at(0.0), {})
    assert isinstance(pose, PoseCommand) and pose.channel.frame == 'base'
    x, y, z, qw, qx, qy, qz = Kinematics(embodiment).forward('arm', embodiment.home_qpos[:6])
    assert pose.values.tolist() == [x, y, z, qx, qy, qz, qw]


def test_grippers_with_an_action_are_sent_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    command = {'interface': 'gripper_command', 'max_effort': 20.0}
    embodiment = arm(tmp_path, {'interface': 'joint_trajectory'}, command)
    found = importlib.util.find_spec
    answers = {'control_msgs': None}
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: answers.get(name, found('os')))
    with pytest.raises(EmbodimentError, match='control_msgs, which is not installed'):
        channels(embodiment)
    monkeypatch.undo()
    monkeypatch.setattr(type(embodiment.arms['arm'].gripper.command), 'usable', lambda command: command)
    commands, _ = made(embodiment)
    (goal,) = commands.grippers({'arm': 0.25})
    assert isinstance(goal, GoalCommand) and goal.channel.max_effort == 20.0
    assert goal.values == pytest.approx([0.01])
    assert not commands.grippers({})


def test_a_contract_for_simulators_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(EmbodimentError, match=r'arms.arm.command is missing'):
        channels(written(contract('light_arm'), tmp_path))
    with pytest.raises(EmbodimentError, match=r'arms.arm.gripper.command is missing: poses'):
        channels(arm(tmp_path, {'interface': 'pose'}))


def test_two_arms_of_one_controller_share_its_messages(tmp_path: Path) -> None:
    import yaml

    data = yaml.safe_load(two_arms(tmp_path).path.read_text())
    for side in ('left', 'right'):
        data['arms'][side]['command'] = {'interface': 'joint_trajectory', 'topic': TOPIC}
        data['arms'][side]['limits']['acceleration'] = [8.0] * 6
    embodiment = written(data, tmp_path)
    (channel,) = channels(embodiment)
    assert len(channel.joints) == 14 and channel.joints[7] == 'right_shoulder_yaw'
    commands, schedule = made(embodiment)
    (path,) = commands.paths(schedule.points(0.0))
    assert path.positions.shape == (1, 14)


CHANNEL = Channel(TOPIC, 'joint_trajectory', 'arm', ('one', 'two'), ('one', 'two'))


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_before_anything_leaves(value: float) -> None:
    with pytest.raises(ActionError, match='two is not finite') as refused:
        ValuesCommand(CHANNEL, np.array([0.0, value]))
    assert (refused.value.kind, refused.value.joint) == ('not_finite', 'two')
    with pytest.raises(ActionError, match='not finite'):
        PathCommand(CHANNEL, np.array([0.1]), np.array([[0.0, value]]), np.zeros((1, 2)))
    with pytest.raises(ActionError, match='not finite'):
        PathCommand(CHANNEL, np.array([0.1]), np.zeros((1, 2)), np.array([[0.0, value]]))
    with pytest.raises(ActionError, match='a number is not finite'):
        PoseCommand(CHANNEL, np.array([0.0, 0, 0, 0, 0, 0, value]))


def test_a_wrong_length_which_would_deactivate_a_controller_is_refused() -> None:
    with pytest.raises(ActionError, match=r'shape \(2,\)') as refused:
        ValuesCommand(CHANNEL, np.zeros(3))
    assert refused.value.kind == 'shape'


@pytest.mark.parametrize('times', [[0.0, 0.1], [0.1, 0.1], [0.2, 0.1], []])
def test_times_that_do_not_rise_from_above_zero_are_refused(times: list[float]) -> None:
    count = len(times)
    with pytest.raises(ActionError, match='rise strictly'):
        PathCommand(CHANNEL, np.array(times), np.zeros((count, 2)), np.zeros((count, 2)))


def test_a_path_that_does_not_end_at_rest_is_refused() -> None:
    with pytest.raises(ActionError, match='end at rest'):
        PathCommand(CHANNEL, np.array([0.1]), np.zeros((1, 2)), np.ones((1, 2)))


def test_a_joint_without_a_value_is_refused(tmp_path: Path) -> None:
    embodiment = arm(tmp_path, {'interface': 'joint_trajectory'})
    with pytest.raises(ActionError, match='carries elbow, and there is no value for it') as refused:
        Commands(embodiment, Kinematics(embodiment), [name for name in JOINTS if name != 'elbow'])
    assert refused.value.joint == 'elbow'
