# SPDX-License-Identifier: Apache-2.0
"""What is in a recording: topics, types, counts, rates and gaps; and, of ours, what it is a recording of."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from openeta_ros.episodes.bag import Bag, Topic
from openeta_ros.episodes.recording import Facts, facts
from openeta_ros.observation import NS_PER_S

# An interval this many times the usual one is a gap: one message is missing, not merely late. It is more than
# that of rows (`frames.GAP_PERIODS`), which go by stamps: times of recording jitter besides.
GAP_PERIODS = 1.75


@dataclass(frozen=True)
class TopicContents:
    """One topic. `rate_hz` is over the time in which it came; a gap is an interval of more than `GAP_PERIODS`
    usual (median) ones; all by the times of recording."""

    topic: str
    message_type: str
    messages: int
    bytes: int
    rate_hz: float | None
    gaps: int
    longest_gap_s: float | None


@dataclass(frozen=True)
class Contents:
    """What is in a recording; `start_ns` is the time of its first message, None when there is none."""

    path: str
    files_bytes: int
    start_ns: int | None
    duration_s: float
    topics: tuple[TopicContents, ...]
    facts: Facts
    notes: tuple[str, ...] = field(default=())

    def json(self) -> dict[str, Any]:
        """Return it as JSON-safe data."""
        return asdict(self)


def contents(bag: Bag, progress: Callable[[float], None] = lambda share: None) -> Contents:
    """Read a recording through, and return what is in it.

    Raises:
        BagError: it is damaged.
    """
    times: dict[str, array[int]] = {name: array('q') for name in bag.topics}
    sizes = dict.fromkeys(bag.topics, 0)
    readable = [name for name, topic in bag.topics.items() if topic.serialization in ('cdr', '')]
    span = bag.span()
    first, last = span or (0, 0)
    for count, recorded in enumerate(bag.messages(readable)):
        times[recorded.topic].append(recorded.log_ns)
        sizes[recorded.topic] += len(recorded.data)
        if count % 256 == 0:
            progress((recorded.log_ns - first) / max(1, last - first))
    files = [bag.path] if bag.path.is_file() else [file for file in bag.path.iterdir() if file.is_file()]
    foreign = [topic for name, topic in bag.topics.items() if name not in readable]
    return Contents(
        path=str(bag.path),
        files_bytes=sum(file.stat().st_size for file in files),
        start_ns=span[0] if span else None,
        duration_s=(last - first) / NS_PER_S,
        topics=tuple(
            _topic(topic, np.array(times[name], dtype=np.int64), sizes[name])
            for name, topic in sorted(bag.topics.items())
        ),
        facts=facts(bag),
        notes=(*bag.notes, *(f'{topic.name} is {topic.serialization}, not CDR' for topic in foreign)),
    )


def outcome(carried: Facts) -> str:
    """Return how a recorded episode ended, in a few words; '' when the recording does not say."""
    episode = carried.episode
    if not episode:
        killed = carried.recorder and not carried.account
        return 'it did not come to its end' if carried.settings or killed else ''
    if not carried.settings:  # what the recorder was told, whatever that is
        return ', '.join(f'{name} {value}' for name, value in episode.items())
    word = 'success' if episode.get('success') else 'failed'
    text = f'{word} after {episode.get("steps")} steps, reward {episode.get("reward", 0.0):g}'
    error = episode.get('error')
    return text + (f' ({error["kind"]}: {error["message"]})' if error else '')


def losses(carried: Facts) -> Iterator[str]:
    """Yield what a recorder's account tells of lost messages and of troubles, a sentence each."""
    topics = carried.account.get('topics')
    for name, topic in topics.items() if isinstance(topics, dict) else ():
        lost = {why: count for why, count in dict(topic.get('lost') or {}).items() if count}
        if lost:
            yield f'{name}: lost are {", ".join(f"{count} {why}" for why, count in lost.items())}'
    yield from map(str, carried.account.get('troubles') or ())


def lines(found: Contents) -> Iterator[str]:
    """Yield it as text."""
    carried = found.facts
    rows = [
        ('recording', f'{found.path} ({found.files_bytes / 1e6:.1f} MB, {found.duration_s:.2f} s)'),
        ('task', f'{carried.env.get("task", "")} in {carried.env.get("backend", "")}' if carried.env else ''),
        ('instruction', str(carried.env.get('instruction', ''))),
        ('embodiment', str(carried.env.get('embodiment', ''))),
        ('policy', _policy(carried)),
        ('seed', str(carried.episode.get('seed', ''))),
        ('recorded', str(carried.recorder.get('started_at', ''))),
        ('info', ', '.join(f'{name} {value}' for name, value in carried.info.items())),
        ('outcome', outcome(carried)),
    ]
    yield from (f'{name:<12} {value}' for name, value in rows if value)
    width = max((len(topic.topic) for topic in found.topics), default=0)
    for topic in found.topics:
        rate = '' if topic.rate_hz is None else f'{topic.rate_hz:8.2f} Hz'
        gaps = f', {topic.gaps} gaps, the longest {topic.longest_gap_s:.3f} s' if topic.gaps else ''
        yield f'{topic.topic:<{width}} {topic.messages:>8} {rate:>11}  {topic.message_type}{gaps}'
    yield from (f'recorder: {sentence}' for sentence in losses(carried))
    yield from (f'note: {note}' for note in found.notes)


def _policy(carried: Facts) -> str:
    if not carried.policy:
        return ''
    return f'{carried.policy.get("policy", "")} ({carried.policy.get("action_type", "")})'


def _topic(topic: Topic, times: np.ndarray[Any, np.dtype[np.int64]], size: int) -> TopicContents:
    distances = np.diff(times) / NS_PER_S
    count = len(times) or topic.messages or 0
    if not len(distances) or times[-1] == times[0]:
        return TopicContents(topic.name, topic.message_type, count, size, None, 0, None)
    usual = np.median(distances)
    wide = distances[distances > GAP_PERIODS * usual] if usual > 0 else distances[:0]
    return TopicContents(
        topic=topic.name,
        message_type=topic.message_type,
        messages=count,
        bytes=size,
        rate_hz=float(len(distances) / ((times[-1] - times[0]) / NS_PER_S)),
        gaps=len(wide),
        longest_gap_s=float(wide.max()) if len(wide) else None,
    )
