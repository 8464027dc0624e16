# SPDX-License-Identifier: Apache-2.0
"""A robot that was recorded in a namespace is found there, with its description; near misses are named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from contracts import QUICK_ARM, contract, written
from streams import CONTRACT, T0, S, bag, header, image, joints, make, named, recording

from openeta_ros.cli import eval
from openeta_ros.cli.main import main
from openeta_ros.embodiment import Kinematics, load
from openeta_ros.episodes import demonstration

ARM = load('light_arm')


def recorded(folder: Path, *, namespace: str = 'left_arm', description: str = '') -> Path:
    """Write a bag of the light arm in a namespace."""
    messages = []
    if description:
        text = ARM.description_file().read_text(encoding='utf-8').replace('</robot>', '<gz:x a="1"/></robot>')
        messages.append((f'/{namespace}/{description}', make('std_msgs/msg/String', data=text), T0 - 5 * S))
    for k in range(10):
        stamp = T0 + k * S // 20
        values = 0.1 * np.arange(len(ARM.wire_joints)) + k / 100
        messages.append((f'/{namespace}/joint_states', named(stamp, ARM.wire_joints, values), stamp))
        messages += [
            (f'/{namespace}/{camera.topic}', image(stamp, k), stamp) for camera in ARM.cameras.values()
        ]
    return bag(folder / 'recorded', messages)


def converted(folder: Path, path: Path, *options: str, **changes: object) -> int:
    data = {**contract('light_arm'), **changes}
    robot = written(data, folder).path
    return main(
        [
            'demonstration',
            str(path),
            '--embodiment',
            str(robot),
            '--output',
            str(folder / 'demo.npz'),
            *options,
        ]
    )


@pytest.mark.parametrize('description', [{'topic': 'robot_description'}, {'parameter': 'robot_description'}])
def test_relative_topics_and_the_description_are_found_in_the_namespace(
    tmp_path: Path, description: dict[str, str]
) -> None:
    path = recorded(tmp_path, description='robot_description')
    assert converted(tmp_path, path, '--namespace', '/left_arm', '--from', '4', description=description) == 0
    arrays = demonstration.load(tmp_path / 'demo.npz').arrays
    endpose = Kinematics(ARM).forward('arm', arrays['qpos'][0, :-1])
    assert arrays['endpose'].shape[0] == 10
    assert np.array_equal(arrays['endpose'][0, :3], endpose[:3])


def test_a_namespace_that_was_not_named_is_suggested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(tmp_path)
    assert converted(tmp_path, path) == 1
    told = capsys.readouterr().err
    assert 'has no topic camera/front/image_raw; there is /left_arm/camera/front/image_raw' in told
    assert '(--namespace left_arm finds it there)' in told
    assert converted(tmp_path, path, '--namespace', 'right_arm') == 1
    told = capsys.readouterr().err
    assert 'has no topic camera/front/image_raw in the namespace right_arm' in told
    assert '(--namespace left_arm finds it there)' in told
    path = bag(tmp_path / 'plain', recording(3))
    assert converted(tmp_path, path, '--namespace', 'left_arm') == 1
    assert '(--namespace / finds it there)' in capsys.readouterr().err


def test_a_description_that_was_not_recorded_is_named_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, topic = recorded(tmp_path), {'topic': 'robot_description'}
    options = ('--namespace', 'left_arm')
    assert converted(tmp_path, path, *options, description=topic) == 1
    told = capsys.readouterr().err
    assert 'has no topic robot_description in the namespace left_arm' in told and 'description.file' in told
    assert converted(tmp_path, path, *options, '--json', description=topic, endpose={'source': 'none'}) == 0
    assert 'has no topic robot_description' in ' '.join(json.loads(capsys.readouterr().out)['notes'])


def test_an_evaluation_shows_what_was_recorded_in_a_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    carried_out = []
    monkeypatch.setattr(eval, '_run', lambda settings, *_: carried_out.append(settings) or 0)
    path, out = recorded(tmp_path), tmp_path / 'out'
    arguments = ['eval', '--env', 'mujoco', '--task', 'reach', '--embodiment', QUICK_ARM,
                 '--transport', 'local', '--output', str(out)]  # fmt: skip
    shown = ['--demonstration', str(path)]
    assert main([*arguments, *shown]) == 2
    assert '(--namespace left_arm finds it there)' in capsys.readouterr().err and not carried_out
    assert main([*arguments, *shown, '--namespace', 'left_arm']) == 0
    (settings,) = carried_out
    assert settings.demonstration == str(out / 'demonstration.npz')
    made = demonstration.load(out / 'demonstration.npz')
    assert made.info['bag'] == str(path) and made.arrays['qpos'].shape == (10, 7)
    assert main([*arguments, '--namespace', 'left_arm']) == 2
    assert '--namespace is of a recording, and --demonstration expert is none' in capsys.readouterr().err


def test_a_topic_of_two_types_gives_the_messages_of_one(tmp_path: Path) -> None:
    other = make('std_msgs/msg/Header', stamp=header(T0).stamp, frame_id='x')
    messages = [*recording(10)]
    path = bag(tmp_path / 'recorded', messages)
    second = bag(tmp_path / 'second', [('/joint_states', other, T0 + 70_000_000), *recording(1)[1:]])
    folder = tmp_path / 'both'
    folder.mkdir()
    (path / 'recorded.mcap').rename(folder / 'a_0.mcap')
    (second / 'second.mcap').rename(folder / 'a_1.mcap')
    (tmp_path / 'robot.yaml').write_text(CONTRACT)
    arguments = ['demonstration', str(folder), '--embodiment', str(tmp_path / 'robot.yaml')]
    assert main([*arguments, '--output', str(tmp_path / 'demo.npz')]) == 0
    shown = demonstration.load(tmp_path / 'demo.npz')
    assert shown.arrays['qpos'].shape == (10, 3)
    notes = shown.info['account']['notes']
    assert any(
        '/joint_states has two types' in note and 'read is /joint_states (sensor' in note for note in notes
    )


def test_a_clock_that_is_set_by_years_is_one_gap(tmp_path: Path) -> None:
    before = [('/joint_states', joints(k * S // 20), T0 + k * S // 20) for k in range(1, 10)]
    before += [('/camera/front/image_raw', image(k * S // 20, k), T0 + k * S // 20) for k in range(1, 10)]
    messages = sorted([*before, *recording(10, start=T0 + S)], key=lambda message: message[2])
    (tmp_path / 'robot.yaml').write_text(CONTRACT)
    path = bag(tmp_path / 'recorded', messages)
    arguments = ['demonstration', str(path), '--embodiment', str(tmp_path / 'robot.yaml')]
    assert main([*arguments, '--output', str(tmp_path / 'demo.npz')]) == 0
    shown = demonstration.load(tmp_path / 'demo.npz')
    assert shown.info['account']['rows'] == 21 and shown.info['account']['gaps']['count'] == 1
    assert any('a gap of' in reason for reason in shown.info['account']['dropped_because'])


@pytest.mark.parametrize('seconds', ['nan', 'inf', '-1', '1.7e18', 'x'])
def test_seconds_that_are_no_part_of_a_recording_are_refused(tmp_path: Path, seconds: str) -> None:
    path = bag(tmp_path / 'recorded', recording(3))
    with pytest.raises(SystemExit) as refused:
        converted(tmp_path, path, f'--from={seconds}')
    assert refused.value.code == 2
