# SPDX-License-Identifier: Apache-2.0
"""The end of an MCAP file: its index and statistics, gathered while its records are written."""

from __future__ import annotations

import struct
import zlib
from collections import Counter

from mcap.data_stream import RecordBuilder
from mcap.opcode import Opcode
from mcap.records import (
    AttachmentIndex,
    Channel,
    ChunkIndex,
    DataEnd,
    Footer,
    MetadataIndex,
    Schema,
    Statistics,
)

MAGIC = b'\x89MCAP0\r\n'
# Before a record: its kind and its length.
RECORD_HEADER = struct.Struct('<BQ')


class McapIndex:
    """What is in a file so far. `first_ns` and `last_ns` are the times of its messages, None before them."""

    def __init__(self) -> None:
        self.schemas: dict[int, Schema] = {}
        self.channels: dict[int, Channel] = {}
        self.counts: Counter[int] = Counter()
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.chunks: list[ChunkIndex] = []
        self.attachments: list[AttachmentIndex] = []
        self.metadata: list[MetadataIndex] = []

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return self.counts.total()

    def count(self, channel: int, log_ns: int) -> None:
        """Note a message."""
        self.counts[channel] += 1
        self.first_ns = log_ns if self.first_ns is None else min(self.first_ns, log_ns)
        self.last_ns = log_ns if self.last_ns is None else max(self.last_ns, log_ns)

    def end(self, start: int) -> bytes:
        """Return what ends the file: the end of the data, at byte `start`, the index, and the footer."""
        builder = RecordBuilder()
        DataEnd(0).write(builder)  # 0: no checksum
        data_end = written(builder)
        start += len(data_end)
        builder = RecordBuilder()
        statistics = Statistics(
            attachment_count=len(self.attachments),
            channel_count=len(self.channels),
            channel_message_counts=dict(self.counts),
            chunk_count=len(self.chunks),
            message_count=self.messages,
            message_end_time=self.last_ns or 0,
            message_start_time=self.first_ns or 0,
            metadata_count=len(self.metadata),
            schema_count=len(self.schemas),
        )
        for record in (
            *self.schemas.values(),
            *self.channels.values(),
            statistics,
            *self.chunks,
            *self.attachments,
            *self.metadata,
        ):
            record.write(builder)
        summary = written(builder)
        footer = struct.pack('<BQQQ', Opcode.FOOTER, 20, start, 0)
        Footer(start, 0, zlib.crc32(footer, zlib.crc32(summary))).write(builder)
        return data_end + summary + written(builder) + MAGIC


def written(builder: RecordBuilder) -> bytes:
    """Return the records that were written, and begin anew."""
    data: bytes = builder.end()  # type: ignore[no-untyped-call]
    return data
