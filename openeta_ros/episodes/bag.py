# SPDX-License-Identifier: Apache-2.0
"""Recorded bags: what is in one, and its messages in the order in which they were recorded.

rosbags' own reader of bag directories is not used: it goes by what metadata.yaml says of quality of
service (0.11.9 yields nothing, without a word, where that text differs from the storage's), reads split
files one after the other, and cannot do without metadata.yaml. Here each file is opened by what it is, and
the files are merged by time.
"""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from openeta_ros.episodes.bag_files import ZSTD, bag_files, missing_splits, plain, unpacked
from openeta_ros.episodes.bag_metadata import METADATA, BagError, BagMetadata, read_metadata
from openeta_ros.observation import ObservationError
from openeta_ros.observation.cdr import Decode, message_decoder
from openeta_ros.observation.cdr_common import CommonReader

# What files begin with, and what they are.
STORAGES = {b'\x89MCAP0\r\n': 'mcap', b'SQLite format 3\0': 'sqlite3'}
# How CDR is called; some writers leave it out.
CDR = ('cdr', '')


@dataclass(frozen=True)
class Topic:
    """A topic of a bag.

    `messages` is the storage's own count; None where only reading tells.
    """

    name: str
    message_type: str
    serialization: str
    messages: int | None

    @property
    def text(self) -> str:
        """Its name and type, for errors and notes."""
        other = '' if self.serialization in CDR else f', {self.serialization}'
        return f'{self.name} ({self.message_type or "of no type"}{other})'


class Recorded(NamedTuple):
    """One message: `data` is its CDR encoding (perhaps a view of a larger piece of the file), `log_ns` the
    time of its recording."""

    topic: str
    message_type: str
    log_ns: int
    data: bytes | memoryview


class Storage(Protocol):
    """One file of a bag. `notes` are sentences about what is odd with it."""

    notes: list[str]

    def topics(self) -> list[Topic]:
        """Return what is in it."""

    def messages(self, topics: Collection[Topic], start_ns: int, stop_ns: int) -> Iterator[Recorded]:
        """Yield the messages of these topics and types recorded in start <= time < stop, by time; equal times
        as they were written."""

    def span(self) -> tuple[int, int] | None:
        """Return the times of the first and the last message; None when there is none, or it is not known."""

    def close(self) -> None:
        """Close the file."""


class Bag:
    """A bag that is open for reading; a context manager.

    Attributes:
        path: its folder or file.
        topics: by name; of a topic with several types the one in CDR with most messages.
        notes: sentences about what is odd with it, and was worked around.
        custom_data: what its recorder wrote beside.
    """

    def __init__(self, path: Path, *, recover: bool = False, namespace: str = '') -> None:
        """Open `path`: a bag folder, a folder with bag/ in it, or a single .mcap or .db3 file.

        With `recover` a truncated MCAP file gives the messages that are whole in it. `namespace` is the one
        that a contract's relative topics were recorded in (`left_arm`); see `find`.

        Raises:
            BagError: it is no bag, or cannot be read rightly; one sentence.
        """
        self.notes: list[str] = []
        self.custom_data: Mapping[str, str] = {}
        self._stack = ExitStack()
        self._storages: list[Storage] = []
        self._namespace = namespace.strip('/')
        self.path = bag_path(path)
        with ExitStack() as stack:
            files, expected = self._files()
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for file, named in files:
                try:
                    opened = _opened(file, named, recover, folder)
                except BagError as error:
                    if not recover or len(files) == 1:
                        raise
                    self.notes.append(f'left out: {error}')
                    continue
                stack.callback(opened.close)
                self._storages.append(opened)
                self.notes += opened.notes
            if not self._storages:
                raise BagError(f'{self.path} holds nothing to recover; {"; ".join(self.notes)}')
            self.topics = self._merged_topics()
            self._by_bare_name = {topic.name.strip('/'): topic for topic in self.topics.values()}
            self._compare(expected)
            self._stack = stack.pop_all()

    def __enter__(self) -> Bag:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self._stack.close()

    def span(self) -> tuple[int, int] | None:
        """Return the times (ns) of the first and the last message; None when there is none."""
        spans = [span for storage in self._storages if (span := storage.span()) is not None]
        return (min(first for first, _ in spans), max(last for _, last in spans)) if spans else None

    def messages(
        self, topics: Collection[str], start_ns: int = 0, stop_ns: int = 2**63 - 1
    ) -> Iterator[Recorded]:
        """Yield the messages of some topics by the time of their recording; equal times as they were written.

        Of a topic with several types it is those of the type in `topics`.

        Raises:
            BagError: the bag turns out to be damaged, or not to be CDR.
        """
        wanted = [self.topics[name] for name in topics]
        foreign = [topic for topic in wanted if topic.serialization not in CDR]
        if foreign:
            raise BagError(
                f'{self.path}: topic {foreign[0].name} is serialised as {foreign[0].serialization!r}, '
                'and only CDR can be read'
            )
        streams = [storage.messages(wanted, start_ns, stop_ns) for storage in self._storages]
        merged = streams[0] if len(streams) == 1 else heapq.merge(*streams, key=attrgetter('log_ns'))
        for message in merged:
            if message.data[:4] == ZSTD:  # compressed one by one; CDR never begins so
                message = Recorded(message.topic, message.message_type, message.log_ns, plain(message.data))
            yield message

    def find(self, name: str) -> Topic | None:
        """Return the topic that a contract's name means here, None when there is none.

        Relative names are in the bag's namespace. A leading slash in the bag, or none, is the same.
        """
        bare = name.removeprefix('~/').strip('/')
        inside = self._namespace and not name.startswith('/')
        return self._by_bare_name.get(f'{self._namespace}/{bare}' if inside else bare)

    def not_there(self, name: str, types: Sequence[str]) -> str:
        """Return a sentence about a topic that `find` does not find: what there is instead."""
        last = name.rsplit('/', 1)[-1]
        alike = [one for one in self.topics.values() if one.message_type in types or last in one.name]
        there = ', '.join(one.text for one in alike) or ', '.join(self.topics) or 'none at all'
        where = f' in the namespace {self._namespace}' if self._namespace and name[:1] != '/' else ''
        bare = name.removeprefix('~/').strip('/')
        spaces = [
            one.name.strip('/').removesuffix(bare).strip('/')
            for one in alike
            if f'/{one.name}'.endswith(f'/{bare}') and one.message_type in types
        ]
        hint = ''
        if spaces and name[:1] != '/':
            named = ' or '.join(f'--namespace {space or "/"}' for space in spaces)
            hint = f' ({named} finds it there)'
        return f'{self.path} has no topic {name}{where}; there is {there}{hint}'

    def _files(self) -> tuple[list[tuple[Path, str]], Mapping[str, int]]:
        """Return the files with the storage that metadata.yaml names ('' for none), and its counts."""
        if self.path.is_file():
            return [(self.path, '')], {}
        metadata: BagMetadata | None = None
        if (self.path / METADATA).is_file():
            metadata = read_metadata(self.path, self.notes)
        else:
            self.notes.append(
                f'{self.path} has no {METADATA}; its files are read in the order of their names'
            )
        if metadata is None:
            files = bag_files(self.path)
            self.notes += missing_splits(files)
            return [(file, '') for file in files], {}
        self.custom_data = metadata.custom_data
        return [(file, metadata.storage) for file in metadata.files], metadata.counts

    def _merged_topics(self) -> dict[str, Topic]:
        merged: dict[tuple[str, str, str], list[int | None]] = {}
        for storage in self._storages:
            for topic in storage.topics():
                merged.setdefault((topic.name, topic.message_type, topic.serialization), []).append(
                    topic.messages
                )
        topics: dict[str, Topic] = {}
        for (name, message_type, serialization), counts in merged.items():
            known = [count for count in counts if count is not None]
            topic = Topic(
                name, message_type, serialization, sum(known) if len(known) == len(counts) else None
            )
            before = topics.setdefault(name, topic)
            if before is topic:
                continue
            topics[name] = max(before, topic, key=lambda one: (one.serialization in CDR, one.messages or 0))
            self.notes.append(
                f'topic {name} has two types, {before.text} and {topic.text}; read is {topics[name].text}'
            )
        return topics

    def _compare(self, expected: Mapping[str, int]) -> None:
        """Tell where metadata.yaml and the storage do not agree; the storage is right."""
        held = Counter({name: topic.messages or 0 for name, topic in self.topics.items()})
        if all(topic.messages is not None for topic in self.topics.values()):
            for name, count in expected.items():
                if held[name] != count:
                    self.notes.append(
                        f'{METADATA} counts {count} messages of {name}, and there are {held[name]}'
                    )


def bag_path(path: Path) -> Path:
    """Return the bag that is meant by a path: the folder, the bag/ in it, or the file.

    Raises:
        BagError: there is none.
    """
    if not path.exists():
        raise BagError(f'{path} does not exist')
    if path.is_dir() and not (path / METADATA).exists() and not any(path.glob('*.mcap*')):
        if (path / 'bag').is_dir():
            return path / 'bag'
        if not any(path.glob('*.db3*')):
            ros1 = [file.name for file in path.glob('*.bag')]
            found = f'it holds the ROS 1 bag {ros1[0]}; convert it with rosbags-convert' if ros1 else 'no bag'
            raise BagError(f'{path} is no rosbag2 folder: no {METADATA}, no .mcap, no .db3 in it ({found})')
    return path


def _opened(file: Path, named: str, recover: bool, folder: Path) -> Storage:
    """Return a file of a bag, unpacked into `folder` where it is compressed as a whole."""
    with file.open('rb') as opened:
        packed = opened.read(len(ZSTD)) == ZSTD
    if not packed:
        return _opened_plain(file, named, recover)
    plain_file = unpacked(file, folder)
    try:
        return _opened_plain(plain_file, named, recover)
    except BagError as error:
        raise BagError(str(error).replace(str(plain_file), str(file))) from None


def _opened_plain(file: Path, named: str, recover: bool) -> Storage:
    from openeta_ros.episodes.bag_mcap import McapStorage
    from openeta_ros.episodes.bag_sqlite import SqliteStorage

    with file.open('rb') as opened:
        start = opened.read(16)
    if not start:
        raise BagError(f'{file} is empty (0 bytes)')
    if start.startswith(b'#ROSBAG'):
        raise BagError(f'{file} is a ROS 1 bag; convert it first, as rosbags-convert does')
    storage = next((name for magic, name in STORAGES.items() if start.startswith(magic)), None)
    if storage is None:
        raise BagError(
            f'{file} is no bag: it begins neither as an MCAP nor as an SQLite file ({start[:8].hex()})'
        )
    if named and named != storage:
        raise BagError(
            f'{METADATA} names the storage {named!r}, but {file.name} is {storage!r}; correct one of them'
        )
    return McapStorage(file, recover) if storage == 'mcap' else SqliteStorage(file)


def decoder() -> Any:
    """Return a function of a `Recorded` that returns the message with its fields.

    Raises of it:
        BagError: the type is not known here, or the bytes are not of it.
    """
    common = CommonReader()

    def decoded(recorded: Recorded) -> Any:
        message = common.read(recorded.data, recorded.message_type)
        if message is not None:
            return message
        try:
            return _decode_any()(recorded.data, recorded.message_type)
        except ObservationError as error:
            raise BagError(f'a message of {recorded.topic} is not {recorded.message_type}: {error}') from None

    return decoded


@cache
def _decode_any() -> Decode:
    from openeta_ros.episodes.definitions import typestore

    try:
        return message_decoder(typestore())
    except FileNotFoundError:  # openeta_msgs is not built: then no bag has messages of it that are needed
        return message_decoder()
