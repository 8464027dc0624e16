# SPDX-License-Identifier: Apache-2.0
"""MCAP files: with and without index, with and without chunks, whole and cut off."""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import zstandard
from mcap.data_stream import ReadDataStream
from mcap.exceptions import McapError
from mcap.opcode import Opcode
from mcap.reader import SeekingReader
from mcap.records import Channel, Chunk, DataEnd, Message, Schema
from mcap.stream_reader import CRCValidationError, StreamReader, breakup_chunk, get_chunk_data_stream

from openeta_ros.episodes.bag import CDR, Recorded, Topic
from openeta_ros.episodes.bag_metadata import BagError

# Before a record: its kind (1 byte) and its length (8 bytes).
RECORD_HEADER = 9
# Magic, footer and magic: what is smaller has no end.
SMALLEST = 45
_RECORD = struct.Struct('<BQ')
_MESSAGE = struct.Struct('<HIQQ')
# What the libraries raise for bytes that are not what they should be.
DAMAGED = (
    McapError,
    CRCValidationError,
    struct.error,
    ValueError,
    EOFError,
    RuntimeError,
    KeyError,
    MemoryError,
    zstandard.ZstdError,
)


class _Part(NamedTuple):
    """A chunk, or a message outside of chunks, and where it lies; `channels` of which it holds messages."""

    first_ns: int
    offset: int
    last_ns: int
    channels: frozenset[int] | None
    is_chunk: bool


class _Message(NamedTuple):
    """A message; `data` is a view of the chunk in which it lies."""

    channel: int
    log_ns: int
    data: bytes | memoryview


class McapStorage:
    """One .mcap file."""

    def __init__(self, file: Path, recover: bool) -> None:
        self._file = file
        self.notes: list[str] = []
        self._stream = file.open('rb')
        self._channels: dict[int, Channel] = {}
        self._schemas: dict[int, Schema] = {}
        self._counts: Counter[int] | None = Counter()
        self._parts: list[_Part] = []
        try:
            if not self._read_index():
                self._scan(recover)
        except BaseException:
            self._stream.close()
            raise

    def topics(self) -> list[Topic]:
        """Return what is in it."""
        return [
            Topic(
                channel.topic,
                self._type(channel),
                channel.message_encoding,
                None if self._counts is None else self._counts[number],
            )
            for number, channel in self._channels.items()
        ]

    def span(self) -> tuple[int, int] | None:
        """Return the times of the first and the last message."""
        if not self._parts:
            return None
        return min(part.first_ns for part in self._parts), max(part.last_ns for part in self._parts)

    def messages(self, topics: Collection[Topic], start_ns: int, stop_ns: int) -> Iterator[Recorded]:
        """Yield the messages of these topics and types recorded in start <= time < stop, by time; equal times
        as they were written."""
        kinds = {(topic.name, topic.message_type, topic.serialization) for topic in topics}
        named = {number: (one.topic, self._type(one)) for number, one in self._channels.items()}
        wanted = {
            number
            for number, channel in self._channels.items()
            if (*named[number], channel.message_encoding) in kinds
        }
        parts = [
            part
            for part in self._parts
            if part.first_ns < stop_ns
            and part.last_ns >= start_ns
            and (part.channels is None or part.channels & wanted)
        ]
        # A chunk waits in the queue by its first message; when its turn comes, its messages take its place.
        queue: list[tuple[int, int, int, Any]] = [(part.first_ns, part.offset, -1, part) for part in parts]
        heapq.heapify(queue)
        while queue:
            _, offset, _, item = heapq.heappop(queue)
            if isinstance(item, _Part):
                for index, message in enumerate(self._read(item)):
                    if message.channel in wanted and start_ns <= message.log_ns < stop_ns:
                        heapq.heappush(queue, (message.log_ns, offset, index, message))
                continue
            yield Recorded(*named[item.channel], item.log_ns, item.data)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _type(self, channel: Channel) -> str:
        name = self._schemas[channel.schema_id].name if channel.schema_id in self._schemas else ''
        # Some writers leave out the folder of the type, which in CDR can only be that of messages.
        short = channel.message_encoding in CDR and name.count('/') == 1
        return name.replace('/', '/msg/') if short else name

    def _read(self, part: _Part) -> list[_Message]:
        self._stream.seek(part.offset + (RECORD_HEADER if part.is_chunk else 1))
        try:
            stream = ReadDataStream(self._stream)
            if part.is_chunk:
                return list(_messages(_content(Chunk.read(stream))))
            message = Message.read(stream, stream.read8())
        except DAMAGED as error:
            raise BagError(f'{self._file} is damaged at byte {part.offset}: {error}') from None
        return [_Message(message.channel_id, message.log_time, message.data)]

    def _read_index(self) -> bool:
        """Take what is in it from the index at its end; False when there is none that is complete."""
        if self._file.stat().st_size < SMALLEST:
            return False
        try:
            summary = SeekingReader(self._stream).get_summary()
        except DAMAGED:
            return False
        if summary is None or summary.statistics is None or not summary.channels:
            return False
        statistics = summary.statistics
        indexed = len(summary.chunk_indexes) == statistics.chunk_count and statistics.chunk_count > 0
        if not indexed or statistics.schema_count > len(summary.schemas):
            return False
        self._channels, self._schemas = dict(summary.channels), dict(summary.schemas)
        self._counts = Counter(statistics.channel_message_counts)
        for chunk in summary.chunk_indexes:
            channels = frozenset(chunk.message_index_offsets) or None
            self._parts.append(
                _Part(
                    chunk.message_start_time, chunk.chunk_start_offset, chunk.message_end_time, channels, True
                )
            )
        return True

    def _scan(self, recover: bool) -> None:
        """Find out what is in it by reading all of it, chunk by chunk."""
        self._stream.seek(0)
        ended = False
        why = 'its end is missing'
        try:
            for offset, record in self._records():
                if isinstance(record, DataEnd):
                    ended = True
                    break
                self._note(offset, record)
        except DAMAGED as error:
            why = str(error) or why
        held = sum((self._counts or Counter()).values())
        if ended:
            self.notes.append(f'{self._file.name} has no index; it was read through to make one')
        elif not recover:
            raise BagError(
                f'{self._file} is truncated ({why}); {held} messages in it are whole, '
                'ask for them with --recover'
            )
        elif not held:
            raise BagError(f'{self._file} is truncated ({why}), and holds 0 whole messages to recover')
        else:
            self.notes.append(f'{self._file.name} is truncated; recovered are {held} messages that are whole')

    def _records(self) -> Iterator[tuple[int, Any]]:
        """Yield each record, messages and chunks with where they begin."""
        for record in StreamReader(self._stream, emit_chunks=True).records:
            size = 0
            if isinstance(record, Message):
                size = 22 + len(record.data)
            elif isinstance(record, Chunk):
                size = 40 + len(record.compression) + len(record.data)
            yield self._stream.tell() - size - RECORD_HEADER, record

    def _note(self, offset: int, record: Any) -> None:
        if isinstance(record, Schema):
            self._schemas[record.id] = record
        elif isinstance(record, Channel):
            self._channels[record.id] = record
        elif isinstance(record, Message):
            self._count([record])
            self._parts.append(
                _Part(record.log_time, offset, record.log_time, frozenset((record.channel_id,)), False)
            )
        elif isinstance(record, Chunk):
            inner = breakup_chunk(record, validate_crc=True)
            for one in inner:
                if isinstance(one, Schema | Channel):
                    self._note(offset, one)
            messages = [one for one in inner if isinstance(one, Message)]
            self._count(messages)
            if messages:
                times = [message.log_time for message in messages]
                channels = frozenset(message.channel_id for message in messages)
                self._parts.append(_Part(min(times), offset, max(times), channels, True))

    def _count(self, messages: list[Message]) -> None:
        assert self._counts is not None
        self._counts.update(message.channel_id for message in messages)


def _content(chunk: Chunk) -> bytes:
    """Return the records of a chunk, unpacked and checked."""
    stream, size = get_chunk_data_stream(chunk, validate_crc=True)
    return stream.read(size)


def _messages(records: bytes) -> Iterator[_Message]:
    """Yield the messages of a chunk, without copying them."""
    view, at = memoryview(records), 0
    while at < len(view):
        begin = at + RECORD_HEADER
        kind, length = _RECORD.unpack_from(view, at) if begin <= len(view) else (0, 0)
        at = begin + length
        if at > len(view) or (kind == Opcode.MESSAGE and length < _MESSAGE.size):
            raise ValueError(
                f'a record at byte {begin - RECORD_HEADER} of a chunk of {len(view)} is not whole'
            )
        if kind == Opcode.MESSAGE:
            channel, _, log_ns, _ = _MESSAGE.unpack_from(view, begin)
            yield _Message(channel, log_ns, view[begin + _MESSAGE.size : at])
