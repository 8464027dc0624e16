# SPDX-License-Identifier: Apache-2.0
"""`openeta export`: what lies in the data sets is what was seen and commanded."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
from recorded import recorded
from streams import CONTRACT, MS, T0, S, bag, recording

from openeta_ros.cli.main import main
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.demonstration import load
from openeta_ros.episodes.lerobot import LeRobotWriter
from openeta_ros.episodes.lerobot_stats import PictureStats, of_columns, together


@pytest.fixture(scope='module')
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp('export') / 'out', episodes=2)


@pytest.fixture(scope='module')
def arrays(output: Path) -> list[Any]:
    assert main(['export', *episodes(output), '--format', 'npz', '--output', str(output / 'npz')]) == 0
    return [load(file).arrays for file in sorted((output / 'npz').iterdir())]


@pytest.fixture(scope='module')
def data_set(output: Path) -> Path:
    assert main(['export', *episodes(output), '--output', str(output / 'lerobot')]) == 0
    return output / 'lerobot'


def episodes(output: Path) -> list[str]:
    return [str(output / 'episodes' / str(index)) for index in range(2)]


def table(path: Path) -> Any:
    return pq.read_table(path).to_pylist()


def frames(path: Path) -> list[tuple[float, np.ndarray]]:
    with av.open(str(path)) as container:
        return [(frame.time, frame.to_ndarray(format='rgb24')) for frame in container.decode(video=0)]


def test_npz_files_are_demonstrations(arrays: list[Any]) -> None:
    assert [len(one['actions']) for one in arrays] == [8, 8]
    assert arrays[0]['frames_front'].shape == (9, 240, 320, 3)


def test_a_lerobot_data_set_holds_every_frame_with_the_action_that_followed(
    data_set: Path, arrays: list[Any]
) -> None:
    rows = table(data_set / 'data/chunk-000/file-000.parquet')
    assert [row['index'] for row in rows] == list(range(16))
    assert [row['episode_index'] for row in rows] == [0] * 8 + [1] * 8
    assert [row['frame_index'] for row in rows] == [*range(8), *range(8)]
    assert np.allclose([row['timestamp'] for row in rows[8:]], np.arange(8) / 20)
    for name, key in (('qpos', 'observation.state'), ('endpose', 'observation.endpose')):
        seen = np.concatenate([one[name][:-1] for one in arrays])
        assert np.array_equal(np.array([row[key] for row in rows], np.float32), seen.astype(np.float32))
    commanded = np.concatenate([one['actions'] for one in arrays]).astype(np.float32)
    assert np.array_equal(np.array([row['action'] for row in rows], np.float32), commanded)


def test_its_pictures_lie_where_it_says(data_set: Path, arrays: list[Any]) -> None:
    found = frames(data_set / 'videos/observation.images.front/chunk-000/file-000.mp4')
    assert len(found) == 16
    for episode in table(data_set / 'meta/episodes/chunk-000/file-000.parquet'):
        index, start = episode['episode_index'], episode['videos/observation.images.front/from_timestamp']
        assert start == pytest.approx(index * 0.4)
        for row in range(8):
            time_s, decoded = found[round(start * 20) + row]
            assert time_s == pytest.approx(start + row / 20, abs=1e-6)
            assert abs(decoded.astype(int) - arrays[index]['frames_front'][row].astype(int)).mean() < 6


def test_it_says_what_it_is(data_set: Path) -> None:
    info = json.loads((data_set / 'meta/info.json').read_text())
    assert (info['codebase_version'], info['fps'], info['total_episodes'], info['total_frames']) == (
        'v3.0',
        20,
        2,
        16,
    )
    assert info['features']['action']['names'] == [
        'shoulder_yaw', 'shoulder_pitch', 'elbow', 'wrist_roll', 'wrist_pitch', 'wrist_yaw', 'finger_left'
    ]  # fmt: skip
    (task,) = table(data_set / 'meta/tasks.parquet')
    assert task == {'task_index': 0, '__index_level_0__': 'bring the first joint to its goal'}
    stats = json.loads((data_set / 'meta/stats.json').read_text())
    assert set(stats) == set(info['features'])
    source = json.loads((data_set / 'meta/openeta_ros.json').read_text())
    assert source['contract'].startswith('# Our own arm')
    assert [one['episodes'] for one in source['sources']] == [[0, 1], [1, 2]]


def test_parquet_files_hold_pictures_bit_for_bit(output: Path, arrays: list[Any]) -> None:
    assert main(['export', *episodes(output), '--format', 'parquet', '--output', str(output / 'pq')]) == 0
    file = output / 'pq' / 'episode_000001.parquet'
    rows = table(file)
    for index, row in enumerate(rows):
        data = np.frombuffer(row['frames_top']['bytes'], np.uint8)
        assert np.array_equal(cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1], arrays[1]['frames_top'][index])
        assert row['action'] == list(arrays[1]['actions'][index])
        assert row['timestamp'] == arrays[1]['times'][index]
    assert len(rows) == 8
    assert json.loads(pq.read_metadata(file).metadata[b'openeta_ros'])['episode']['seed'] == 1


def test_a_lerobot_data_set_becomes_bags_again(
    data_set: Path, arrays: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ['export', str(data_set), '--format', 'mcap', '--output', str(tmp_path / 'bags')]
    assert main(arguments) == 2
    assert main([*arguments, '--embodiment', 'franka_genesis']) == 1
    assert 'rows of franka_genesis are [8]' in capsys.readouterr().err
    assert main([*arguments, '--embodiment', 'light_arm']) == 0
    bags = [str(tmp_path / f'bags/episodes/{index}') for index in range(2)]
    assert main(['export', *bags, '--format', 'npz', '--output', str(tmp_path / 'npz')]) == 0
    for index, file in enumerate(sorted((tmp_path / 'npz').iterdir())):
        again = load(file)
        assert again.info['instruction'] == 'bring the first joint to its goal'
        assert len(again.arrays['qpos']) == 8  # the frames; to the last of them nothing follows
        for name in ('qpos', 'actions'):
            count = len(again.arrays[name])
            assert np.allclose(again.arrays[name], arrays[index][name][:count], atol=1e-6)
        difference = again.arrays['frames_top'].astype(int) - arrays[index]['frames_top'][:8].astype(int)
        assert abs(difference).mean(axis=(1, 2, 3)).max() < 6


def test_a_recording_with_a_gap_becomes_two_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'robot.yaml').write_text(CONTRACT)
    bag(tmp_path / 'bag', [*recording(10), *recording(10, start=T0 + 30 * 50 * MS)])
    arguments = ['export', str(tmp_path / 'bag'), '--output', str(tmp_path / 'set')]
    assert main([*arguments, '--embodiment', str(tmp_path / 'robot.yaml')]) == 1
    assert 'carries no instruction' in capsys.readouterr().err
    arguments += ['--embodiment', str(tmp_path / 'robot.yaml'), '--instruction', 'Do it.']
    assert main(arguments) == 0
    lengths = [row['length'] for row in table(tmp_path / 'set/meta/episodes/chunk-000/file-000.parquet')]
    assert lengths == [10, 9]  # 10 pictures and one held, 10 pictures; the last of each has no action
    rows = table(tmp_path / 'set/data/chunk-000/file-000.parquet')
    assert [row['frame_index'] for row in rows] == [*range(10), *range(9)]


def test_a_recording_in_which_time_went_back_becomes_two_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'robot.yaml').write_text(CONTRACT)
    again = [(topic, message, log_ns + 3 * S) for topic, message, log_ns in recording(40)]
    bag(tmp_path / 'bag', [*recording(50), *again])
    arguments = ['export', str(tmp_path / 'bag'), '--embodiment', str(tmp_path / 'robot.yaml')]
    assert main([*arguments, '--instruction', 'Do it.', '--output', str(tmp_path / 'set')]) == 0
    assert '2 episodes, 88 frames' in capsys.readouterr().out
    lengths = [row['length'] for row in table(tmp_path / 'set/meta/episodes/chunk-000/file-000.parquet')]
    assert lengths == [49, 39]
    actions = [row['action'] for row in table(tmp_path / 'set/data/chunk-000/file-000.parquet')]
    assert actions[48][1] == pytest.approx(0.49) and actions[49][1] == pytest.approx(0.01)


def test_what_cannot_be_exported_is_named_and_the_rest_is(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'noise.mcap').write_bytes(bytes(100))
    good, bad = episodes(output)[0], str(tmp_path / 'noise.mcap')
    assert main(['export', good, bad, '--output', str(tmp_path / 'set')]) == 1
    assert f'openeta export: {bad} is left out: ' in capsys.readouterr().err
    assert len(table(tmp_path / 'set/data/chunk-000/file-000.parquet')) == 8
    assert main(['export', bad, '--output', str(tmp_path / 'none')]) == 1
    assert main(['export', good, '--output', str(tmp_path / 'set')]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ['noise.mcap', 'set']


def test_what_was_written_before_a_recording_turned_out_damaged_is_told(
    output: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'robot.yaml').write_text(CONTRACT)
    messages = [*recording(10), *recording(10, start=T0 + 30 * 50 * MS)]
    good, bad = bag(tmp_path / 'good', messages), bag(tmp_path / 'bad', messages)
    frame, count = LeRobotWriter.frame, itertools.count()

    def damaged(self: LeRobotWriter, *arguments: Any) -> None:
        if next(count) == 19 + 12:
            raise BagError('damaged at byte 7')
        frame(self, *arguments)

    monkeypatch.setattr(LeRobotWriter, 'frame', damaged)
    arguments = ['export', str(good), str(bad), '--output', str(tmp_path / 'set'), '--instruction', 'Do it.']
    assert main([*arguments, '--embodiment', str(tmp_path / 'robot.yaml')]) == 1
    told = capsys.readouterr()
    assert 'bad is left out: damaged at byte 7' in told.err
    assert f'1 episodes of {bad} are in it all the same' in told.out
    lengths = [row['length'] for row in table(tmp_path / 'set/meta/episodes/chunk-000/file-000.parquet')]
    assert lengths == [10, 9, 10]
    assert len(frames(tmp_path / 'set/videos/observation.images.front/chunk-000/file-000.mp4')) == 29


def test_the_statistics_of_parts_together_are_those_of_the_whole() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 2))
    whole, parts = of_columns(rows), together([of_columns(rows[:100]), of_columns(rows[100:])])
    for name in ('min', 'max', 'mean', 'std', 'count'):
        assert np.allclose(whole[name], parts[name])
    pictures = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    stats = PictureStats()
    for one in pictures:
        stats.add(one)
    sampled = pictures[:, ::8, ::8].reshape(-1, 3) / 255
    assert np.allclose(stats.figures()['mean'].reshape(-1), sampled.mean(axis=0))
    assert np.allclose(stats.figures()['std'].reshape(-1), sampled.std(axis=0))
    assert np.allclose(stats.figures()['max'].reshape(-1), sampled.max(axis=0))


def test_the_real_lerobot_opens_it(data_set: Path, arrays: list[Any]) -> None:
    """Where lerobot is installed; its own environment is another one than ours."""
    datasets = pytest.importorskip('lerobot.datasets.lerobot_dataset')
    opened = datasets.LeRobotDataset('test/set', root=data_set)
    assert (opened.num_episodes, opened.num_frames, opened.fps) == (2, 16, 20)
    for index in (0, 7, 8, 15):
        episode, row = divmod(index, 8)
        frame = opened[index]
        assert frame['task'] == 'bring the first joint to its goal'
        assert np.allclose(frame['action'].numpy(), arrays[episode]['actions'][row], atol=1e-6)
        assert np.allclose(frame['observation.state'].numpy(), arrays[episode]['qpos'][row], atol=1e-6)
        picture = frame['observation.images.top'].numpy().transpose(1, 2, 0) * 255
        assert abs(picture - arrays[episode]['frames_top'][row]).mean() < 6


@pytest.mark.parametrize('pattern', ['meta/episodes/*/*.parquet', 'data/*/*.parquet', 'videos/*/*/*.mp4'])
@pytest.mark.parametrize('content', [b'junk' * 100, None])
def test_a_data_set_with_a_damaged_file_is_refused_in_one_sentence_and_leaves_nothing(
    data_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pattern: str, content: bytes | None
) -> None:
    broken = tmp_path / 'set'
    shutil.copytree(data_set, broken)
    file = next(broken.glob(pattern))
    if content is None:
        content = file.read_bytes()[:600]
    file.write_bytes(content)
    capsys.readouterr()
    arguments = ['--format', 'mcap', '--embodiment', 'light_arm', '--output', str(tmp_path / 'bags')]
    assert main(['export', str(broken), *arguments]) == 1
    told = capsys.readouterr().err
    assert told.startswith('openeta export: ') and len(told.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ['set']
