# SPDX-License-Identifier: Apache-2.0
"""rosbag2's SQLite files, every version of their tables: those needed here never changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path
from urllib.parse import quote

from openeta_ros.episodes.bag import Recorded, Topic
from openeta_ros.episodes.bag_metadata import BagError

LARGEST = 2**63 - 1


def uri(file: Path) -> str:
    """Return how SQLite opens a file without writing to it.

    A recorder that was killed leaves its newest messages in the log beside, which only a normal opening
    reads; without one, `immutable` opens files in folders that cannot be written.
    """
    return f'file:{quote(str(file))}?{"immutable=1" if _log(file) is None else "mode=ro"}'


def _log(file: Path) -> Path | None:
    log = file.with_name(f'{file.name}-wal')
    return log if log.is_file() and log.stat().st_size else None


class SqliteStorage:
    """One .db3 file. It is not written to, also not where it has a write-ahead log."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.notes: list[str] = []
        self._refuse_truncated()
        if (log := _log(file)) is not None:
            self.notes.append(f'{file.name} was not closed; messages in {log.name} are read too')
        self._database = sqlite3.connect(uri(file), uri=True)
        try:
            rows = self._database.execute(
                'SELECT id, name, type, serialization_format FROM topics'
            ).fetchall()
            counts = dict(
                self._database.execute('SELECT topic_id, count(*) FROM messages GROUP BY topic_id').fetchall()
            )
            self._topics = {
                int(row[0]): Topic(str(row[1]), str(row[2]), str(row[3]), int(counts.get(row[0], 0)))
                for row in rows
            }
        except sqlite3.Error as error:
            self.close()
            raise self._damaged(error) from None

    def topics(self) -> list[Topic]:
        """Return what is in it."""
        return list(self._topics.values())

    def span(self) -> tuple[int, int] | None:
        """Return the times of the first and the last message."""
        try:
            first, last = self._database.execute(
                'SELECT min(timestamp), max(timestamp) FROM messages'
            ).fetchone()
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        return None if first is None else (int(first), int(last))

    def messages(self, topics: Collection[Topic], start_ns: int, stop_ns: int) -> Iterator[Recorded]:
        """Yield the messages of these topics and types recorded in start <= time < stop, by time; equal times
        as they were written."""
        kinds = {(topic.name, topic.message_type, topic.serialization) for topic in topics}
        wanted = {
            number: topic
            for number, topic in self._topics.items()
            if (topic.name, topic.message_type, topic.serialization) in kinds
        }
        marks = ','.join('?' * len(wanted))
        # The order comes from the index of times; the data are fetched one by one, never sorted.
        order = (
            f'SELECT id, topic_id, timestamp FROM messages WHERE topic_id IN ({marks}) '
            'AND timestamp BETWEEN ? AND ? ORDER BY timestamp, id'
        )
        # As large as its numbers are.
        bounds = [max(-LARGEST, min(bound, LARGEST)) for bound in (start_ns, stop_ns - 1)]
        try:
            for key, number, stamp in self._database.execute(order, [*wanted, *bounds]):
                row = self._database.execute('SELECT data FROM messages WHERE id = ?', (key,)).fetchone()
                topic = wanted[number]
                yield Recorded(
                    topic.name, topic.message_type, int(stamp), row[0] if isinstance(row[0], bytes) else b''
                )
        except sqlite3.Error as error:
            raise self._damaged(error) from None

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _refuse_truncated(self) -> None:
        """SQLite itself notices only when it comes to a page that is not there."""
        with self._file.open('rb') as file:
            header = file.read(100)
        page = int.from_bytes(header[16:18], 'big')
        pages = int.from_bytes(header[28:32], 'big')
        needed, there = (65536 if page == 1 else page) * pages, self._file.stat().st_size
        if len(header) < 100 or there < needed:
            raise BagError(
                f'{self._file} is truncated or malformed: {there} bytes of {needed}; '
                "recover it with sqlite3's .recover, then name the new file"
            )

    def _damaged(self, error: sqlite3.Error) -> BagError:
        return BagError(f'{self._file} cannot be read: {error}')
