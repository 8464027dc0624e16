# SPDX-License-Identifier: Apache-2.0
"""Bags of every kind are read whole and in order, or refused in one sentence that names the file."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard
from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
from rosbags.rosbag2 import CompressionMode
from streams import FRONT, JOINTS, MS, T0, TYPES, Message, bag, image, joints, recording

from openeta_ros.episodes.bag import Bag, decoder
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.recorded_qos import offered

TOPICS = (FRONT, JOINTS)


def stamps(path: Path, *, recover: bool = False) -> list[int]:
    """Return when each message was recorded, in ms since T0, in the order of reading."""
    with Bag(path, recover=recover) as opened:
        return [(message.log_ns - T0) // MS for message in opened.messages(list(opened.topics))]


def metadata(folder: Path, **changes: Any) -> None:
    """Change metadata.yaml."""
    path = folder / 'metadata.yaml'
    data = yaml.safe_load(path.read_text())
    data['rosbag2_bagfile_information'].update(changes)
    path.write_text(yaml.safe_dump(data))


def mcap(
    path: Path, messages: list[Message], *, chunk: int = 4000, chunking: bool = True, **options: Any
) -> Path:
    """Write a single MCAP file."""
    with path.open('wb') as file:
        writer = McapWriter(file, chunk_size=chunk, use_chunking=chunking, **options)
        writer.start(profile='ros2', library='test')
        channels: dict[str, int] = {}
        for topic, message, log_ns in messages:
            name = message.__msgtype__
            if topic not in channels:
                schema = writer.register_schema(name, 'ros2msg', b'')
                channels[topic] = writer.register_channel(topic, 'cdr', schema)
            data = bytes(TYPES.serialize_cdr(message, name))
            writer.add_message(channels[topic], log_ns, data, log_ns)
        writer.finish()
    return path


EXPECTED = sorted([k * 50 - 2 for k in range(20)] + [k * 50 for k in range(20)])


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
@pytest.mark.parametrize(
    'compression',
    [CompressionMode.NONE, CompressionMode.FILE, CompressionMode.MESSAGE, CompressionMode.STORAGE],
)
@pytest.mark.parametrize('version', [8, 9])
def test_every_storage_compression_and_version_is_read(
    tmp_path: Path, storage: str, compression: CompressionMode, version: int
) -> None:
    if (storage, compression) == ('sqlite3', CompressionMode.STORAGE):
        pytest.skip('SQLite has no compression of its own')
    path = bag(tmp_path / 'b', recording(20), storage=storage, compression=compression, version=version)
    assert stamps(path) == EXPECTED
    with Bag(path) as opened:
        decode, last = decoder(), list(opened.messages([FRONT]))[-1]
        assert not opened.notes and opened.topics[FRONT].messages == 20
    assert decode(last).data[0] == 19


@pytest.mark.parametrize('chunking', [True, False])
@pytest.mark.parametrize('compression', [CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD])
def test_single_mcap_files_are_read_with_and_without_chunks(
    tmp_path: Path, chunking: bool, compression: CompressionType
) -> None:
    path = mcap(tmp_path / 'x.mcap', recording(20), chunking=chunking, compression=compression)
    assert stamps(path) == EXPECTED


@pytest.mark.parametrize('chunking', [True, False])
def test_a_file_without_index_is_read_by_time_also_when_it_was_written_topic_by_topic(
    tmp_path: Path, chunking: bool
) -> None:
    by_topic = sorted(recording(20), key=lambda message: message[0])
    path = mcap(tmp_path / 'x.mcap', by_topic, chunking=chunking, use_statistics=False, repeat_channels=False)
    assert stamps(path) == EXPECTED
    with Bag(path) as opened:
        assert any('no index' in note for note in opened.notes)


def test_splits_are_merged_by_time_and_equal_times_keep_the_order_of_writing(tmp_path: Path) -> None:
    first = mcap(tmp_path / 'b_0.mcap', [(JOINTS, joints(T0, k), T0 + k * MS) for k in (5, 10)])
    twice = [(JOINTS, joints(T0, value), T0 + 12 * MS) for value in (1, 2, 3)]
    mcap(tmp_path / 'b_1.mcap', [(JOINTS, joints(T0, 3), T0 + 3 * MS), *twice])
    assert stamps(tmp_path) == [3, 5, 10, 12, 12, 12]
    with Bag(tmp_path) as opened:
        decode = decoder()
        values = [decode(message).position[2] for message in opened.messages([JOINTS])]
    assert values == [3, 5, 10, 1, 2, 3]
    assert first.name == 'b_0.mcap'


def test_equal_times_keep_the_order_of_writing_in_sqlite_without_an_index(tmp_path: Path) -> None:
    messages: list[Message] = [(JOINTS, joints(T0, k), T0 + (k // 5) * MS) for k in range(20)]
    path = bag(tmp_path / 'b', reversed(messages), storage='sqlite3')
    database = sqlite3.connect(path / 'b.db3')
    database.execute('DROP INDEX timestamp_idx')
    database.commit()
    database.close()
    with Bag(path) as opened:
        decode = decoder()
        values = [decode(message).position[2] for message in opened.messages([JOINTS])]
    assert values == [4, 3, 2, 1, 0, 9, 8, 7, 6, 5, 14, 13, 12, 11, 10, 19, 18, 17, 16, 15]


def test_metadata_is_not_needed_and_not_believed(tmp_path: Path) -> None:
    path = bag(tmp_path / 'b', recording(20), storage='sqlite3')
    metadata(path, storage_identifier='')
    assert stamps(path) == EXPECTED
    (path / 'metadata.yaml').rename(tmp_path / 'metadata.yaml')
    assert stamps(path) == EXPECTED
    with Bag(path) as opened:
        assert 'no metadata.yaml' in opened.notes[0]
    (path / 'metadata.yaml').write_text('rosbag2_bagfile_information: {version: 9, files: [}')
    assert stamps(path) == EXPECTED
    with Bag(path) as opened:
        assert 'cannot be read' in opened.notes[0]
    for text in ('{recorded: 2020-13-01}', '[' * 5000):
        (path / 'metadata.yaml').write_text(text)
        assert stamps(path) == EXPECTED
    shutil.copy(tmp_path / 'metadata.yaml', path)
    metadata(path, storage_identifier='mcap')
    with pytest.raises(BagError, match=r"names the storage 'mcap', but b\.db3 is 'sqlite3'"):
        Bag(path)


def test_wrong_quality_of_service_in_the_metadata_hides_no_message(tmp_path: Path) -> None:
    forever = QosTime(1, 0)
    quality = Qos(QosHistory.KEEP_LAST, 5, QosReliability.RELIABLE, QosDurability.VOLATILE, forever, forever,
                  QosLiveliness.AUTOMATIC, forever, False)  # fmt: skip
    path = bag(tmp_path / 'b', recording(20), qos=[quality])
    data = yaml.safe_load((path / 'metadata.yaml').read_text())
    for topic in data['rosbag2_bagfile_information']['topics_with_message_count']:
        topic['topic_metadata']['offered_qos_profiles'] = 'nonsense: ['
    (path / 'metadata.yaml').write_text(yaml.safe_dump(data))
    assert stamps(path) == EXPECTED


@pytest.mark.parametrize('name', ['a#b', 'a?b', 'a%41b'])
def test_what_a_database_offered_is_read_in_any_folder(name: str, tmp_path: Path) -> None:
    forever = QosTime(1, 0)
    best_effort, volatile = QosReliability.BEST_EFFORT, QosDurability.VOLATILE
    liveliness = QosLiveliness.AUTOMATIC, forever, False
    quality = Qos(QosHistory.KEEP_LAST, 5, best_effort, volatile, forever, forever, *liveliness)
    path = bag(tmp_path / 'plain', recording(20), storage='sqlite3', qos=[quality]).rename(tmp_path / name)
    (path / 'metadata.yaml').unlink()
    with Bag(path) as opened:
        assert not offered(opened)[JOINTS].reliable
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_counts_that_do_not_agree_are_told(tmp_path: Path) -> None:
    path = bag(tmp_path / 'b', recording(20))
    data = yaml.safe_load((path / 'metadata.yaml').read_text())
    data['rosbag2_bagfile_information']['topics_with_message_count'][0]['message_count'] = 30
    (path / 'metadata.yaml').write_text(yaml.safe_dump(data))
    with Bag(path) as opened:
        assert opened.notes == ['metadata.yaml counts 30 messages of /joint_states, and there are 20']


def test_paths_of_old_metadata_begin_with_the_folder(tmp_path: Path) -> None:
    path = bag(tmp_path / 'b', recording(20), storage='sqlite3')
    metadata(path, version=3, relative_file_paths=['b/b.db3'])
    moved = path.rename(tmp_path / 'renamed')
    assert stamps(moved) == EXPECTED


@pytest.mark.parametrize('entry', ['../other.db3', '/etc/hostname', 'a/../../other.db3', 'link.db3'])
def test_files_outside_of_the_folder_are_refused_before_they_are_opened(tmp_path: Path, entry: str) -> None:
    other = bag(tmp_path / 'other', recording(2), storage='sqlite3') / 'other.db3'
    path = bag(tmp_path / 'b', recording(2), storage='sqlite3')
    shutil.copy(other, tmp_path / 'other.db3')
    (path / 'link.db3').symlink_to(tmp_path / 'other.db3')
    metadata(path, relative_file_paths=[entry])
    with pytest.raises(BagError, match=f'lists {entry!r}, which is outside of its folder'):
        Bag(path)


def test_odd_times_and_contents_of_a_database_are_read_as_they_are(tmp_path: Path) -> None:
    path = bag(tmp_path / 'b', recording(3), storage='sqlite3')
    database = sqlite3.connect(path / 'b.db3')
    database.execute('UPDATE messages SET timestamp = ? WHERE id = 6', (2**63 - 1,))
    database.execute('UPDATE messages SET timestamp = -5, data = zeroblob(0) WHERE id = 1')
    database.execute("UPDATE messages SET data = 'text' WHERE id = 2")
    database.commit()
    database.close()
    with Bag(path) as opened:
        assert opened.span() == (-5, 2**63 - 1)
        found = list(opened.messages(TOPICS, *(opened.span() or ())))
        assert len(found) == 5 and len(list(opened.messages(TOPICS, -10, 2**70))) == 6
        with pytest.raises(BagError, match='these 0 bytes are no message in CDR'):
            decoder()(found[0])


def test_missing_splits_are_named(tmp_path: Path) -> None:
    path = bag(tmp_path / 'b', recording(2))
    metadata(path, relative_file_paths=['b.mcap', 'b_1.mcap', 'b_2.mcap'])
    with pytest.raises(BagError, match=r'lists b_1\.mcap, b_2\.mcap, which is not there'):
        Bag(path)


def test_a_truncated_file_is_refused_or_its_whole_chunks_are_recovered_when_asked(tmp_path: Path) -> None:
    whole = mcap(tmp_path / 'whole.mcap', recording(20), chunk=1000)
    data, cut = whole.read_bytes(), tmp_path / 'cut.mcap'
    cut.write_bytes(data[: len(data) // 2])
    with pytest.raises(BagError, match=r'cut\.mcap is truncated .* messages in it are whole'):
        Bag(cut)
    recovered = stamps(cut, recover=True)
    assert 0 < len(recovered) < 40 and recovered == EXPECTED[: len(recovered)]
    with Bag(cut, recover=True) as opened:
        assert opened.notes == [
            f'cut.mcap is truncated; recovered are {len(recovered)} messages that are whole'
        ]


def test_of_a_single_chunk_that_is_cut_nothing_is_recovered_and_that_is_said(tmp_path: Path) -> None:
    whole = mcap(tmp_path / 'whole.mcap', recording(20), chunk=10**9, compression=CompressionType.NONE)
    cut = tmp_path / 'cut.mcap'
    cut.write_bytes(whole.read_bytes()[:2000])
    for recover in (False, True):
        with pytest.raises(BagError, match=r'0 (whole )?messages'):
            Bag(cut, recover=recover)


def test_an_mcap_without_its_last_37_bytes_has_every_message(tmp_path: Path) -> None:
    whole = mcap(tmp_path / 'whole.mcap', recording(20))
    cut = tmp_path / 'cut.mcap'
    cut.write_bytes(whole.read_bytes()[:-37])
    assert stamps(cut) == EXPECTED


def test_a_chunk_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = mcap(
        tmp_path / 'x.mcap', recording(20), chunk=10**9, compression=CompressionType.NONE, enable_crcs=True
    )
    data = bytearray(path.read_bytes())
    data[1500] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(BagError, match=r'x\.mcap is damaged'):
        stamps(path)


def test_a_database_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = bag(tmp_path / 'b', recording(200), storage='sqlite3') / 'b.db3'
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BagError, match=r'b\.db3 is truncated or malformed'):
        Bag(path)


def test_messages_in_a_write_ahead_log_are_read(tmp_path: Path) -> None:
    path = bag(tmp_path / 'b', recording(20), storage='sqlite3') / 'b.db3'
    database = sqlite3.connect(path)
    database.execute('PRAGMA journal_mode=WAL')
    last = database.execute('SELECT max(id) FROM messages').fetchone()[0]
    database.execute(
        f'INSERT INTO messages SELECT {last} + 1, topic_id, {T0 + 5000 * MS}, data FROM messages WHERE id = 1'
    )
    database.commit()
    killed = tmp_path / 'killed'
    killed.mkdir()
    for file in path.parent.glob('b.db3*'):
        shutil.copy(file, killed)
    database.close()
    assert stamps(killed)[-1] == 5000


@pytest.mark.parametrize(
    ('content', 'text'),
    [
        (b'', 'is empty'),
        (b'#ROSBAG V2.0\n' + bytes(50), 'is a ROS 1 bag'),
        (b'anything else at all', 'is no bag'),
        (b'SQLite format 3\0' + bytes(84), 'cannot be read|malformed'),
        (b'\x89MCAP0\r\n', 'is truncated'),
    ],
)
def test_what_is_no_bag_is_refused_in_one_sentence(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / 'x.mcap'
    path.write_bytes(content)
    with pytest.raises(BagError, match=text) as refused:
        Bag(path)
    assert str(path) in str(refused.value) and '\n' not in str(refused.value)


def test_other_serialisations_are_refused_only_where_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / 'x.mcap'
    with path.open('wb') as file:
        writer = McapWriter(file)
        writer.start()
        schema = writer.register_schema('any/msg/Thing', 'jsonschema', b'{}')
        writer.add_message(writer.register_channel('/thing', 'json', schema), T0, b'{}', T0)
        schema = writer.register_schema('sensor_msgs/msg/JointState', 'ros2msg', b'')
        data = bytes(TYPES.serialize_cdr(joints(T0), 'sensor_msgs/msg/JointState'))
        writer.add_message(writer.register_channel('/joint_states', 'cdr', schema), T0, data, T0)
        writer.finish()
    with Bag(path) as opened:
        assert len(list(opened.messages([JOINTS]))) == 1
        with pytest.raises(BagError, match="topic /thing is serialised as 'json'"):
            list(opened.messages(['/thing']))


def test_a_file_compressed_as_a_whole_is_read_without_metadata(tmp_path: Path) -> None:
    whole = mcap(tmp_path / 'x.mcap', recording(20))
    folder = tmp_path / 'b'
    folder.mkdir()
    (folder / 'x.mcap.zstd').write_bytes(zstandard.compress(whole.read_bytes()))
    assert stamps(folder) == stamps(folder / 'x.mcap.zstd') == EXPECTED


def test_an_episode_is_its_folder_its_bag_or_its_file(tmp_path: Path) -> None:
    path = bag(tmp_path / 'bag', recording(20))
    (tmp_path / 'front.mp4').write_bytes(b'')
    assert stamps(tmp_path) == stamps(path) == stamps(path / 'bag.mcap') == EXPECTED
    with pytest.raises(BagError, match='no rosbag2 folder'):
        (tmp_path / 'empty').mkdir()
        Bag(tmp_path / 'empty')


def test_a_part_of_the_time_is_read(tmp_path: Path) -> None:
    for storage in ('mcap', 'sqlite3'):
        path = bag(tmp_path / storage, recording(20), storage=storage)
        with Bag(path) as opened:
            part = list(opened.messages([FRONT], T0 + 100 * MS, T0 + 200 * MS))
        assert [(message.log_ns - T0) // MS for message in part] == [100, 150]


def test_pictures_and_joints_are_the_same_bytes_in_every_storage(tmp_path: Path) -> None:
    written = bytes(TYPES.serialize_cdr(image(T0, 7), 'sensor_msgs/msg/Image'))
    for storage in ('mcap', 'sqlite3'):
        path = bag(tmp_path / storage, [(FRONT, image(T0, 7), T0)], storage=storage)
        with Bag(path) as opened:
            assert [message.data for message in opened.messages(TOPICS[:1])] == [written]


def in_splits(folder: Path, messages: list[Message], count: int) -> Path:
    """Write messages as so many splits, without metadata.yaml."""
    folder.mkdir()
    for number in range(count):
        part = messages[number * len(messages) // count : (number + 1) * len(messages) // count]
        mcap(folder / f'b_{number}.mcap', part)
    return folder


def test_what_a_killed_recorder_only_began_is_left_out_when_asked(tmp_path: Path) -> None:
    path = in_splits(tmp_path / 'b', recording(20), 3)
    whole = len(stamps(path))
    kept = (path / 'b_2.mcap').read_bytes()
    for rest in (b'', kept[:60]):
        (path / 'b_2.mcap').write_bytes(rest)
        with pytest.raises(BagError, match=r'b_2.mcap'):
            Bag(path)
        with Bag(path, recover=True) as opened:
            assert any('b_2.mcap' in note and 'left out' in note for note in opened.notes)
        assert 0 < len(stamps(path, recover=True)) < whole
    for file in path.iterdir():
        file.write_bytes(b'')
    with pytest.raises(BagError, match='holds nothing to recover'):
        Bag(path, recover=True)


def test_splits_that_are_not_there_are_told_without_metadata(tmp_path: Path) -> None:
    path = in_splits(tmp_path / 'b', recording(20), 12)
    with Bag(path) as opened:
        assert not any('missing' in note for note in opened.notes)
    (path / 'b_4.mcap').unlink()
    with Bag(path) as opened:
        assert 'by the numbers of b_0.mcap to b_11.mcap, splits are missing: 4' in opened.notes


def test_metadata_that_lists_no_files_is_not_believed(tmp_path: Path) -> None:
    path = bag(tmp_path / 'b', recording(20))
    metadata(path, relative_file_paths=[])
    assert stamps(path) == EXPECTED
    next(path.glob('*.mcap')).unlink()
    with pytest.raises(BagError, match=r'holds no .mcap and no .db3'):
        Bag(path)


def test_a_compressed_file_that_is_cut_is_refused_by_its_name(tmp_path: Path) -> None:
    plain = mcap(tmp_path / 'c.mcap', recording(20)).read_bytes()
    packed = zstandard.ZstdCompressor().compress(plain)
    path = tmp_path / 'd.mcap.zstd'
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(BagError, match=r'd.mcap.zstd cannot be unpacked: it is truncated'):
        Bag(path)
    path.write_bytes(zstandard.ZstdCompressor().compress(plain[: len(plain) // 2]))
    with pytest.raises(BagError, match=r'd.mcap.zstd is truncated'):
        Bag(path)
    path.write_bytes(b''.join(map(zstandard.ZstdCompressor().compress, (plain[:999], plain[999:]))))
    assert stamps(path) == EXPECTED


def test_records_that_are_no_records_are_refused_without_check_sums(tmp_path: Path) -> None:
    path = mcap(tmp_path / 'c.mcap', recording(20), compression=CompressionType.NONE, enable_crcs=False)
    data = bytearray(path.read_bytes())
    middle = len(data) * 2 // 5
    data[middle : middle + 3000] = bytes(3000)
    path.write_bytes(data)
    with pytest.raises(BagError, match=r'c.mcap is damaged at byte \d+: a record at byte .* is not whole'):
        stamps(path)


def test_types_are_known_without_the_folder_in_their_names(tmp_path: Path) -> None:
    path = tmp_path / 'c.mcap'
    with path.open('wb') as file:
        writer = McapWriter(file)
        writer.start(profile='ros2', library='test')
        schema = writer.register_schema('sensor_msgs/JointState', 'ros2msg', b'')
        channel = writer.register_channel(JOINTS, 'cdr', schema)
        message = joints(T0, elbow=0.5)
        writer.add_message(channel, T0, bytes(TYPES.serialize_cdr(message, message.__msgtype__)), T0)
        writer.finish()
    with Bag(path) as opened:
        assert opened.topics[JOINTS].message_type == 'sensor_msgs/msg/JointState'
        assert decoder()(next(opened.messages([JOINTS]))).position[1] == 0.5
