# SPDX-License-Identifier: Apache-2.0
"""An MCAP file while it is written: what the operating system was given is readable, whatever happens next.

The library's own writer keeps a chunk until it is full, and copies each message four times. Here a chunk is
handed over as soon as it is full or old enough, in one piece; what is known from the start comes first.
"""

from __future__ import annotations

import os
import struct
import time
import zlib
from array import array
from collections.abc import Mapping
from pathlib import Path

import zstandard
from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.records import Channel, ChunkIndex, Header, Metadata, MetadataIndex, Schema

from openeta_ros.episodes.mcap_index import MAGIC, McapIndex, written

# A chunk is handed over when it has so many bytes, or is so old: what a kill loses at most.
CHUNK_BYTES = 1 << 20
CHUNK_S = 1.0
# Pictures with noise hardly get smaller; the higher levels only take longer.
ZSTD_LEVEL = 1

# Kind and length of the record; channel, sequence, log time, publish time.
MESSAGE = struct.Struct('<BQHIQQ')
# Kind and length of the record; first and last time, bytes uncompressed, checksum, length of a text.
CHUNK = struct.Struct('<BQQQQII')
# Kind and length of the record; channel, bytes of its entries.
MESSAGE_INDEX = struct.Struct('<BQHI')
LENGTH = struct.Struct('<Q')


class McapFile:
    """Writes one file. Not for several threads at once.

    Errors of the file system (OSError) leave the file as it was after the last whole record.

    Args:
        about: what is known from the start; the first record of the file, named `ABOUT`.
    """

    ABOUT = 'openeta_ros'

    def __init__(self, path: Path, about: Mapping[str, str], *, compression: str) -> None:
        self.index = McapIndex()
        self._file = path.open('xb', buffering=0)
        self._end = 0  # of the last whole record
        self._compressor = zstandard.ZstdCompressor(ZSTD_LEVEL) if compression == 'zstd' else None
        self._begin_chunk()
        builder = RecordBuilder()
        Header('ros2', 'openeta_ros').write(builder)
        self._write(MAGIC + written(builder))
        self.add_metadata(self.ABOUT, about)

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._end

    def add_metadata(self, name: str, data: Mapping[str, str]) -> None:
        """Write texts."""
        builder = RecordBuilder()
        Metadata(name, dict(data)).write(builder)
        record = written(builder)
        self.index.metadata.append(MetadataIndex(self._end, len(record), name))
        self._write(record)

    def add_channel(self, topic: str, message_type: str, definition: str, metadata: Mapping[str, str]) -> int:
        """Write what a topic is; return its number."""
        builder = RecordBuilder()
        schemas = self.index.schemas
        known = [schema for schema in schemas.values() if schema.name == message_type]
        if not known:
            encoding = 'ros2msg' if definition else ''
            known = [Schema(len(schemas) + 1, definition.encode(), encoding, message_type)]
            known[0].write(builder)
        channel = Channel(len(self.index.channels) + 1, topic, 'cdr', dict(metadata), known[0].id)
        channel.write(builder)
        self._write(written(builder))
        schemas[known[0].id] = known[0]
        self.index.channels[channel.id] = channel
        return channel.id

    def add_message(
        self, channel: int, sequence: int, log_ns: int, publish_ns: int, data: bytes | memoryview
    ) -> None:
        """Add a message to the chunk that is being filled, and hand that over when it is time to."""
        if not self._times:
            self._begun = time.monotonic()
        self._offsets.setdefault(channel, array('Q')).extend((log_ns, len(self._chunk)))
        self._times.append(log_ns)
        self._chunk += MESSAGE.pack(
            Opcode.MESSAGE, MESSAGE.size - 9 + len(data), channel, sequence, log_ns, publish_ns
        )
        self._chunk += data
        if len(self._chunk) >= CHUNK_BYTES:
            self.flush()
        else:
            self.flush_if_due()

    def flush_if_due(self) -> None:
        """Hand the chunk over if it is old enough."""
        if self._times and time.monotonic() - self._begun > CHUNK_S:
            self.flush()

    def flush(self) -> None:
        """Hand the chunk over to the operating system; when that fails its messages are lost."""
        if not self._times:
            return
        chunk, offsets, times = self._chunk, self._offsets, self._times
        self._begin_chunk()
        start, stop, size = min(times), max(times), len(chunk)
        compression = '' if self._compressor is None else 'zstd'
        packed = chunk if self._compressor is None else self._compressor.compress(chunk)
        name = compression.encode()
        head = CHUNK.pack(
            Opcode.CHUNK,
            CHUNK.size - 9 + len(name) + LENGTH.size + len(packed),
            start,
            stop,
            size,
            zlib.crc32(chunk),
            len(name),
        )
        head += name + LENGTH.pack(len(packed))
        place = self._end + len(head) + len(packed)
        places, indexes = {}, b''
        for channel, entries in offsets.items():
            places[channel] = place + len(indexes)
            data = entries.tobytes()
            indexes += MESSAGE_INDEX.pack(Opcode.MESSAGE_INDEX, 6 + len(data), channel, len(data)) + data
        entry = ChunkIndex(
            chunk_length=len(head) + len(packed),
            chunk_start_offset=self._end,
            compression=compression,
            compressed_size=len(packed),
            message_end_time=stop,
            message_index_length=len(indexes),
            message_index_offsets=places,
            message_start_time=start,
            uncompressed_size=size,
        )
        self._write(head, packed, indexes)
        self.index.chunks.append(entry)
        for channel, entries in offsets.items():
            for log_ns in entries[::2]:
                self.index.count(channel, log_ns)

    def close(self) -> None:
        """Write the index and close; what is in the last chunk is flushed before. Also after an error.

        Raises:
            OSError: the index could not be written; the file ends after its last whole record.
        """
        try:
            self.flush()
            self._write(self.index.end(self._end))
        finally:
            self._file.close()

    def _begin_chunk(self) -> None:
        self._chunk = bytearray()
        self._offsets: dict[int, array[int]] = {}
        self._times: list[int] = []
        self._begun = 0.0

    def _write(self, *parts: bytes | bytearray) -> None:
        try:
            for part in parts:
                left = memoryview(part)
                while left:
                    left = left[self._file.write(left) :]
        except OSError:
            os.ftruncate(self._file.fileno(), self._end)
            self._file.seek(self._end)
            raise
        self._end += sum(map(len, parts))
