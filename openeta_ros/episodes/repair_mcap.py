# SPDX-License-Identifier: Apache-2.0
"""An MCAP file without its end, or with damage inside, to a whole one.

Records are copied as they are, chunk by chunk, and the index is made anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO

from mcap.data_stream import ReadDataStream, RecordBuilder
from mcap.opcode import Opcode
from mcap.records import (
    Attachment,
    AttachmentIndex,
    Channel,
    Chunk,
    ChunkIndex,
    Message,
    MessageIndex,
    Metadata,
    MetadataIndex,
    Schema,
)
from mcap.stream_reader import get_chunk_data_stream

from openeta_ros.episodes.bag_mcap import DAMAGED
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.mcap_index import MAGIC, RECORD_HEADER, McapIndex, written

# What belongs to the data; what comes after it (index, statistics, footer) is made anew.
DATA_RECORDS = frozenset((0x01, 0x03, 0x04, 0x05, 0x06, 0x07, 0x09, 0x0C))
INDEX_RECORDS = frozenset((0x02, 0x08, 0x0A, 0x0B, 0x0D, 0x0E, 0x0F))


@dataclass
class McapAccount:
    """What became of a file.

    Attributes:
        messages: kept.
        chunks: kept.
        lost_chunks: chunks that are damaged, and left out; `lost_messages` of them, where their index tells.
        cut_at: the byte from which on nothing is whole; None when the file has its end.
        cut_bytes: how many bytes are left out from there on.
        qos: the offered quality of service by topic, as it was recorded.
        hashes: of the types, by topic, where they were recorded.
    """

    messages: int = 0
    chunks: int = 0
    lost_chunks: int = 0
    lost_messages: int = 0
    cut_at: int | None = None
    cut_bytes: int = 0
    qos: dict[str, str] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)


def repair_mcap(source: Path, target: Path) -> McapAccount:
    """Write what is whole of an MCAP file as a whole file; return the account.

    Raises:
        BagError: it is no MCAP file, or no message in it is whole.
    """
    with source.open('rb') as damaged, target.open('wb') as whole:
        if damaged.read(len(MAGIC)) != MAGIC:
            raise BagError(f'{source} is no MCAP file: it does not begin as one')
        copy = _Copy(damaged, whole, source.stat().st_size)
        copy.run()
    if not copy.account.messages:
        target.unlink()
        raise BagError(f'{source} cannot be repaired: 0 messages in it are whole')
    return copy.account


class _Copy:
    def __init__(self, damaged: IO[bytes], whole: IO[bytes], size: int) -> None:
        self.account = McapAccount()
        self._damaged, self._whole, self._size = damaged, whole, size
        self._index = McapIndex()
        self._losing = False  # message indexes here belong to a chunk that is left out

    def run(self) -> None:
        """Copy what is whole, and end the file."""
        self._whole.write(MAGIC)
        for opcode, body in self._records():
            try:
                self._copy(opcode, body)
            except DAMAGED:
                if opcode != Opcode.CHUNK:
                    self._cut(self._damaged.tell() - len(body) - RECORD_HEADER.size)
                    break
                self.account.lost_chunks += 1
                self._losing = True
        self._end()

    def _records(self) -> Iterator[tuple[int, bytes]]:
        """Yield the data records that are whole, to the end of the data or of what is whole."""
        while True:
            begin = self._damaged.tell()
            header = self._damaged.read(RECORD_HEADER.size)
            if len(header) < RECORD_HEADER.size:
                return self._cut(begin)
            opcode, length = RECORD_HEADER.unpack(header)
            if opcode in INDEX_RECORDS:
                self._damaged.seek(begin)
                return self._summary()
            if opcode not in DATA_RECORDS or begin + len(header) + length > self._size:
                return self._cut(begin)
            yield opcode, self._damaged.read(length)

    def _summary(self) -> None:
        """Take from the old index the topics without messages, which stand only there."""
        while len(header := self._damaged.read(RECORD_HEADER.size)) == RECORD_HEADER.size:
            opcode, length = RECORD_HEADER.unpack(header)
            if opcode == Opcode.FOOTER or self._damaged.tell() + length > self._size:
                return
            body = self._damaged.read(length)
            if opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
                try:
                    self._define(opcode, ReadDataStream(BytesIO(body)))
                except DAMAGED:
                    return

    def _cut(self, at: int) -> None:
        self.account.cut_at, self.account.cut_bytes = at, self._size - at

    def _copy(self, opcode: int, body: bytes) -> None:
        stream = ReadDataStream(BytesIO(body))
        if opcode == Opcode.CHUNK:
            return self._copy_chunk(Chunk.read(stream), body)
        if opcode == Opcode.MESSAGE_INDEX:  # made anew with each chunk
            self.account.lost_messages += len(MessageIndex.read(stream).records) if self._losing else 0
            return None
        offset, length = self._whole.tell(), RECORD_HEADER.size + len(body)
        if opcode == Opcode.MESSAGE:
            self._count(Message.read(stream, len(body)))
        elif opcode in (Opcode.SCHEMA, Opcode.CHANNEL):
            self._define(opcode, stream)
        elif opcode == Opcode.METADATA:
            self._index.metadata.append(MetadataIndex(offset, length, Metadata.read(stream).name))
        elif opcode == Opcode.ATTACHMENT:
            one = Attachment.read(stream)
            self._index.attachments.append(
                AttachmentIndex(
                    offset, length, one.log_time, one.create_time, len(one.data), one.name, one.media_type
                )
            )
        self._write(opcode, body)
        return None

    def _copy_chunk(self, chunk: Chunk, body: bytes) -> None:
        """Read a chunk through before anything of it counts, then copy it and write its message indexes."""
        inner, size = get_chunk_data_stream(chunk, validate_crc=True)
        messages: list[Message] = []
        definitions: list[tuple[int, ReadDataStream]] = []
        indexes: dict[int, MessageIndex] = {}
        while inner.count < size:
            offset = inner.count
            opcode, length = RECORD_HEADER.unpack(inner.read(RECORD_HEADER.size))
            record = inner.read(length)
            if opcode == Opcode.MESSAGE:
                message = Message.read(ReadDataStream(BytesIO(record)), length)
                messages.append(message)
                index = indexes.setdefault(message.channel_id, MessageIndex(message.channel_id, []))
                index.records.append((message.log_time, offset))
            else:
                definitions.append((opcode, ReadDataStream(BytesIO(record))))
        self._losing = False
        for opcode, stream in definitions:
            self._define(opcode, stream)
        for message in messages:
            self._count(message)
        start, length = self._whole.tell(), RECORD_HEADER.size + len(body)
        self._write(Opcode.CHUNK, body)
        offsets, builder = {}, RecordBuilder()
        for channel, index in indexes.items():
            offsets[channel] = start + length + builder.count
            index.write(builder)
        message_indexes = written(builder)
        self._whole.write(message_indexes)
        self.account.chunks += 1
        self._index.chunks.append(
            ChunkIndex(
                chunk_length=length,
                chunk_start_offset=start,
                compression=chunk.compression,
                compressed_size=len(chunk.data),
                message_end_time=chunk.message_end_time,
                message_index_length=len(message_indexes),
                message_index_offsets=offsets,
                message_start_time=chunk.message_start_time,
                uncompressed_size=chunk.uncompressed_size,
            )
        )

    def _define(self, opcode: int, stream: ReadDataStream) -> None:
        if opcode == Opcode.SCHEMA:
            schema = Schema.read(stream)
            self._index.schemas[schema.id] = schema
        elif opcode == Opcode.CHANNEL:
            channel = Channel.read(stream)
            self._index.channels[channel.id] = channel
            self.account.qos[channel.topic] = channel.metadata.get('offered_qos_profiles', '')
            self.account.hashes[channel.topic] = channel.metadata.get('topic_type_hash', '')

    def _count(self, message: Message) -> None:
        self.account.messages += 1
        self._index.count(message.channel_id, message.log_time)

    def _write(self, opcode: int, body: bytes) -> None:
        self._whole.write(RECORD_HEADER.pack(opcode, len(body)))
        self._whole.write(body)

    def _end(self) -> None:
        """Write the end of the data, the index, and the footer."""
        self._whole.write(self._index.end(self._whole.tell()))
