# SPDX-License-Identifier: Apache-2.0
"""`openeta repair`: files that were cut, damaged or lost their metadata."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.reader import make_reader
from mcap.records import Channel
from mcap.writer import Writer as McapWriter
from recorded import recorded
from rosbags.rosbag2 import Reader, StoragePlugin, Writer

from openeta_ros.cli.main import main
from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.definitions import typestore


@pytest.fixture(scope='module')
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp('repair') / 'out') / 'episodes/0/bag'


def messages(path: Path) -> list[tuple[str, int, bytes]]:
    with Bag(path) as opened:
        return [(one.topic, one.log_ns, bytes(one.data)) for one in opened.messages(list(opened.topics))]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(['repair', *arguments, '--json']) == 0
    return json.loads(capsys.readouterr().out)


def test_of_a_cut_file_every_whole_chunk_is_kept(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = (bag / 'bag.mcap').read_bytes()
    with (bag / 'bag.mcap').open('rb') as file:
        summary = make_reader(file).get_summary()
    assert summary is not None and len(summary.chunk_indexes) > 3
    ends = [chunk.chunk_start_offset + chunk.chunk_length for chunk in summary.chunk_indexes]
    every = messages(bag)
    for cut in (*(end + extra for end in ends[1:] for extra in (-1, 0, 1)), len(whole) - 37):
        (tmp_path / 'cut.mcap').write_bytes(whole[:cut])
        shutil.rmtree(tmp_path / 'cut_repaired', ignore_errors=True)
        account = run(capsys, str(tmp_path / 'cut.mcap'))
        kept = messages(tmp_path / 'cut_repaired')
        chunks = sum(end <= cut for end in ends)
        assert account['files']['cut.mcap']['chunks'] == chunks
        assert sum(account['messages'].values()) == len(kept)
        assert kept == sorted(kept, key=lambda one: one[1]) and set(kept) <= set(every)
        assert len(kept) < len(every) or chunks == len(ends)
    assert (tmp_path / 'cut.mcap').read_bytes() == whole[:-37]


def test_other_readers_open_what_is_repaired_by_its_index(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'cut.mcap').write_bytes((bag / 'bag.mcap').read_bytes()[:-2000])
    run(capsys, str(tmp_path / 'cut.mcap'))
    kept = messages(tmp_path / 'cut_repaired')
    with (tmp_path / 'cut_repaired' / 'cut.mcap').open('rb') as file:
        reader = make_reader(file, validate_crcs=True)
        summary = reader.get_summary()
        assert summary is not None and summary.statistics is not None
        assert summary.statistics.message_count == len(kept)
        found = [(channel.topic, one.log_time, one.data) for _, channel, one in reader.iter_messages()]
    assert sorted(found) == sorted(kept)
    with Reader(tmp_path / 'cut_repaired') as rosbags:
        assert rosbags.message_count == len(kept)
        assert sorted((one.topic, stamp, bytes(data)) for one, stamp, data in rosbags.messages()) == sorted(
            kept
        )
        qos = {one.topic: one.ext.offered_qos_profiles[0].reliability.name for one in rosbags.connections}
    assert qos['/camera/front/image_raw'] == 'BEST_EFFORT' and qos['/policy/action_chunk'] == 'RELIABLE'


def test_a_damaged_chunk_is_left_out_and_those_after_it_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / 'bad.mcap').open('wb') as file:
        writer = McapWriter(file, chunk_size=400)
        writer.start('ros2')
        schema = writer.register_schema('std_msgs/msg/String', 'ros2msg', b'string data')
        channel = writer.register_channel('/chatter', 'cdr', schema)
        for stamp in range(30):
            writer.add_message(channel, stamp, bytes(100), stamp)
        writer.finish()
    data = bytearray((tmp_path / 'bad.mcap').read_bytes())
    with (tmp_path / 'bad.mcap').open('rb') as file:
        summary = make_reader(file).get_summary()
    assert summary is not None
    second = summary.chunk_indexes[1]
    data[second.chunk_start_offset + second.chunk_length - 20] ^= 0xFF
    (tmp_path / 'bad.mcap').write_bytes(data)
    account = run(capsys, str(tmp_path / 'bad.mcap'), '--output', str(tmp_path / 'good'))
    file_account = account['files']['bad.mcap']
    assert file_account['lost_chunks'] == 1 and file_account['cut_at'] is None
    assert file_account['lost_messages'] == sum(
        second.message_start_time <= stamp <= second.message_end_time for stamp in range(30)
    )
    assert file_account['messages'] == 30 - file_account['lost_messages'] == len(messages(tmp_path / 'good'))


def test_messages_outside_of_chunks_are_kept_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / 'plain.mcap').open('wb') as file:
        writer = McapWriter(file, use_chunking=False)
        writer.start('ros2')
        channel = writer.register_channel(
            '/chatter', 'cdr', writer.register_schema('std_msgs/msg/String', 'ros2msg', b'string data')
        )
        for stamp in range(10):
            writer.add_message(channel, stamp, bytes(100), stamp)
        length = file.tell()
    (tmp_path / 'plain.mcap').write_bytes((tmp_path / 'plain.mcap').read_bytes()[: length - 150])
    account = run(capsys, str(tmp_path / 'plain.mcap'))
    assert account['messages'] == {'/chatter': 8}


def test_topics_without_messages_are_kept_though_they_stand_only_in_the_old_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / 'quiet.mcap').open('wb') as file:
        writer = McapWriter(file)
        writer.start('ros2')
        schema = writer.register_schema('std_msgs/msg/String', 'ros2msg', b'string data')
        writer.add_message(writer.register_channel('/chatter', 'cdr', schema), 5, bytes(8), 5)
        writer.finish()
    data = (tmp_path / 'quiet.mcap').read_bytes()
    end = bytes((Opcode.DATA_END, 4, 0, 0, 0, 0, 0, 0, 0))
    at = data.index(end) + len(end) + 4  # where the index begins
    builder = RecordBuilder()
    Channel(2, '/quiet', 'cdr', {}, 1).write(builder)
    (tmp_path / 'quiet.mcap').write_bytes(data[:at] + builder.end() + data[at:])
    account = run(capsys, str(tmp_path / 'quiet.mcap'))
    assert account['messages'] == {'/chatter': 1, '/quiet': 0}


@pytest.mark.parametrize('storage', list(StoragePlugin))
def test_metadata_is_made_anew(
    tmp_path: Path, storage: StoragePlugin, capsys: pytest.CaptureFixture[str]
) -> None:
    types = typestore()
    with Writer(tmp_path / 'bag', version=9, storage_plugin=storage) as writer:
        writer.set_custom_data('key', 'value')
        connection = writer.add_connection('/chatter', 'std_msgs/msg/String', typestore=types)
        for stamp in range(5):
            message = types.types['std_msgs/msg/String'](data=str(stamp))
            writer.write(connection, 10 + stamp, types.serialize_cdr(message, 'std_msgs/msg/String'))
    before = yaml.safe_load((tmp_path / 'bag/metadata.yaml').read_text())['rosbag2_bagfile_information']
    (tmp_path / 'bag/metadata.yaml').unlink()
    run(capsys, str(tmp_path / 'bag'), '--output', str(tmp_path / 'good'))
    after = yaml.safe_load((tmp_path / 'good/metadata.yaml').read_text())['rosbag2_bagfile_information']
    same = ('version', 'storage_identifier', 'relative_file_paths', 'message_count', 'duration',
            'starting_time', 'files', 'topics_with_message_count', 'compression_mode')  # fmt: skip
    for metadata in (before, after):
        for topic in metadata['topics_with_message_count']:
            del topic['topic_metadata']['type_description_hash']  # not every writer puts it into the file too
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    if storage is StoragePlugin.MCAP:  # which holds its custom data itself
        assert after['custom_data'] == {'key': 'value'}
    assert messages(tmp_path / 'good') == messages(tmp_path / 'bag')


def test_what_cannot_be_repaired_is_refused_in_one_sentence_and_leaves_nothing(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (bag / 'bag.mcap').open('rb') as file:
        summary = make_reader(file).get_summary()
    assert summary is not None
    inside = summary.chunk_indexes[0].chunk_start_offset + 100
    database = tmp_path / 'whole'
    with Writer(database, version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        connection = writer.add_connection('/chatter', 'std_msgs/msg/String', typestore=typestore())
        writer.write(connection, 1, bytes(20_000))
    broken = {
        'one.mcap': ((bag / 'bag.mcap').read_bytes()[:inside], '0 messages in it are whole'),
        'empty.mcap': (b'', 'is empty (0 bytes)'),
        'noise.mcap': (np.random.default_rng(0).bytes(500), 'neither as an MCAP nor as an SQLite file'),
        'cut.db3': (next(database.glob('*.db3')).read_bytes()[:9000], 'truncated or malformed'),
    }
    for name, (content, words) in broken.items():
        folder = tmp_path / name.split('.')[0]
        folder.mkdir()
        (folder / name).write_bytes(content)
        assert main(['repair', str(folder / name)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith('openeta repair: ') and words in line
        assert [file.name for file in folder.iterdir()] == [name]
    assert main(['repair', str(tmp_path / 'absent.mcap')]) == 2
    assert main(['repair', str(tmp_path / 'cut' / 'cut.db3'), '--output', str(tmp_path)]) == 2


def test_of_a_folder_what_was_only_begun_is_left_out_and_told(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / 'splits'
    folder.mkdir()
    content = (bag / 'bag.mcap').read_bytes()
    for name, part in {'b_0.mcap': content, 'b_1.mcap': content[:60], 'b_2.mcap': b''}.items():
        (folder / name).write_bytes(part)
    account = run(capsys, str(folder))
    assert messages(tmp_path / 'splits_repaired') == messages(bag)
    assert [note.split(' ')[:2] for note in account['notes']] == [['left', 'out:']] * 2
    assert any('b_1.mcap' in note for note in account['notes'])
    assert any('b_2.mcap is empty' in note for note in account['notes'])


def test_a_file_is_repaired_whatever_its_name_ends_with(
    bag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'drive.mcap.active').write_bytes((bag / 'bag.mcap').read_bytes()[:-2000])
    run(capsys, str(tmp_path / 'drive.mcap.active'), '--output', str(tmp_path / 'repaired'))
    assert messages(tmp_path / 'repaired')


def test_a_database_is_copied_beside_the_journal_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Writer(tmp_path / 'b', version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        connection = writer.add_connection('/chatter', 'std_msgs/msg/String', typestore=typestore())
        writer.write(connection, 1, bytes(16))
    (database,) = (tmp_path / 'b').glob('*.db3')
    database.with_name(f'{database.name}-journal').write_bytes(
        b'\xd9\xd5\x05\xf9\x20\xa1\x63\xd7' + bytes(600)
    )
    run(capsys, str(tmp_path / 'b'), '--output', str(tmp_path / 'repaired'))
    assert messages(tmp_path / 'repaired') == [('/chatter', 1, bytes(16))]
