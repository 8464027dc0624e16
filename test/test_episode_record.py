# SPDX-License-Identifier: Apache-2.0
"""The files of an episode: a bag that others read, videos that play, names that tell what is complete."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import yaml
from mcap.reader import make_reader
from point_env import PointEnv, ReplayPolicy, settings
from rosbags.rosbag2 import Reader

from openeta_ros.embodiment import load
from openeta_ros.envs import Sensors, StepResult
from openeta_ros.episodes import evaluate, files, record_demonstration, run_episode
from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.definitions import typestore
from openeta_ros.episodes.files import EpisodeWriter
from openeta_ros.episodes.record import CUSTOM_DATA
from openeta_ros.episodes.recording import facts
from openeta_ros.episodes.video import VideoFile
from openeta_ros.observation import decode_image


@pytest.fixture(scope='module')
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """The folder of an episode, and the rows that were seen live."""
    output = tmp_path_factory.mktemp('run')
    seen: list[Any] = []

    class Look:
        def episode_started(self, index: int, seed: int, note: str) -> None: ...
        def episode_ended(self, index: int, result: Any) -> None: ...
        def started(self, sensors: Sensors) -> None:
            seen.append((None, sensors))

        def chunk(self, actions: Any, action_type: str, stamp_ns: int, latency_ms: float) -> None:
            seen.append((np.array(actions), stamp_ns))

        def row(self, result: StepResult, sensors: Sensors) -> None:
            seen.append((result, sensors))

    evaluate(PointEnv(), ReplayPolicy(), settings(output, episodes=1), [Look()])
    return output / 'episodes' / '0', seen


def messages(folder: Path) -> dict[str, list[Any]]:
    """The messages of the bag by topic, read by rosbags from nothing but the file."""
    found: dict[str, list[Any]] = {}
    with Reader(folder / 'bag') as reader:
        for connection, stamp, data in reader.messages():
            message = typestore().deserialize_cdr(data, connection.msgtype)
            found.setdefault(connection.topic, []).append((stamp, message))
    return found


def test_the_bag_holds_the_contracts_topics_bit_for_bit(run: tuple[Path, list[Any]]) -> None:
    folder, seen = run
    sensors = [entry[1] for entry in seen if isinstance(entry[1], Sensors)]
    found = messages(folder)
    for camera in ('front', 'top'):
        recorded = found[f'/camera/{camera}/image_raw']
        assert [stamp for stamp, _ in recorded] == [moment.stamp_ns for moment in sensors]
        for (_, message), moment in zip(recorded, sensors, strict=True):
            assert np.array_equal(decode_image(message), moment.pictures[camera])
    for (_, message), moment in zip(found['/joint_states'], sensors, strict=True):
        assert dict(zip(message.name, message.position, strict=True)) == moment.positions


def test_the_bag_holds_chunks_and_row_results(run: tuple[Path, list[Any]]) -> None:
    folder, seen = run
    found = messages(folder)
    chunks = [(actions, stamp) for actions, stamp in seen if isinstance(actions, np.ndarray)]
    assert len(found['/policy/action_chunk']) == len(chunks) == 3
    for (_, message), (actions, stamp) in zip(found['/policy/action_chunk'], chunks, strict=True):
        array = np.frombuffer(message.actions.data, message.actions.dtype).reshape(message.actions.shape)
        assert np.array_equal(array, actions) and message.action_type == 'qpos' and message.rate_hz == 20
        assert message.observation_stamp.sec * 10**9 + message.observation_stamp.nanosec == stamp
    rows = [message for _, message in found['/env/step_result']]
    assert [row.step for row in rows] == list(range(1, 9))
    assert [row.success for row in rows] == [False] * 7 + [True] == [bool(row.reward) for row in rows]


def test_the_bag_says_what_the_episode_was(run: tuple[Path, list[Any]]) -> None:
    folder, _ = run
    metadata = yaml.safe_load((folder / 'bag' / 'metadata.yaml').read_text())['rosbag2_bagfile_information']
    assert (metadata['version'], metadata['storage_identifier']) == (9, 'mcap')
    assert metadata['relative_file_paths'] == ['bag.mcap'] and metadata['compression_mode'] == ''
    data = metadata['custom_data']
    assert set(data) == set(CUSTOM_DATA)
    assert data['contract'] == load('light_arm').path.read_text()
    assert json.loads(data['episode'])['success'] is True
    assert json.loads(data['settings'])['task'] == 'point'
    qos = {topic['topic_metadata']['name']: topic['topic_metadata']['offered_qos_profiles'][0] for topic in
           metadata['topics_with_message_count']}  # fmt: skip
    assert qos['/camera/front/image_raw']['reliability'] == 'best_effort'
    assert qos['/policy/action_chunk']['reliability'] == 'reliable'


def test_the_mcap_alone_is_read_by_the_mcap_library(run: tuple[Path, list[Any]]) -> None:
    folder, _ = run
    with (folder / 'bag' / 'bag.mcap').open('rb') as file:
        reader = make_reader(file)
        assert reader.get_header().profile == 'ros2'
        summary = reader.get_summary()
        assert summary is not None and summary.statistics is not None
        assert {chunk.compression for chunk in summary.chunk_indexes} == {'zstd'}
        assert sum(1 for _ in reader.iter_messages()) == summary.statistics.message_count
        assert 'openeta_msgs/msg/ActionChunk' in {schema.name for schema in summary.schemas.values()}
        first, last = reader.iter_metadata()
        assert (
            first.metadata['contract'] == load('light_arm').path.read_text()
            and 'episode' not in first.metadata
        )
        assert 'custom_data' in last.metadata['serialized_metadata']


def test_each_camera_has_a_video_of_every_moment(run: tuple[Path, list[Any]]) -> None:
    folder, seen = run
    sensors = [entry[1] for entry in seen if isinstance(entry[1], Sensors)]
    for camera in ('front', 'top'):
        with av.open(str(folder / f'{camera}.mp4')) as container:
            stream = container.streams.video[0]
            assert (stream.codec_context.name, stream.pix_fmt, stream.average_rate) == ('h264', 'yuv420p', 20)
            frames = [frame.to_ndarray(format='rgb24') for frame in container.decode(stream)]
        assert len(frames) == len(sensors)
        difference = frames[-1].astype(int) - sensors[-1].pictures[camera].astype(int)
        assert abs(difference).mean() < 5


def test_pictures_of_odd_size_are_filmed(tmp_path: Path) -> None:
    video = VideoFile(tmp_path / 'odd.mp4', 12.5)
    for value in (0, 100, 200):
        video.add(np.full((31, 33, 3), value, dtype=np.uint8))
    video.close()
    with av.open(str(tmp_path / 'odd.mp4')) as container:
        frames = [frame.to_ndarray(format='rgb24') for frame in container.decode(video=0)]
    assert [frame.shape for frame in frames] == [(32, 34, 3)] * 3
    assert [round(float(frame.mean()), -1) for frame in frames] == [0, 100, 200]


def test_the_folder_has_its_name_only_when_the_episode_is_complete(tmp_path: Path) -> None:
    env, policy = PointEnv(), ReplayPolicy()
    demonstration = record_demonstration(env, 0)
    writer = EpisodeWriter(tmp_path, 4, env.embodiment, {})
    run_episode(env, policy, 0, demonstration=demonstration, observers=[writer])
    assert [path.name for path in (tmp_path / 'episodes').iterdir()] == ['4.partial']
    files = writer.complete({'episode': '{}'})
    assert [path.name for path in (tmp_path / 'episodes').iterdir()] == ['4']
    assert (tmp_path / files.bag / 'metadata.yaml').is_file()
    assert all((tmp_path / path).is_file() for path in files.videos.values())


def test_an_abandoned_episode_is_readable_under_its_partial_name(tmp_path: Path) -> None:
    env = PointEnv()
    env.reset(0)
    writer = EpisodeWriter(tmp_path, 0, env.embodiment, {})
    writer.started(env.sensors)
    writer.abandon()
    writer.abandon()
    found = messages(tmp_path / 'episodes' / '0.partial')
    assert {topic: len(rows) for topic, rows in found.items()} == {
        '/camera/front/image_raw': 1,
        '/camera/top/image_raw': 1,
        '/joint_states': 1,
    }


def test_a_disk_that_fails_is_told_by_a_later_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = PointEnv()
    env.reset(0)
    writer = EpisodeWriter(tmp_path, 0, env.embodiment, {})

    def full(picture: object) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(writer._videos['front'], 'add', full)
    writer.started(env.sensors)
    with pytest.raises(OSError, match='No space left on device'):
        writer.complete({})
    assert [path.name for path in (tmp_path / 'episodes').iterdir()] == ['0.partial']


def test_the_runner_hands_rows_over_and_waits_for_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for the bag nor for a video, while as many rows wait as may."""
    env = PointEnv()
    env.reset(0)
    (result,) = env.chunk_step(env.expert()[:1], 'qpos')
    writer = EpisodeWriter(tmp_path, 0, env.embodiment, {})
    go, by = threading.Event(), set()

    def held(write: Callable[..., None]) -> Callable[..., None]:
        def wait(*arguments: Any) -> None:
            by.add(threading.current_thread())
            if threading.current_thread() is not threading.main_thread():  # else this test would hang
                go.wait()
            write(*arguments)

        return wait

    monkeypatch.setattr(writer._record, 'row', held(writer._record.row))
    for video in writer._videos.values():
        monkeypatch.setattr(video, 'add', held(video.add))
    rows = files.MAX_WAITING // 2 - 1
    for row in range(rows):
        writer.row(result, replace(env.sensors, stamp_ns=row + 1))
    go.set()
    folder = writer.complete({}).bag
    assert by == {writer._thread}
    with Bag(tmp_path / folder) as bag:
        assert bag.topics['/camera/front/image_raw'].messages == rows


def test_an_episode_that_is_killed_has_what_was_written_and_says_what_it_is(tmp_path: Path) -> None:
    """What a kill leaves is what the operating system has: the file as it lies there while it is written."""
    env = PointEnv()
    env.reset(0)
    contract = env.embodiment.path.read_text()
    writer = EpisodeWriter(
        tmp_path, 0, env.embodiment, {'contract': contract, 'settings': '{"task": "point"}'}
    )
    writer.started(env.sensors)
    for row in env.chunk_step(env.expert()[:6], 'qpos'):
        writer.row(row, env.sensors)
    file = tmp_path / 'episodes/0.partial/bag/bag.mcap'
    deadline = time.monotonic() + 120.0
    while not any(writer._record._folder.messages().values()):
        assert time.monotonic() < deadline, 'nothing was handed over'
        time.sleep(0.01)
    (tmp_path / 'killed/bag').mkdir(parents=True)
    (tmp_path / 'killed/bag/bag.mcap').write_bytes(file.read_bytes())
    writer.abandon()
    with Bag(tmp_path / 'killed', recover=True) as bag:
        assert sum(topic.messages or 0 for topic in bag.topics.values()) > 0
        assert facts(bag).contract == contract and facts(bag).settings == {'task': 'point'}
