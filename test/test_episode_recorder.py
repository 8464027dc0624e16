# SPDX-License-Identifier: Apache-2.0
"""Recordings of live topics: what others read of them, what a kill or a full disk leaves, what is lost."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from mcap.reader import make_reader
from mcap.records import Message
from mcap.stream_reader import StreamReader
from rosbags.rosbag2 import Reader
from streams import T0, TYPES, S, image, joints

from openeta_ros.cli.main import main as openeta
from openeta_ros.episodes import recorder
from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.recorded_qos import offered
from openeta_ros.episodes.recorder import Recording, Sequences
from openeta_ros.episodes.repair import repair
from openeta_ros.episodes.rosbag2_folder import profile

CHILD = Path(__file__).parent / 'recorder_child.py'
BEST_EFFORT, RELIABLE = profile(reliability='best_effort', depth=5), profile(reliability='reliable')
LATCHED = profile(reliability='reliable', durability='transient_local', depth=1)


def start(folder: Path, **others: Any) -> Recording:
    return Recording(
        folder, {'contract': 'text', 'recorder': '{}'}, {'wall_ns': 1}, **{'compression': 'none', **others}
    )


def put(recording: Recording, topic: str, message: Any, log_ns: int, sequence: int | None = None) -> bytes:
    data = bytes(TYPES.serialize_cdr(message, message.__msgtype__))
    recording.take(topic, data, log_ns=log_ns, publish_ns=log_ns - 1000, sequence=sequence)
    return data


def filled(folder: Path, **others: Any) -> tuple[Path, list[tuple[str, int, bytes]]]:
    """Return a recording of three topics, and what was put into it."""
    recording = start(folder, **others)
    recording.add_topic('/camera/front/image_raw', 'sensor_msgs/msg/Image', [BEST_EFFORT])
    recording.add_topic('/joint_states', 'sensor_msgs/msg/JointState', [RELIABLE, BEST_EFFORT])
    recording.add_topic('/quiet', 'sensor_msgs/msg/JointState', [LATCHED])
    sent = []
    for k in range(60):
        stamp = T0 + k * S // 10
        for topic, message in (
            ('/camera/front/image_raw', image(stamp, k)),
            ('/joint_states', joints(stamp)),
        ):
            sent.append((topic, stamp + 5, put(recording, topic, message, stamp + 5, k + 1)))
    ended = recording.end({'success': True}, {'wall_ns': 2})
    assert not ended.failure and ended.path == folder
    return folder, sent


@pytest.mark.parametrize('compression', ['none', 'zstd'])
def test_independent_readers_find_what_was_taken(tmp_path: Path, compression: str) -> None:
    folder, sent = filled(tmp_path / 'one', compression=compression)
    with (folder / 'one.mcap').open('rb') as file:
        reader = make_reader(file, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None and summary.statistics is not None
        found = [(channel.topic, one.log_time, one.data) for _, channel, one in reader.iter_messages()]
        assert {chunk.compression for chunk in summary.chunk_indexes} == {compression.replace('none', '')}
        assert summary.statistics.message_count == len(found)
        assert [one.publish_time - one.log_time for _, _, one in reader.iter_messages()] == [-1000] * len(
            found
        )
        assert [record.name for record in reader.iter_metadata()] == ['openeta_ros', 'rosbag2']
    assert found == sent
    with Reader(folder) as rosbags:
        assert [(one.topic, stamp, bytes(data)) for one, stamp, data in rosbags.messages()] == sent
        assert {one.topic: one.msgcount for one in rosbags.connections} == {
            '/camera/front/image_raw': 60, '/joint_states': 60, '/quiet': 0
        }  # fmt: skip
    with Bag(folder) as bag:
        assert [(one.topic, one.log_ns, one.data) for one in bag.messages(list(bag.topics))] == sent
        quality = offered(bag)
    assert not quality['/camera/front/image_raw'].reliable and quality['/joint_states'].reliable
    assert quality['/quiet'].transient_local and quality['/quiet'].depth == 1


def test_metadata_has_the_fields_that_rosbag2_reads_with_the_types_it_expects(tmp_path: Path) -> None:
    """rosbag2 0.26 (Jazzy) throws at a missing field, or one of another type."""
    folder, sent = filled(tmp_path / 'one')
    data = yaml.safe_load((folder / 'metadata.yaml').read_text())['rosbag2_bagfile_information']
    assert set(data) == {
        'version', 'storage_identifier', 'relative_file_paths', 'starting_time', 'duration', 'message_count',
        'topics_with_message_count', 'compression_format', 'compression_mode', 'files', 'custom_data',
        'ros_distro',
    }  # fmt: skip
    assert (data['version'], data['storage_identifier'], data['relative_file_paths']) == (
        9,
        'mcap',
        ['one.mcap'],
    )
    span = {
        'starting_time': {'nanoseconds_since_epoch': sent[0][1]},
        'duration': {'nanoseconds': sent[-1][1] - sent[0][1]},
        'message_count': len(sent),
    }
    assert {name: data[name] for name in span} == span and data['files'] == [{'path': 'one.mcap', **span}]
    topics = {topic['topic_metadata']['name']: topic for topic in data['topics_with_message_count']}
    assert topics['/quiet']['message_count'] == 0
    metadata = topics['/joint_states']['topic_metadata']
    assert metadata['serialization_format'] == 'cdr' and metadata['type_description_hash'].startswith(
        'RIHS01_'
    )
    first, second = metadata['offered_qos_profiles']
    forever = {'sec': 9223372036, 'nsec': 854775807}
    assert first == {
        'history': 'keep_last', 'depth': 10, 'reliability': 'reliable', 'durability': 'volatile',
        'deadline': forever, 'lifespan': forever, 'liveliness': 'automatic',
        'liveliness_lease_duration': forever, 'avoid_ros_namespace_conventions': False,
    }  # fmt: skip
    assert second['reliability'] == 'best_effort' and '&' not in (folder / 'metadata.yaml').read_text()
    assert all(isinstance(value, str) for value in data['custom_data'].values())
    account = json.loads(data['custom_data']['account'])
    assert account['clocks'] == {'begin': {'wall_ns': 1}, 'end': {'wall_ns': 2}}
    front = account['topics']['/camera/front/image_raw']
    assert front['messages'] == 60 and front['lost'] == {'unreceived': 0, 'unqueued': 0, 'unwritten': 0}
    assert front['reception_after_header_s'] == [5e-9, 5e-9]
    assert json.loads(data['custom_data']['episode']) == {'success': True}


def test_messages_that_never_came_are_found_by_their_numbers() -> None:
    one = Sequences()
    assert [one.lost_before(number, 1) for number in (7, 8, 11, 12, 13, 20)] == [0, 0, 2, 0, 0, 6]
    assert [one.lost_before(number, 1) for number in (1, 2, 4)] == [0, 0, 1]  # its publisher began anew
    two = Sequences()
    assert [two.lost_before(number, 2) for number in (100, 3, 101, 4, 103, 5, 8)] == [0, 0, 0, 0, 1, 0, 2]


def test_what_is_dropped_because_the_disk_is_slow_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, 'QUEUE_BYTES', 1000)
    go = threading.Event()
    recording = start(tmp_path / 'slow')
    recording.add_topic('/joint_states', 'sensor_msgs/msg/JointState', [RELIABLE])
    write = recording._folder.write
    monkeypatch.setattr(recording._folder, 'write', lambda *a, **k: (go.wait(), write(*a, **k)))
    for k in range(100):
        put(recording, '/joint_states', joints(T0 + k), T0 + k, k + 1)
    lost = recording.lost
    assert 0 < lost < 100 and any(f'{lost} messages are lost' in worry for worry in recording.worries())
    go.set()
    ended = recording.end({}, {})
    assert ended.topics['/joint_states'].messages == 100 - lost and not ended.failure
    assert any(f'{lost} messages were dropped: the disk is too slow' in line for line in ended.lines())


def child(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def numbers(path: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    with Bag(path) as bag:
        for one in bag.messages(list(bag.topics)):
            found.setdefault(one.topic, []).append(struct.unpack_from('<q', one.data)[0])
    return found


def test_a_killed_recording_has_all_that_was_handed_over_and_its_contract(tmp_path: Path) -> None:
    chance = random.Random(1)
    processes = [child(tmp_path / str(kill)) for kill in range(3)]
    for kill, process in enumerate(processes):
        assert process.stdout is not None
        said = [process.stdout.readline()]  # from here on it writes
        time.sleep(chance.uniform(0.0, 0.5))
        process.kill()
        said += process.stdout.readlines()
        process.wait()
        folder = tmp_path / str(kill)
        partial = tmp_path / f'{kill}.partial'
        assert partial.is_dir() and not folder.exists()
        with (partial / f'{kill}.mcap').open('rb') as file:  # mcap's own reader, to where the file ends
            whole: Counter[int] = Counter()
            try:
                for record in StreamReader(file).records:
                    if isinstance(record, Message):
                        whole[record.channel_id] += 1
            except Exception:
                pass
        account = repair(partial, tmp_path / f'{kill}_repaired')
        kept = numbers(tmp_path / f'{kill}_repaired')
        assert sum(account.messages.values()) == sum(map(len, kept.values())) == whole.total()
        assert whole.total() >= int([line for line in said if line.endswith('\n')][-1])
        assert kept['/small'] == list(range(len(kept['/small'])))
        assert kept['/large'] == [7 * k for k in range(len(kept['/large']))]
        with Bag(tmp_path / f'{kill}_repaired') as bag:
            assert bag.custom_data == {'contract': 'a contract'}
        with pytest.raises(FileExistsError, match='openeta repair'):
            start(folder)


def test_a_file_that_may_not_grow_ends_the_recording_readable_and_the_loss_is_told(tmp_path: Path) -> None:
    process = child(tmp_path / 'full', '--messages', 700, '--file-limit', 3_000_000)
    output, _ = process.communicate()
    assert process.returncode == 1 and 'the end is missing: ' in output and 'the disk failed' in output
    assert not (tmp_path / 'full').exists()
    repair(tmp_path / 'full.partial', tmp_path / 'whole')
    kept = numbers(tmp_path / 'whole')
    lost = sum(int(line.split()[1]) for line in output.splitlines() if 'the disk failed' in line)
    assert sum(map(len, kept.values())) == 700 + 100 - lost and kept['/small'] == list(
        range(len(kept['/small']))
    )


def test_a_full_disk_leaves_room_for_the_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A disk of 8 MB, mounted where nobody else sees it."""
    disk, results = tmp_path / 'disk', tmp_path / 'results'
    disk.mkdir()
    command = (
        f'mount -t tmpfs -o size=8m none {disk} || exit 99; '
        f'{sys.executable} {CHILD} {disk}/full --messages 2000; code=$?; cp -r {disk} {results}; exit $code'
    )
    if shutil.which('unshare') is None:
        pytest.skip('no unshare')
    done = subprocess.run(['unshare', '-rm', 'sh', '-c', command], capture_output=True, text=True)
    if 'unshare' in done.stderr or done.returncode == 99:
        pytest.skip(f'no disk can be mounted here: {done.stderr}')
    assert done.returncode == 1 and 'No space left on device' in done.stdout, done
    with (results / 'full.partial/full.mcap').open('rb') as file:
        summary = make_reader(file).get_summary()
    assert summary is not None and summary.statistics is not None and summary.statistics.message_count > 500
    assert openeta(['show', str(results / 'full.partial'), '--json']) == 0
    shown = json.loads(capsys.readouterr().out)
    account = shown['facts']['account']
    assert 'No space left on device' in ' '.join(account['troubles'])
    for topic in shown['topics']:
        entry = account['topics'][topic['topic']]
        assert entry['messages'] == topic['messages'] and entry['lost']['unwritten'] > 0
