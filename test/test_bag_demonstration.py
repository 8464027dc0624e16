# SPDX-License-Identifier: Apache-2.0
"""A recorded bag becomes the arrays of a demonstration, and an account of what did not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from contracts import QUICK_ARM
from streams import (
    CONTRACT,
    FRONT,
    JOINTS,
    MS,
    T0,
    Message,
    S,
    bag,
    contract,
    header,
    image,
    joints,
    make,
    named,
    picture,
    pose,
    recording,
    transforms,
)

from openeta_ros.cli.main import main
from openeta_ros.embodiment import load
from openeta_ros.episodes import demonstration
from openeta_ros.episodes.account import Account
from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.bag_demonstration import convert
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.demonstration import Demonstration
from openeta_ros.episodes.npz import NpzFile


def converted(
    folder: Path, messages: list[Message], *changes: tuple[str, str], **options: Any
) -> tuple[Demonstration, Account]:
    """Return the demonstration of messages recorded in the order of their times."""
    path = bag(folder / 'recorded', sorted(messages, key=lambda message: message[2]))
    with Bag(path) as opened:
        account = convert(opened, contract(folder, *changes), folder / 'demo.npz', **options)
    return demonstration.load(folder / 'demo.npz'), account


def trajectory(joint_names: list[str], *points: tuple[int, list[float]]) -> Any:
    """Return a JointTrajectory of (ms from start, positions)."""
    made = [
        make(
            'trajectory_msgs/msg/JointTrajectoryPoint',
            positions=np.array(positions, dtype=np.float64),
            velocities=np.zeros(0),
            accelerations=np.zeros(0),
            effort=np.zeros(0),
            time_from_start=make('builtin_interfaces/msg/Duration', sec=0, nanosec=start * MS),
        )
        for start, positions in points
    ]
    name = 'trajectory_msgs/msg/JointTrajectory'
    return make(name, header=header(0), joint_names=joint_names, points=made)


TRAJECTORIES = ('endpose:', 'action: {source: [{topic: arm/joint_trajectory}]}\nendpose:')


def commanded(joint_names: list[str], *, simulated: bool) -> list[Message]:
    """Return a recording with a trajectory without stamp before the first picture, and from the fourth on."""
    messages: list[Message] = []
    for topic, message, log in recording(10):
        if simulated:
            message.header = header(log - T0 + 5 * S)
        messages.append((topic, message, log))
    for k in (0, *range(3, 10)):
        command = trajectory(joint_names, (0, [k / 50, -k / 50]))
        messages.append(('/arm/joint_trajectory', command, T0 + k * 50 * MS - 10 * MS))
    return messages


@pytest.mark.parametrize('simulated', [False, True])
def test_commands_without_stamp_are_in_force_when_they_come_in_whatever_time_was_recorded(
    tmp_path: Path, simulated: bool
) -> None:
    messages = commanded(['elbow', 'shoulder'], simulated=simulated)
    shown, account = converted(tmp_path, messages, TRAJECTORIES)
    np.testing.assert_allclose(shown.arrays['actions'][:, 1], np.array([0, 0, 3, 4, 5, 6, 7, 8, 9]) / 50)
    assert account.actions == {'source': '/arm/joint_trajectory', 'from_next_state': {'finger': 9}}
    told = 'actions from /arm/joint_trajectory; from the next state, in so many rows: finger 9'
    assert told in list(account.lines())


def test_commands_for_other_joints_are_told_and_the_actions_are_the_next_state(tmp_path: Path) -> None:
    messages = commanded(['arm_elbow', 'arm_shoulder'], simulated=False)
    shown, account = converted(tmp_path, messages, TRAJECTORIES)
    assert account.actions == {'source': 'next_state', 'from_next_state': 'all'} == shown.info['actions']
    told = 'the commands of /arm/joint_trajectory are for arm_elbow, arm_shoulder, and the joints of the '
    assert any(note.startswith(told) for note in account.notes)


def test_commands_stamped_in_another_time_are_told(tmp_path: Path) -> None:
    messages = commanded(['elbow', 'shoulder'], simulated=True)
    for topic, message, log in messages:
        if topic == '/arm/joint_trajectory':
            message.header = header(log)
    _, account = converted(tmp_path, messages, TRAJECTORIES)
    assert account.actions['source'] == 'next_state'
    assert any('in force at any row: they are stamped later than all' in note for note in account.notes)


def numbers(*values: float) -> Any:
    """Return a Float64MultiArray."""
    layout = make('std_msgs/msg/MultiArrayLayout', dim=[], data_offset=0)
    return make('std_msgs/msg/Float64MultiArray', layout=layout, data=np.array(values))


@pytest.mark.parametrize('rate', ['contract', 'clock'])
def test_a_recording_at_the_rate_of_the_contract_gives_each_picture_its_row(
    tmp_path: Path, rate: Any
) -> None:
    shown, account = converted(tmp_path, recording(30), rate=rate)
    arrays = shown.arrays
    assert arrays['frames_front'].shape == (30, 4, 6, 3) and arrays['frames_front'].dtype == np.uint8
    np.testing.assert_array_equal(arrays['frames_front'][:, 0, 0, 0], range(30))
    np.testing.assert_allclose(arrays['qpos'][:, 1], np.arange(30) / 100)
    np.testing.assert_array_equal(arrays['actions'], arrays['qpos'][1:])
    np.testing.assert_allclose(arrays['times'], np.arange(30) * 0.05)
    assert arrays['frequency'] == pytest.approx(20) and 'endpose' not in arrays
    assert shown.info['actions']['source'] == 'next_state' and shown.info['quaternion'] == 'wxyz'
    assert (account.rows, account.dropped, account.held_rows) == (30, 0, 0)
    ages = account.ages_ms['joint states (topic joint_states)']
    assert ages == pytest.approx({'p50': 2.0, 'max': 2.0})


def test_of_faster_pictures_those_nearest_to_the_rate_are_taken(tmp_path: Path) -> None:
    shown, account = converted(tmp_path, recording(61, period=33_333_334))
    np.testing.assert_allclose(np.diff(shown.arrays['times']), 0.05, atol=0.017)
    assert shown.arrays['times'][-1] == pytest.approx(2.0, abs=0.02)
    assert account.rows == 41 and account.surplus == 20 and account.dropped == 0
    assert len(np.unique(shown.arrays['frames_front'][:, 0, 0, 0])) == 41


def test_slower_pictures_are_held_as_long_as_the_contract_allows(tmp_path: Path) -> None:
    slow = [message for k, message in enumerate(recording(40)) if message[0] == JOINTS or k % 4 == 1]
    shown, account = converted(tmp_path, slow)
    colours = shown.arrays['frames_front'][:, 0, 0, 0]
    np.testing.assert_array_equal(colours[:8], [0, 0, 2, 2, 4, 4, 6, 6])
    np.testing.assert_allclose(shown.arrays['qpos'][:8, 1], np.arange(8) / 100)  # joints are not held back
    assert account.held_rows == 19


def test_a_gap_is_dropped_and_told_not_filled(tmp_path: Path) -> None:
    messages = [message for message in recording(60) if not T0 + 1 * S <= message[2] + 2 * MS < T0 + 2 * S]
    shown, account = converted(tmp_path, messages)
    assert shown.arrays['qpos'].shape[0] == account.rows == 20 + 1 + 20
    assert account.dropped == 19 and account.gaps['longest_s'] == pytest.approx(1.0)
    assert any('camera front' in reason and 'nothing within' in reason for reason in account.dropped_because)


def test_the_last_samples_of_a_stream_that_ends_hold_as_long_as_they_may(tmp_path: Path) -> None:
    messages = [message for message in recording(40) if message[0] == FRONT or message[2] < T0 + 500 * MS]
    shown, account = converted(tmp_path, messages, rate='clock')
    assert account.rows == 12 and account.dropped == 28  # the joints of 498 ms are 52 and 102 ms old then
    assert shown.arrays['times'][-1] == pytest.approx(0.55)
    stale = next(condition for condition in account.conditions if condition.kind == 'stale')
    assert 'joint states' in stale.stream and stale.count == 28 * 3 and stale.until_ns is None


def test_late_and_overtaken_messages_change_nothing(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    late = [
        (topic, message, log + int(random.integers(0, 300)) * MS) for topic, message, log in recording(60)
    ]
    shown, account = converted(tmp_path, late, rate='clock')
    assert account.rows == 60
    np.testing.assert_array_equal(shown.arrays['frames_front'][:, 0, 0, 0], range(60))
    np.testing.assert_allclose(shown.arrays['qpos'][:, 1], np.arange(60) / 100)


def test_zero_stamps_give_no_row_and_the_remedy_is_named_and_works(tmp_path: Path) -> None:
    zero = [
        (topic, image(0, k // 2) if topic == FRONT else joints(0, elbow=k // 2 / 100), log)
        for k, (topic, _, log) in enumerate(recording(21))
    ]
    with pytest.raises(BagError, match=r'0 rows; .*no stamp.*timeline: receive'):
        converted(tmp_path, zero)
    (tmp_path / 'again').mkdir()
    received = ('align: {clock: front,', 'align: {clock: front, timeline: receive,')
    shown, _ = converted(tmp_path / 'again', zero, received)
    np.testing.assert_allclose(shown.arrays['times'], np.arange(21) * 0.05)


def test_joints_of_a_machine_170_s_ahead_are_not_paired_and_that_is_said(tmp_path: Path) -> None:
    shifted = [
        (topic, joints(log + 170 * S) if topic == JOINTS else message, log)
        for topic, message, log in recording(200 * 20)
    ]
    with pytest.raises(BagError, match=r'0 rows; .*170\.0 s ahead of'):
        converted(tmp_path, shifted)


def test_one_stamp_that_is_wrong_costs_one_picture(tmp_path: Path) -> None:
    for name, days, told in (('ahead', 400, 'stamped far ahead of what came next'), ('behind', -400, 'late')):
        messages = recording(40)
        messages[21] = (FRONT, image(T0 + days * 86400 * S), messages[21][2])
        (tmp_path / name).mkdir()
        shown, account = converted(tmp_path / name, messages)
        assert (account.rows, account.held_rows, account.parts) == (40, 1, 1)
        assert account.topics[0].rejected == {told: 1}
        np.testing.assert_allclose(shown.arrays['qpos'][:, 1], np.arange(40) / 100)


def test_a_clock_that_is_set_ahead_is_followed(tmp_path: Path) -> None:
    later = [
        (topic, image(log + 60 * S, 50) if topic == FRONT else joints(log + 60 * S), log)
        for topic, _, log in recording(20, start=T0 + S)
    ]
    _, account = converted(
        tmp_path, [*recording(20), *later], ('clock: front,', 'clock: front, max_offset_s: 99,')
    )
    assert account.rows - account.held_rows == 40 and not account.topics[0].rejected


def test_negative_stamps_are_refused_by_name(tmp_path: Path) -> None:
    negative = [
        (topic, image(log - T0 - 5 * S) if topic == FRONT else joints(log - T0 - 5 * S), log)
        for topic, _, log in recording(5)
    ]
    with pytest.raises(BagError, match='5 x a negative stamp'):
        converted(tmp_path, negative)


def test_one_row_for_each_stamp_however_often_it_is_repeated(tmp_path: Path) -> None:
    messages = [*recording(10), (FRONT, image(T0 + 100 * MS, 99), T0 + 101 * MS)]
    shown, account = converted(tmp_path, messages, rate='clock')
    assert account.rows == 10 and shown.arrays['frames_front'][2, 0, 0, 0] in (2, 99)
    assert any('stamp repeated' in reason for reason in account.dropped_because)


def test_time_that_goes_back_is_told_and_the_rows_go_on(tmp_path: Path) -> None:
    again = [(topic, message, log + 10 * S) for topic, message, log in recording(30)]
    path = bag(tmp_path / 'recorded', [*recording(30), *again])
    with Bag(path) as opened:
        account = convert(opened, contract(tmp_path), tmp_path / 'demo.npz')
    times = demonstration.load(tmp_path / 'demo.npz').arrays['times']
    assert account.rows == 60 and account.parts == 2 and (np.diff(times) > 0).all()
    assert [one.kind for one in account.conditions] == ['set_back']


def test_a_picture_that_cannot_be_decoded_drops_its_row_by_name(tmp_path: Path) -> None:
    messages = recording(10)
    messages[9][1].encoding = 'nonsense'
    messages[13][1].data = messages[13][1].data[:5]
    _, account = converted(tmp_path, messages)
    assert account.rows == 8 and account.dropped == 2
    assert all(FRONT.lstrip('/') in reason for reason in account.dropped_because)


def test_actions_come_from_a_trajectory_topic_by_name_and_the_gripper_from_its_own(tmp_path: Path) -> None:
    messages = recording(10)
    for k in range(10):
        when = T0 + k * 50 * MS + 1 * MS
        messages.append(('/arm/joint_trajectory', trajectory(['elbow', 'shoulder'], (50, [k, -k])), when))
    messages.append(('/gripper', numbers(0.8), T0 + 220 * MS))
    source = 'action: {source: [{topic: arm/joint_trajectory}, {topic: /gripper, joints: [finger]}]}\n'
    shown, account = converted(tmp_path, messages, ('endpose:', f'{source}endpose:'))
    np.testing.assert_array_equal(shown.arrays['actions'][:, 0], -np.arange(9))
    np.testing.assert_array_equal(shown.arrays['actions'][:, 1], np.arange(9))
    np.testing.assert_array_equal(shown.arrays['actions'][:, 2], [1, 1, 1, 1, 0, 0, 0, 0, 0])
    assert shown.info['actions'] == {
        'source': '/arm/joint_trajectory, /gripper',
        'from_next_state': {'finger': 4},
    }
    assert account.topics[0].read == 10


def test_a_trajectory_of_several_points_is_followed(tmp_path: Path) -> None:
    points = trajectory(['shoulder', 'elbow'], (0, [0, 0]), (400, [8, 4]))
    messages = [*recording(10), ('/cmd', points, T0)]
    source = ('endpose:', 'action: {source: {topic: cmd}}\nendpose:')
    shown, _ = converted(tmp_path, messages, source)
    np.testing.assert_allclose(shown.arrays['actions'][:, 0], np.minimum(np.arange(1, 10), 8), atol=1e-6)


def test_a_command_topic_that_is_not_there_leaves_the_next_state_and_a_note(tmp_path: Path) -> None:
    source = ('endpose:', 'action: {source: {topic: cmd}}\nendpose:')
    shown, account = converted(tmp_path, recording(5), source)
    assert shown.info['actions']['source'] == 'next_state'
    assert 'the command topic cmd is not there' in account.notes[-1]


def test_a_gripper_beyond_its_end_is_an_action_within_it(tmp_path: Path) -> None:
    messages = [(JOINTS, joints(log, finger=0.81), log) if topic == JOINTS else (topic, message, log)
                for topic, message, log in recording(5)]  # fmt: skip
    shown, _ = converted(tmp_path, messages)
    assert (shown.arrays['actions'][:, 2] == 0).all() and (shown.arrays['qpos'][:, 2] < 0).all()


@pytest.mark.parametrize('source', ['{topic: /tool_pose}', 'tf'])
def test_tool_poses_come_from_a_topic_or_from_tf(tmp_path: Path, source: str) -> None:
    messages = recording(10)
    half = np.sqrt(0.5)
    for k in range(10):
        stamp, sign = T0 + k * 50 * MS - MS, (-1) ** k
        turn = (0, 0, sign * half, sign * half)
        messages.append(('/tool_pose', pose(stamp, (k, 2, 3), turn), stamp))
        messages.append(('/tf', transforms(stamp, ('base', 'hand', (k, 2, 3), turn)), stamp))
    messages.append(('/tf_static', transforms(0, ('hand', 'tool', (0, 0, 0), (0, 0, 0, 1))), T0 - 5 * MS))
    shown, _ = converted(tmp_path, messages, ('endpose: {source: none}', f'endpose: {{source: {source}}}'))
    endpose = shown.arrays['endpose']
    np.testing.assert_allclose(endpose[:, 0], range(10))
    np.testing.assert_allclose(np.abs(endpose[:, 3:7]), [[half, 0, 0, half]] * 10, atol=1e-12)
    assert (np.sum(endpose[1:, 3:7] * endpose[:-1, 3:7], axis=1) > 0).all()


def test_compressed_pictures_at_the_size_of_the_contract(tmp_path: Path) -> None:
    name, messages = 'sensor_msgs/msg/CompressedImage', []
    for topic, message, log in recording(10):
        if topic == FRONT:
            data = cv2.imencode('.png', picture(log % 250, (8, 12)))[1].reshape(-1)
            message = make(name, header=header(log), format='rgb8; png compressed bgr8', data=data)
        messages.append((topic, message, log))
    changed = ('image_raw}', 'image_raw, transport: compressed, size: [4, 6]}')
    shown, _ = converted(tmp_path, messages, changed)
    assert shown.arrays['frames_front'].shape == (10, 4, 6, 3)


@pytest.mark.parametrize(
    ('changes', 'text'),
    [
        ([('topic: joint_states', 'topic: odom')], r'has no topic odom; there is /joint_states \(sensor'),
        ([('image_raw}', 'image_raw, transport: compressed}')], 'is sensor_msgs/msg/Image, and the contract'),
    ],
)
def test_topics_that_are_not_there_or_of_another_type_are_named(
    tmp_path: Path, changes: list[tuple[str, str]], text: str
) -> None:
    with pytest.raises(BagError, match=text):
        converted(tmp_path, recording(3), *changes)
    assert not list(tmp_path.glob('demo*'))


def test_topics_without_a_leading_slash_are_the_same(tmp_path: Path) -> None:
    messages = [(topic.lstrip('/'), message, log) for topic, message, log in recording(5)]
    absolute = ('topic: joint_states', 'topic: /joint_states')
    assert converted(tmp_path, messages, absolute)[1].rows == 5


def test_a_part_is_taken_and_a_folder_holds_the_same_arrays(tmp_path: Path) -> None:
    path = bag(tmp_path / 'recorded', recording(60))
    robot = contract(tmp_path)
    for output in ('demo.npz', 'demo'):
        with Bag(path) as opened:
            convert(opened, robot, tmp_path / output, from_s=0.5, to_s=1.5)
    single, folder = (demonstration.load(tmp_path / name) for name in ('demo.npz', 'demo'))
    assert single.arrays.keys() == folder.arrays.keys()
    assert all(np.array_equal(single.arrays[name], folder.arrays[name]) for name in single.arrays)
    np.testing.assert_array_equal(single.arrays['frames_front'][[0, -1], 0, 0, 0], [10, 29])
    assert not list(tmp_path.glob('*.partial'))


def test_the_command_writes_and_accounts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bag(tmp_path / 'recorded', recording(30), storage='sqlite3')
    (tmp_path / 'robot.yaml').write_text(CONTRACT)
    arguments = ['demonstration', str(path), '--embodiment', str(tmp_path / 'robot.yaml')]
    assert main([*arguments, '--output', str(tmp_path / 'demo.npz'), '--json']) == 0
    account = json.loads(capsys.readouterr().out)
    assert account['rows'] == 30 and account['topics'][0]['messages'] == 30
    assert main([*arguments, '--output', str(tmp_path / 'new' / 'demo'), '--rate', 'clock']) == 0
    assert capsys.readouterr().out.startswith('30 rows; 0 dropped\n')
    (tmp_path / 'kept.npz').mkdir()
    assert main([*arguments, '--output', str(tmp_path / 'kept.npz')]) == 2
    assert 'exists and is no demonstration' in capsys.readouterr().err
    assert main([*arguments[:1], str(tmp_path / 'nothing'), *arguments[2:], '--output', 'x.npz']) == 2
    (path / 'recorded.db3').write_bytes(b'')
    assert main([*arguments, '--output', str(tmp_path / 'x.npz')]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and 'is empty (0 bytes)' in told[1]


def test_joint_names_that_are_wrong_are_counted_for_their_topic(tmp_path: Path) -> None:
    messages = [*recording(10), (JOINTS, named(T0 + 220 * MS, [], [1, 2, 3]), T0 + 220 * MS)]
    _, account = converted(tmp_path, messages)
    assert {topic.topic: topic.rejected for topic in account.topics} == {FRONT: {}, JOINTS: {'no names': 1}}


def test_an_episode_of_an_evaluation_gives_the_demonstration_that_it_replayed(tmp_path: Path) -> None:
    pytest.importorskip('mujoco')
    arguments = [
        'eval',
        '--env',
        'mujoco',
        '--embodiment',
        QUICK_ARM,
        '--transport',
        'local',
        '--task',
        'reach',
    ]
    assert main([*arguments, '--episodes', '1', '--output', str(tmp_path / 'run')]) == 0
    with Bag(tmp_path / 'run' / 'episodes' / '0') as opened:
        convert(opened, load(QUICK_ARM), tmp_path / 'demo.npz')
    shown = demonstration.load(tmp_path / 'demo.npz')
    assert shown.info['actions'] == {'source': '/policy/action_chunk', 'from_next_state': {}}
    assert shown.success and shown.info['instruction']
    given = ['--episodes', '1', '--demonstration', str(tmp_path / 'run' / 'episodes' / '0')]
    assert main([*arguments, *given, '--output', str(tmp_path / 'again')]) == 0
    results = [json.loads((tmp_path / run / 'results.json').read_text()) for run in ('run', 'again')]
    assert [run['episodes'][0]['success'] for run in results] == [True, True]


@pytest.mark.parametrize('rate', ['contract', 'clock'])
@pytest.mark.parametrize('part', [{}, {'from_s': 0.31, 'to_s': 1.62}])
def test_every_byte_is_written_once_where_nothing_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: Any, part: dict[str, float]
) -> None:
    moved: list[int] = []
    move = NpzFile._move
    monkeypatch.setattr(
        NpzFile, '_move', lambda self, capacity: (moved.append(capacity), move(self, capacity))
    )
    for count, period in ((40, 50 * MS), (43, 49_999_999), (41, 50_000_001)):
        folder = tmp_path / str(count)
        folder.mkdir()
        converted(folder, recording(count, period=period), rate=rate, **part)
    assert not moved


def test_joints_at_10_khz_are_paired_as_slower_ones_are(tmp_path: Path) -> None:
    messages = [message for message in recording(20) if message[0] == FRONT]
    stamps = range(T0 - 20 * MS, T0 + 1000 * MS, MS // 10)
    messages += [(JOINTS, joints(stamp, elbow=(stamp - T0) / S), stamp) for stamp in stamps]
    shown, account = converted(tmp_path, messages)
    assert (account.rows, account.dropped) == (20, 0)
    np.testing.assert_allclose(shown.arrays['qpos'][:, 1], np.arange(20) * 0.05)


def test_static_transforms_hold_from_the_beginning_however_late_they_were_recorded(tmp_path: Path) -> None:
    straight = [0.0, 0, 0, 1]
    messages = recording(40)
    messages += [
        ('/tf', transforms(T0 + k * 50 * MS, ('link', 'tool', [0, 0, k], straight)), T0 + k * 50 * MS - MS)
        for k in range(40)
    ]
    late = T0 + 1500 * MS
    messages.append(('/tf_static', transforms(T0, ('base', 'link', [1, 0, 0], straight)), late))
    change = ('{source: none}', '{source: tf}')
    shown, account = converted(tmp_path, messages, change)
    assert (account.rows, account.dropped) == (40, 0)
    np.testing.assert_allclose(shown.arrays['endpose'][:, :3], [[1, 0, k] for k in range(40)])
    assert not any('static transforms changed' in note for note in account.notes)
    (tmp_path / 'part').mkdir()
    part, account = converted(tmp_path / 'part', messages, change, to_s=1.0)
    assert account.rows == 20 and part.arrays['endpose'][0, 0] == 1
    (tmp_path / 'changed').mkdir()
    messages.append(('/tf_static', transforms(T0, ('base', 'link', [2, 0, 0], straight)), late + 100 * MS))
    shown, account = converted(tmp_path / 'changed', messages, change)
    assert [shown.arrays['endpose'][k, 0] for k in (0, 15, 39)] == [1, 1, 2]
    assert any('static transforms changed (link)' in note for note in account.notes)


def test_pictures_of_two_cameras_on_one_topic_are_told(tmp_path: Path) -> None:
    messages = recording(20)
    _, account = converted(tmp_path, messages)
    assert not any('pictures of the frames' in note for note in account.notes)
    for number, message in enumerate(message for message in messages if message[0] == FRONT):
        message[1].header.frame_id = ('left', 'right')[number % 2]
    (tmp_path / 'two').mkdir()
    _, account = converted(tmp_path / 'two', messages)
    assert any('pictures of the frames left, right' in note for note in account.notes)


def test_of_a_camera_with_another_transport_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(BagError, match=r'is sensor_msgs/msg/Image, .* \(transport: raw of the camera'):
        converted(tmp_path, recording(5), ('image_raw}', 'image_raw, transport: compressed}'))


def test_a_picture_without_a_stamp_is_dropped_for_that(tmp_path: Path) -> None:
    messages = recording(20)
    messages[1][1].header.stamp.sec = messages[1][1].header.stamp.nanosec = 0
    _, account = converted(tmp_path, messages)
    assert (account.rows, account.dropped) == (19, 1)
    assert account.dropped_because == {'camera front (topic camera/front/image_raw): no stamp': 1}


@pytest.mark.parametrize('limits', ['[[-1, 1], [-1, 1]]', 'from_description'])
def test_degrees_are_told_without_a_robot_description(tmp_path: Path, limits: str) -> None:
    messages = recording(20)
    for message in messages:
        if message[0] == JOINTS:
            message[1].position[2] = 40.0
    change = ('position: [[-1, 1], [-1, 1]]', f'position: {limits}')
    _, account = converted(tmp_path, messages, change)
    told = [note for note in account.notes if 'far outside' in note]
    assert len(told) == 1 and told[0].startswith('joint shoulder is far outside of its limits')


@pytest.mark.parametrize('lag', [0.9, -0.9])
def test_a_stream_that_was_recorded_late_is_paired_as_far_as_clocks_may_differ(
    tmp_path: Path, lag: float
) -> None:
    late = JOINTS if lag > 0 else FRONT
    messages = [
        (topic, message, log_ns + (round(abs(lag) * S) if topic == late else 0))
        for topic, message, log_ns in recording(60)
    ]
    shown, account = converted(tmp_path, messages)
    assert (account.rows, account.dropped) == (60, 0)
    np.testing.assert_allclose(shown.arrays['qpos'][:, 1], np.arange(60) / 100)


@pytest.mark.parametrize(('step', 'told'), [(1, True), (0, False)])
def test_a_camera_that_freezes_while_the_robot_moves_is_told(tmp_path: Path, step: int, told: bool) -> None:
    messages: list[Message] = []
    for k in range(40):
        stamp = T0 + k * 50 * MS
        messages.append((JOINTS, joints(stamp - 2 * MS, elbow=step * k / 100), stamp - 2 * MS))
        messages.append((FRONT, image(stamp, k if k < 10 else 10), stamp))
    _, account = converted(tmp_path, messages)
    notes = [note for note in account.notes if 'frozen' in note.replace(str(tmp_path), '')]
    text = 'camera front sent the same picture 30 times, from 0.50 to 1.95 s, while a joint moved by 0.29'
    assert notes == ([f'{text}: it may be frozen'] if told else [])
