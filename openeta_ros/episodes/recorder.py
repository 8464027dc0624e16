# SPDX-License-Identifier: Apache-2.0
"""A recording of live topics, taken by one thread and written by another, and an account of what was lost.

No ROS in here: who takes the messages hands over their bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from openeta_ros.embodiment import Embodiment
from openeta_ros.episodes import machine
from openeta_ros.episodes.definitions import definition
from openeta_ros.episodes.rosbag2_folder import PARTIAL, Profile, Rosbag2Folder
from openeta_ros.episodes.runner import utc_now
from openeta_ros.observation import NS_PER_S

# Bytes that wait for the disk: a few seconds of three cameras. Beyond that messages are dropped, and counted.
QUEUE_BYTES = 256 << 20
# Kept free on the disk for the end of the recording, when the rest of it is full.
RESERVE, RESERVE_BYTES = 'reserve', 1 << 20
# How long the writer waits for a message before it looks whether what it has should be on the disk.
IDLE_S = 0.25
# The disk fills up when it has room for no more than so many seconds.
DISK_S = 60.0

STAMPED = 'std_msgs/Header header\n'
LITTLE, BIG = struct.Struct('<iI'), struct.Struct('>iI')
STAMP, STAMP_END = 4, 12


class Sequences:
    """Finds the messages of one topic that never came, by the numbers that each publisher gives its own.

    Which publisher a number is from is not told: of several, it is the one that it continues best.
    """

    def __init__(self) -> None:
        self._last: list[int] = []

    def lost_before(self, number: int, publishers: int) -> int:
        """Return how many messages of its publisher were lost just before this one."""
        if number - 1 in self._last:
            self._last[self._last.index(number - 1)] = number
            return 0
        earlier = [last for last in self._last if last < number]
        if len(self._last) < publishers:  # the first of a publisher: it may have begun before we came
            self._last.append(number)
            return 0
        if not earlier:  # a publisher that began anew
            self._last[-1] = number
            return 0
        self._last[self._last.index(max(earlier))] = number
        return number - max(earlier) - 1


class Message(NamedTuple):
    """A message on its way to the file; times in ns."""

    topic: str
    log_ns: int
    publish_ns: int
    sequence: int
    data: bytes


@dataclass
class TopicAccount:
    """What became of the messages of one topic.

    Attributes:
        messages: written.
        unreceived: published, and never received; None where publishers do not number their messages.
        unqueued: received, and dropped because the disk was too slow.
        unwritten: not written because the disk failed.
        offset_s: time of reception less stamp of the header, the smallest and the largest; None without.
    """

    message_type: str
    messages: int = 0
    unreceived: int | None = None
    unqueued: int = 0
    unwritten: int = 0
    offset_s: tuple[float, float] | None = None

    @property
    def lost(self) -> int:
        """How many are known to be lost."""
        return (self.unreceived or 0) + self.unqueued + self.unwritten

    def json(self) -> dict[str, Any]:
        """Return it as JSON-safe data."""
        return {
            'type': self.message_type,
            'messages': self.messages,
            'lost': {
                'unreceived': self.unreceived,
                'unqueued': self.unqueued,
                'unwritten': self.unwritten,
            },
            'reception_after_header_s': None if self.offset_s is None else list(self.offset_s),
        }


@dataclass
class _Topic:
    account: TopicAccount
    stamped: bool
    profiles: list[Profile]
    publishers: int = 1
    accepted: int = 0
    sequences: Sequences = field(default_factory=Sequences)


class Recording:
    """One recording that is under way. `take` and its like are for one thread; `end` comes last.

    Args:
        path: the rosbag2 folder to be; it is called `<path>.partial` until it is complete.
        custom_data: what is known from the start; see `known`.
        clocks: the time now (ns) on each clock by name, kept at the beginning and at the end.

    Attributes:
        failure: why nothing is written any more, if that is so.
        troubles: sentences about what went wrong meanwhile, kept in the account.

    Raises:
        OSError: the folder exists, or cannot be made.
    """

    def __init__(
        self, path: Path, custom_data: Mapping[str, str], clocks: Mapping[str, int], *, compression: str
    ) -> None:
        self.path = path
        self.partial = path.with_name(path.name + PARTIAL)
        self.failure: Exception | None = None
        self.troubles: list[str] = []
        if path.exists():
            raise FileExistsError(f'{path} exists: name another folder')
        if self.partial.exists():
            raise FileExistsError(
                f'{self.partial} is left of a recording that was not ended: repair it '
                f'(openeta repair {self.partial}), or remove it'
            )
        self._folder = Rosbag2Folder(self.partial, custom_data, compression=compression)
        with (self.partial / RESERVE).open('wb') as reserve, contextlib.suppress(OSError):
            os.posix_fallocate(reserve.fileno(), 0, RESERVE_BYTES)
        self._clocks = {'begin': dict(clocks)}
        self._begin = time.monotonic()
        self._topics: dict[str, _Topic] = {}
        self._work: queue.SimpleQueue[Message | tuple[str, str, list[Profile]] | None] = queue.SimpleQueue()
        self._queued = self._done = 0  # bytes; each is changed by one thread
        self._thread = threading.Thread(target=self._run, name='recording', daemon=True)
        self._thread.start()

    def add_topic(self, topic: str, message_type: str, profiles: Sequence[Profile]) -> None:
        """Begin a topic that is offered with these qualities of service."""
        stamped = definition(message_type)[0].startswith(STAMPED)
        self._topics[topic] = _Topic(TopicAccount(message_type), stamped, [])
        self._work.put((topic, message_type, list(profiles)))
        self.offered(topic, profiles)

    def offered(self, topic: str, profiles: Sequence[Profile]) -> None:
        """Note who publishes a topic now; in metadata.yaml stands every quality that it was offered with."""
        entry = self._topics[topic]
        entry.publishers = max(1, len(profiles))
        for profile in profiles:
            if profile not in entry.profiles:
                entry.profiles.append(profile)

    def take(self, topic: str, data: bytes, *, log_ns: int, publish_ns: int, sequence: int | None) -> None:
        """Take a message: its CDR encoding, and the number that its publisher gave it. Never waits."""
        entry = self._topics[topic]
        account = entry.account
        if sequence is not None:
            lost = entry.sequences.lost_before(sequence, entry.publishers)
            account.unreceived = (account.unreceived or 0) + lost
        if entry.stamped and len(data) >= STAMP_END:
            sec, nanosec = (LITTLE if data[1] & 1 else BIG).unpack_from(data, STAMP)
            offset = (log_ns - sec * NS_PER_S - nanosec) / NS_PER_S
            least, most = account.offset_s or (offset, offset)
            account.offset_s = min(least, offset), max(most, offset)
        if self._queued - self._done > QUEUE_BYTES:
            account.unqueued += 1
            return
        entry.accepted += 1
        self._queued += len(data)
        self._work.put(Message(topic, log_ns, publish_ns, (sequence or 0) & 0xFFFFFFFF, data))

    def note(self, name: str, text: str) -> None:
        """Keep a text that became known meanwhile, under a name of `CUSTOM_DATA`."""
        self._folder.custom_data[name] = text

    @property
    def messages(self) -> int:
        """Messages taken so far."""
        return sum(entry.accepted for entry in self._topics.values())

    @property
    def bytes(self) -> int:
        """Bytes on the disk."""
        return self._folder.size

    @property
    def lost(self) -> int:
        """Messages known to be lost so far."""
        return sum(entry.account.lost for entry in self._topics.values())

    def worries(self) -> Iterator[str]:
        """Yield what is going wrong now, a sentence each."""
        if self.failure is not None:
            yield f'nothing is written any more: {self.failure}'
        for topic, entry in self._topics.items():
            if entry.account.lost:
                yield f'{topic}: {entry.account.lost} messages are lost'
        rate = self.bytes / max(1.0, time.monotonic() - self._begin)
        free = shutil.disk_usage(self.partial).free
        if free < rate * DISK_S:
            yield f'the disk of {self.partial} has {free / 1e6:.0f} MB left, at {rate / 1e6:.1f} MB/s'

    def end(self, outcome: Mapping[str, Any], clocks: Mapping[str, int]) -> Ended:
        """Write what waits and the end of the files; give the folder its name when all of it is written.

        It keeps its partial name when something failed; it is readable all the same.
        """
        self._work.put(None)
        self._thread.join()
        duration_s = time.monotonic() - self._begin
        self._clocks['end'] = dict(clocks)
        self._attempt(self._folder.flush)
        with contextlib.suppress(OSError):
            (self.partial / RESERVE).unlink()
        written = self._folder.messages()
        for topic, entry in self._topics.items():
            entry.account.messages = written.get(topic, 0)
            entry.account.unwritten = entry.accepted - entry.account.messages
            self._folder.profiles[topic] = entry.profiles
        topics = {topic: entry.account for topic, entry in sorted(self._topics.items())}
        if self.failure is not None:
            self.troubles.append(f'the end is missing: {self.failure}')
        ended = Ended(self.path, topics, self.troubles, self._clocks, duration_s, self._folder.size)
        self._folder.custom_data['account'] = json.dumps(ended.json())
        if outcome:
            self._folder.custom_data['episode'] = json.dumps(dict(outcome))
        self._attempt(self._folder.close)
        if self.failure is None:
            self._attempt(partial(os.replace, self.partial, self.path))
        if self.failure is not None:
            ended.path, ended.failure = self.partial, str(self.failure)
        return ended

    def _attempt(self, job: Callable[[], None]) -> None:
        """Do a job of the files; whatever it raises is the recording's failure, and not its thread's end."""
        try:
            job()
        except Exception as error:
            self.failure = self.failure or error

    def _run(self) -> None:
        while True:
            try:
                item = self._work.get(timeout=IDLE_S)
            except queue.Empty:
                self._attempt(partial(self._folder.flush, due=True))
                continue
            if item is None:
                return
            if isinstance(item, Message):
                if self.failure is None:
                    self._attempt(partial(self._write, item))
                self._done += len(item.data)
            elif self.failure is None:
                self._attempt(partial(self._folder.add_topic, *item))

    def _write(self, message: Message) -> None:
        self._folder.write(
            message.topic,
            message.log_ns,
            message.data,
            publish_ns=message.publish_ns,
            sequence=message.sequence,
        )


@dataclass
class Ended:
    """What became of a recording: where it is, and the account; `failure` says why it is not complete."""

    path: Path
    topics: Mapping[str, TopicAccount]
    troubles: Sequence[str]
    clocks: Mapping[str, Mapping[str, int]]
    duration_s: float
    bytes: int
    failure: str = ''

    def json(self) -> dict[str, Any]:
        """Return the account as JSON-safe data."""
        return {
            'duration_s': round(self.duration_s, 3),
            'topics': {topic: account.json() for topic, account in self.topics.items()},
            'troubles': list(self.troubles),
            'clocks': {name: dict(times) for name, times in self.clocks.items()},
        }

    def lines(self) -> Iterator[str]:
        """Yield it as text."""
        messages = sum(account.messages for account in self.topics.values())
        yield (
            f'{self.path}: {messages} messages of {len(self.topics)} topics, {self.bytes / 1e6:.1f} MB, '
            f'{self.duration_s:.1f} s'
        )
        for topic, account in self.topics.items():
            for count, why in (
                (account.unreceived or 0, 'did not reach the recorder'),
                (account.unqueued, 'were dropped: the disk is too slow'),
                (account.unwritten, 'are not written: the disk failed'),
            ):
                if count:
                    yield f'{topic}: {count} messages {why}'
        yield from self.troubles


def known(embodiment: Embodiment, info: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, str]:
    """Return what a recording says of itself from its beginning: `info` of the user, `about` the node."""
    recorder = {**about, 'embodiment': str(embodiment.path), 'started_at': utc_now(), 'host': machine.host()}
    return {
        'contract': embodiment.path.read_text(encoding='utf-8'),
        'recorder': json.dumps(recorder),
        'info': json.dumps(dict(info)),
        'versions': json.dumps(machine.versions()),
    }
