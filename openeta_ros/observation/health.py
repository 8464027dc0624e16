# SPDX-License-Identifier: Apache-2.0
"""What is known about how streams are doing: counts, rates, and conditions with a beginning and an end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

Kind = Literal['no_stamp', 'rejected', 'set_back', 'left_behind', 'offset', 'late', 'stale']

# Newest stamps, and newest ages, that figures are made of.
RECENT = 200
# Conditions that ended are kept so many; a stream may come and go for days.
MOST_ENDED = 1000


@dataclass(frozen=True)
class Condition:
    """Something wrong with a stream, from when it began to when it ended.

    Attributes:
        stream: human name with topic, such as 'camera front (topic camera/front/image_raw)'.
        kind: 'no_stamp' (zero in the header), 'rejected' (messages that cannot be used), 'set_back' (stamps
            went back: a simulator was reset, a bag looped; it ends at once), 'left_behind' (others went back
            and this one did not), 'offset' (stamps of a machine with another time), 'late' (messages so much
            overtaken that their moment is over), 'stale' (moments with nothing new enough).
        text: one sentence, of the first message or moment.
        since_ns: stamp of the first of them, on the contract's timeline.
        until_ns: stamp of the first that was right again; None while it lasts.
        count: how many messages or moments.
    """

    stream: str
    kind: Kind
    text: str
    since_ns: int
    until_ns: int | None = None
    count: int = 1


class Conditions:
    """Begins, counts and ends conditions, at most one for each kind of each stream at a time.

    Attributes:
        counts: how many messages or moments, of all conditions that ever were, by stream and kind.
        ended: the newest that ended, in order.
        lasting: those that last, by stream and kind.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, Kind]] = Counter()
        self.ended: deque[Condition] = deque(maxlen=MOST_ENDED)
        self.lasting: dict[tuple[str, Kind], Condition] = {}
        self._changes: deque[Condition] = deque(maxlen=MOST_ENDED)

    def found(self, stream: str, kind: Kind, text: str, stamp: int) -> None:
        """Note a message or moment that is wrong."""
        self.counts[stream, kind] += 1
        before = self.lasting.get((stream, kind))
        if before is None:
            self.lasting[stream, kind] = condition = Condition(stream, kind, text, stamp)
            self._changes.append(condition)
        else:
            self.lasting[stream, kind] = replace(before, count=before.count + 1)

    def right(self, stream: str, kind: Kind, stamp: int) -> None:
        """Note a message or moment that is right."""
        if not self.lasting:  # as it nearly always is
            return
        before = self.lasting.pop((stream, kind), None)
        if before is not None:
            condition = replace(before, until_ns=stamp)
            self.ended.append(condition)
            self._changes.append(condition)

    def happened(self, stream: str, kind: Kind, text: str, stamp: int) -> None:
        """Note what begins and ends at once."""
        self.found(stream, kind, text, stamp)
        self.right(stream, kind, stamp)

    def changes(self) -> list[Condition]:
        """Return what began (`until_ns` None) or ended since the last call: to be logged, once each."""
        changes = list(self._changes)
        self._changes.clear()
        return changes

    def __iter__(self) -> Iterator[Condition]:
        yield from self.ended
        yield from self.lasting.values()


@dataclass(frozen=True)
class StreamHealth:
    """Figures of one stream.

    Attributes:
        stream: human name with topic.
        messages: how many came.
        rejected: how many could not be used, or not all of it, by reason.
        rate_hz: of the newest messages, by their stamps; None before the second.
        jitter_ms: 95th percentile of how far their distances are from the median distance.
        age_ms: median and maximum of the age of samples when they were paired, of the newest moments.
        offset_s: median of how far its newest stamps are from the time of reception (negative: it took so
            long); None where that is not known.
        newest_ns: its newest stamp.
        conditions: how many messages or moments were wrong, by kind of `Condition`.
    """

    stream: str
    messages: int
    rejected: dict[str, int]
    rate_hz: float | None
    jitter_ms: float | None
    age_ms: tuple[float, float] | None
    offset_s: float | None
    newest_ns: int | None
    conditions: dict[str, int]


@dataclass(eq=False)
class Source:
    """One stream as its messages come: where it is in time, and what was counted."""

    text: str
    messages: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    newest_ns: int | None = None
    stamps: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))
    ages_ns: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))
    offset_ns: int | None = None  # median of how far the newest stamps are from the time of reception
    _offsets_ns: deque[int] = field(default_factory=lambda: deque(maxlen=5))

    def compare(self, offset_ns: int) -> None:
        """Note how far a stamp is from the time of reception."""
        self._offsets_ns.append(offset_ns)
        self.offset_ns = sorted(self._offsets_ns)[len(self._offsets_ns) // 2]

    @property
    def period_ns(self) -> float | None:
        """Median distance of the newest stamps; None before the second."""
        distances = self._distances_ns()
        return float(np.median(distances)) if distances.size else None

    def forget_time(self) -> None:
        """Forget stamps and offsets: time went back."""
        self.newest_ns = self.offset_ns = None
        self._offsets_ns.clear()
        self.stamps.clear()

    def health(self, conditions: Conditions) -> StreamHealth:
        """Return the figures, `conditions` being those of all streams."""
        distances, median = self._distances_ns(), self.period_ns
        return StreamHealth(
            stream=self.text,
            messages=self.messages,
            rejected=dict(self.rejected),
            rate_hz=None if median is None else 1e9 / median,
            jitter_ms=None if median is None else float(np.percentile(np.abs(distances - median), 95)) / 1e6,
            age_ms=(float(np.median(self.ages_ns)) / 1e6, max(self.ages_ns) / 1e6) if self.ages_ns else None,
            offset_s=None if self.offset_ns is None else self.offset_ns / 1e9,
            newest_ns=self.newest_ns,
            conditions={kind: n for (stream, kind), n in conditions.counts.items() if stream == self.text},
        )

    def _distances_ns(self) -> npt.NDArray[np.int64]:
        distances = np.diff(np.array(self.stamps, dtype=np.int64))
        return distances[distances > 0]
