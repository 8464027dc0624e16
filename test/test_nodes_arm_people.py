# SPDX-License-Identifier: Apache-2.0
"""An arm on the graph: people who judge, interfaces that commands leave by, a dry run, a wrong contract."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arm_fakes import arm_contract, ramp
from arm_graph import PATIENT, Background, wait_for_streams
from geometry_msgs.msg import PoseStamped
from ros_graph import environment, node_process, spinning, wait_until
from trajectory_msgs.msg import JointTrajectory

from openeta_ros.control.commands import Channel, PathCommand
from openeta_ros.embodiment import load
from openeta_ros.nodes.arm_env import ArmEnv
from openeta_ros.nodes.peer import bring_up
from openeta_ros.nodes.robot_commands import trajectory_message
from openeta_ros.nodes.robot_node import arguments_without_name


def test_a_path_becomes_a_message_that_starts_at_once_and_ends_at_rest() -> None:
    channel = Channel('topic', 'joint_trajectory', 'arm', ('a', 'b'), ('one', 'two'))
    velocities = np.array([[0.5, 0.0], [0.0, 0.0]])
    message = trajectory_message(PathCommand(channel, np.array([0.05, 1.1]), np.eye(2), velocities))
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (0, 0)
    assert list(message.joint_names) == ['one', 'two']
    assert [(p.time_from_start.sec, p.time_from_start.nanosec) for p in message.points] == [
        (0, 50_000_000),
        (1, 100_000_000),
    ]
    assert list(message.points[0].velocities) == [0.5, 0.0] and not any(message.points[1].velocities)


def test_a_node_beside_the_env_is_remapped_as_it_is_but_for_its_name() -> None:
    given = [
        '--ros-args',
        '-r',
        '__node:=env',
        '-r',
        '__ns:=/left',
        '--remap',
        'a:=b',
        '-p',
        'use_sim_time:=true',
    ]
    kept = ['--ros-args', '--remap', 'a:=b', '-p', 'use_sim_time:=true']
    assert arguments_without_name(given) == kept


@pytest.mark.parametrize('interface', ['joint_trajectory', 'pose'])
def test_people_set_the_scene_and_judge_by_keys(tmp_path: Path, interface: str) -> None:
    embodiment = arm_contract(tmp_path, interface, **PATIENT)
    path = str(embodiment.path)
    arm = {'env': 'arm', 'task': 'wave at the camera', 'embodiment': path, 'enabled': True, 'max_steps': 12}
    mock = {'task': 'reach', 'embodiment': path, 'camera_hz': 20.0}
    with (
        environment(),
        node_process('mock', tmp_path / 'mock.log', **mock),
        node_process('env', tmp_path / 'env.log', **arm, success='person'),
        spinning('tester') as (node, process),
    ):
        notes: list[str] = []
        env = ArmEnv(node, process, 'env', embodiment, row_timeout_s=60.0, note=notes.append)
        kind = JointTrajectory if interface == 'joint_trajectory' else PoseStamped
        sent: list[Any] = []
        node.create_subscription(kind, 'arm_controller/commands', sent.append, 1000)
        env.wait_until_found(time.monotonic() + 120.0)
        bring_up([env.peer], 120.0, print)
        wait_for_streams(env)
        assert env.descriptor()['instruction'] == 'wave at the camera'
        env.reset(4)
        person = Background(lambda: (wait_until(env._waits, 120.0), env.key('s')))
        results = env.chunk_step(ramp(embodiment, 16), 'qpos')
        person.join()
        assert len(results) == 12 and results[-1].truncated and results[-1].info['success']
        assert any('say whether the task is solved' in note for note in notes)
        assert sent
        if interface == 'joint_trajectory':
            moving = max(sent, key=lambda message: len(message.points))
            assert list(moving.joint_names) == list(embodiment.arms['arm'].joints)
            assert not any(moving.points[-1].velocities)
        else:
            assert sent[0].header.frame_id == 'base'
            assert sent[-1].pose.position.y != pytest.approx(sent[0].pose.position.y, abs=0.05)


def test_a_dry_run_publishes_nothing_and_logs_what_it_would(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path, 'joint_trajectory', **PATIENT)
    path = str(embodiment.path)
    arm = {'env': 'arm', 'task': 'reach', 'embodiment': path, 'enabled': True, 'dry_run': True}
    with (
        environment(),
        node_process('mock', tmp_path / 'mock.log', embodiment=path, task='reach', camera_hz=20.0),
        node_process('env', tmp_path / 'env.log', **arm),
        spinning('tester') as (node, process),
    ):
        env = ArmEnv(node, process, 'env', embodiment, row_timeout_s=60.0, note=print)
        env.wait_until_found(time.monotonic() + 120.0)
        bring_up([env.peer], 120.0, print)
        wait_for_streams(env)
        before = env.reset(0)
        results = env.chunk_step(ramp(embodiment, 8), 'qpos')
        assert len(results) == 8
        assert results[-1].observation['qpos'] == pytest.approx(before['qpos'], abs=1e-3)
        assert not node.count_publishers('/arm_controller/commands')
        wait_until(lambda: 'dry run, not sent: arm_controller/commands' in (tmp_path / 'env.log').read_text())


def test_a_contract_for_simulators_cannot_be_configured_as_an_arm(tmp_path: Path) -> None:
    with (
        environment(),
        node_process('env', tmp_path / 'env.log', env='arm', task='reach', embodiment='light_arm'),
        spinning('tester') as (node, process),
    ):
        env = ArmEnv(node, process, 'env', load('light_arm'), row_timeout_s=10.0, note=print)
        env.wait_until_found(time.monotonic() + 120.0)
        with pytest.raises(Exception, match=r'arms\.arm\.command is missing'):
            bring_up([env.peer], 60.0, print)
