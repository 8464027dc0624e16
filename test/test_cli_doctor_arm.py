# SPDX-License-Identifier: Apache-2.0
"""`openeta doctor --embodiment` against the mock: what fits is ok, what does not is named, --move moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contracts import commanded_arm, contract, written
from ros_graph import environment, node_process, run_openeta, spinning, wait_until

from openeta_ros.cli.main import main
from openeta_ros.nodes import arm_checks, arm_nudges
from openeta_ros.nodes.arm_doctor import looked_at

JOINTS = contract('light_arm')['arms']['arm']['joints']
# For what is sure to happen, however busy the machine is.
SURE_S = 120.0


def doctor(robot: Path, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Return the exit code of the command and its lines by name."""
    command = ['doctor', '--embodiment', str(robot), '--seconds', '1', '--json', *arguments]
    process = run_openeta(command, {})
    output, _ = process.communicate(timeout=SURE_S)
    assert 'Traceback' not in output, output
    lines = json.loads(output[output.index('[') :])
    return process.returncode, {line['name']: line for line in lines}


def found_here(robot: Path, *, move: bool = False) -> dict[str, dict[str, str]]:
    """Return the lines of a look from this process."""
    findings = looked_at(str(robot), namespace='', seconds=1.0, hair=0.02 if move else None)
    return {finding.name: finding._asdict() for finding in findings}


def line(lines: dict[str, dict[str, str]], start: str) -> dict[str, str]:
    return next(value for name, value in lines.items() if name.startswith(start))


def changed(folder: Path, **changes: Any) -> Path:
    """Return the arm's contract with other values: not what is on the graph."""
    data = contract('light_arm')
    arm = data['arms']['arm']
    arm['limits']['acceleration'] = [8.0] * 6
    arm['command'] = {'interface': 'joint_trajectory', 'topic': 'arm_controller/joint_trajectory'}
    arm['gripper']['command'] = {'interface': 'forward_position', 'topic': 'gripper/commands'}
    for key, value in changes.items():
        place: Any = data
        *path, last = key.split('__')
        for part in path:
            place = place[part]
        place[last] = value
    return written(data, folder).path


@pytest.fixture(scope='module')
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp('mock')
    data = contract('light_arm')
    robot = commanded_arm(  # a machine that is busy with other tests is no fault of the arm
        folder,
        align={**data['align'], 'max_age_s': SURE_S},
        state=[{**data['state'][0], 'max_age_s': SURE_S}],
    ).path
    with (
        environment(),
        node_process('mock', folder / 'log', embodiment=str(robot), task='reach', camera_hz=25.0),
    ):
        wait_until(lambda: 'forward_position on' in (folder / 'log').read_text(), SURE_S)
        yield robot


def test_an_arm_that_fits_its_contract_is_ok_and_moves_when_asked(
    mock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arm_checks, 'DISCOVERY_S', SURE_S)
    monkeypatch.setattr(arm_nudges, 'PATIENCE_S', SURE_S)
    lines = found_here(mock, move=True)
    assert not [one for one in lines.values() if one['status'] == 'failed']
    assert (
        'Hz' in line(lines, 'camera front')['found']
        and 'ms from this clock' in line(lines, 'camera')['found']
    )
    assert lines['topic joint_states']['found'] == ('sensor_msgs/msg/JointState, reliable, transient_local')
    assert lines['positions']['found'] == 'inside the limits'
    assert lines['picture front']['found'].startswith('60x80x3')
    assert lines['tool arm']['found'].endswith('is the tool there?')
    assert lines['command arm_controller/joint_trajectory']['status'] == 'ok'
    assert lines['stop topic']['status'] == 'warning'
    for joint in JOINTS:
        assert lines[f'move {joint}']['status'] == 'ok'
        assert 'told to go' in lines[f'move {joint}']['found']
    assert 'did the gripper of arm do that?' in lines['move finger_left']['found']


def test_what_does_not_fit_is_named_with_its_remedy(mock: Path, tmp_path: Path) -> None:
    robot = changed(
        tmp_path,
        cameras__top__topic='camera/side/image_raw',
        arms__arm__gripper__joint='finger',
        arms__arm__gripper__mimics={},
        simulation={},
        arms__arm__command__topic='other_controller/joint_trajectory',
        arms__arm__gripper__command={'interface': 'joint_trajectory', 'topic': 'gripper/commands'},
    )
    code, lines = doctor(robot, '--move')
    assert code == 1
    assert 'nobody publishes /camera/side/image_raw' in line(lines, 'camera top')['found']
    assert '/camera/top/image_raw' in line(lines, 'camera top')['found']
    assert line(lines, 'camera front')['status'] == 'ok'
    assert lines['joint names']['found'].startswith('finger did not come; beside them finger_left')
    assert lines['observation']['status'] == 'failed'
    command = lines['command other_controller/joint_trajectory']
    assert (command['status'], command['found']) == ('failed', 'nobody listens') and command['remedy']
    assert 'takes std_msgs/msg/Float64MultiArray, not' in lines['command gripper/commands']['found']
    assert lines['move']['found'].startswith('nothing was moved')


def test_joints_that_come_too_seldom_are_named(mock: Path, tmp_path: Path) -> None:
    robot = changed(tmp_path, state=[{'topic': 'joint_states', 'max_age_s': 0.001}])
    lines = found_here(robot)
    assert 'older than max_age_s 0.001 s at times' in line(lines, 'joint s')['found']


def test_a_second_commander_is_noticed_before_anything_moves(mock: Path) -> None:
    from trajectory_msgs.msg import JointTrajectory

    with spinning('rival') as (node, _):
        node.create_publisher(JointTrajectory, 'arm_controller/joint_trajectory', 10)
        lines = found_here(mock, move=True)
    assert lines['command arm_controller/joint_trajectory']['found'] == '/rival commands it already'
    assert lines['move']['status'] == 'failed'


def test_an_arm_that_does_not_follow_is_told(mock: Path) -> None:
    from std_srvs.srv import SetBool

    with spinning('tester') as (node, _):
        client = node.create_client(SetBool, 'arm_controller/set_active')
        assert client.wait_for_service(SURE_S)
        for active in (False, True):
            future = client.call_async(SetBool.Request(data=active))
            wait_until(future.done)
            if not active:
                lines = found_here(mock, move=True)
                assert 'is its controller active' in lines[f'move {JOINTS[0]}']['remedy']
                assert f'move {JOINTS[1]}' not in lines


@pytest.mark.parametrize(
    ('arguments', 'sentence'),
    [
        (['--embodiment', 'no_such_arm'], 'no contract has this name'),
        (['--embodiment', 'franka', '--move', '3'], '--move must be above 0 and at most 0.1 rad'),
        (['--embodiment', 'franka', '--seconds', '0'], '--seconds must be above 0'),
    ],
)
def test_what_is_asked_wrongly_is_told_at_once(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(['doctor', *arguments]) == 2
    assert sentence in capsys.readouterr().err
