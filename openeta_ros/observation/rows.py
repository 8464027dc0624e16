# SPDX-License-Identifier: Apache-2.0
"""Recorded messages to the moments of a demonstration: each clock picture, or at the contract's rate."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openeta_ros.observation.assembler import Assembler
from openeta_ros.observation.commands import KEPT, Commands
from openeta_ros.observation.errors import MissingStream
from openeta_ros.observation.messages import NS_PER_S
from openeta_ros.observation.pairing import Paired
from openeta_ros.observation.timeline import JUMP_BACK_NS, REPEATED_BY

if TYPE_CHECKING:
    from openeta_ros.embodiment import Embodiment, Kinematics

# For so long, of recording or of stamps, a moment waits for messages that may still come for it: so late, and
# so much overtaken, they change nothing. It costs the memory of as many seconds of undecoded pictures. For a
# stream that has not come as far at all it waits as much longer as clocks may differ (`max_offset_s`).
WAIT_S = 0.5
# So many moments in a gap are looked at one by one; a clock that is set may jump by years.
MOST_MISSED = 1000


@dataclass(frozen=True)
class Row:
    """One moment.

    Attributes:
        paired: what belongs to it.
        commanded: targets in force just before it, by joint name, where they were recorded.
        held: at the contract's rate, no new clock picture belongs to it: what is there is held.
        part: counts how often time went back before it (a simulator was reset, a bag looped).
    """

    paired: Paired
    commanded: Mapping[str, float]
    held: bool
    part: int


class Rows:
    """Makes rows of messages in the order in which they were recorded.

    With `rate_hz` the moments are a grid that begins with the first complete one: each is the clock picture
    nearest to a point of the grid, at most half a period away; a point without any holds what there is,
    within the largest ages of the contract. Without, each clock picture is a moment.

    Attributes:
        assembler: pairs the streams.
        dropped: moments, or clock pictures, that became no row, by reason.
        surplus: clock pictures between the points of the grid.
        part: how often time went back.
    """

    def __init__(self, embodiment: Embodiment, kinematics: Kinematics | None, rate_hz: float | None) -> None:
        period_s = 0.0 if rate_hz is None else 1 / rate_hz
        ages = [embodiment.align.max_age_s, *(state.max_age_s for state in embodiment.state)]
        keep_s = 2 * WAIT_S + max(ages) + 2 * period_s
        self.assembler = Assembler(embodiment, kinematics, keep_s=keep_s)
        self.assembler.on_set_back = self._set_back
        self.commands = Commands(embodiment)
        self.dropped: Counter[str] = Counter()
        self.surplus = 0
        self.part = 0
        self._clock = f'camera {embodiment.align.clock} (topic {self.assembler.clock_topic})'
        self._longest_ns = round((WAIT_S + embodiment.align.max_offset_s) * NS_PER_S)
        self._rate_hz = rate_hz
        self._waiting: dict[int, int] = {}  # clock stamps that are not decided, and when they were recorded
        self._brought_nothing: list[str] = []  # the last clock messages, by why
        self._decided: int | None = None
        self._start: int | None = None  # of the grid
        self._point = 0
        self._nearest: int | None = None  # clock stamp nearest to the point so far
        self._rows: list[Row] = []
        self._early: deque[tuple[str, Any, int]] = deque(maxlen=KEPT)  # commands that came before the clock

    def add(self, topic: str, message: Any, log_ns: int) -> list[Row]:
        """Take a message of one of the assembler's topics; return the rows that are complete by it."""
        self.assembler.add(topic, message, log_ns)
        if topic == self.assembler.clock_topic:
            while self._early and self.assembler.stamp_of_reception(log_ns) is not None:
                self.add_command(*self._early.popleft())
            self._note(self.assembler.stamp(message, log_ns), log_ns)
        if self._waiting:
            self._decide_those_due(log_ns)
        undecided = next(iter(self._waiting), None)
        self.assembler.keep_from(undecided if self._nearest is None else self._nearest)
        return self._taken()

    def add_command(self, topic: str, message: Any, log_ns: int) -> None:
        """Take a message of one of the commands' topics.

        A trajectory without a stamp begins when it comes. That may be recorded in another time than the one
        of the clock (simulated, say), of which its first picture tells.
        """
        own = self.assembler.stamp(message, log_ns) if hasattr(message, 'header') else 0
        stamp = own or self.assembler.stamp_of_reception(log_ns)
        if stamp is None:
            self._early.append((topic, message, log_ns))
        else:
            self.commands.add(topic, message, stamp)

    def finish(self) -> list[Row]:
        """Return the last rows: nothing more comes."""
        self._decide_all()
        return self._taken()

    def _note(self, stamp: int, log_ns: int) -> None:
        """Note what a clock message added to the stamps, or that it added nothing."""
        known = self._decided or 0
        new = [one for one in self.assembler.clock_stamps() if one > known and one not in self._waiting]
        for one in new:
            self._waiting[one] = log_ns
        if new and new[0] != max(self._waiting):
            self._waiting = dict(sorted(self._waiting.items()))
        if new:
            self._brought_nothing.clear()
        late = known - JUMP_BACK_NS < stamp < known
        if not new and (stamp == 0 or late or stamp == known or stamp in self._waiting):
            reason = 'no stamp' if stamp == 0 else 'late' if late else 'stamp repeated (the last one counts)'
            self._brought_nothing.append(f'{self._clock}: {reason}')
            self.dropped.update([self._brought_nothing[-1], 'moments'])

    def _decide_those_due(self, log_ns: int) -> None:
        while self._waiting:
            stamp, recorded_ns = next(iter(self._waiting.items()))
            waited_ns = max(log_ns - recorded_ns, next(reversed(self._waiting)) - stamp)
            if waited_ns <= WAIT_S * NS_PER_S:
                return
            if waited_ns <= self._longest_ns and self.assembler.awaited(stamp) is not None:
                return
            self._decide(stamp)

    def _decide_all(self) -> None:
        for stamp in list(self._waiting):
            self._decide(stamp)
        if self._nearest is not None:
            self._make(self._nearest, held=False)
            self._nearest = None

    def _decide(self, stamp: int) -> None:
        del self._waiting[stamp]
        self._decided = stamp
        if self._rate_hz is None:
            self._make(stamp, held=False)
        elif self._start is None:
            if self._make(stamp, held=False):
                self._start, self._point = stamp, 1
        else:
            self._place(stamp, self._rate_hz)

    def _place(self, stamp: int, rate_hz: float) -> None:
        """Place a clock stamp in the grid."""
        assert self._start is not None
        half = round(NS_PER_S / rate_hz / 2)
        missed = 0
        while stamp > (point := self._start + round(self._point * NS_PER_S / rate_hz)) + half:
            missed += 1
            if missed > MOST_MISSED:
                skipped = int((stamp - half - self._start) * rate_hz / NS_PER_S) - self._point
                self.dropped[f'{self._clock}: a gap of {(stamp - point) / NS_PER_S:.1f} s more'] += skipped
                self.dropped['moments'] += skipped
                self._point += max(1, skipped)
                continue
            self._make(point if self._nearest is None else self._nearest, held=self._nearest is None)
            self._nearest = None
            self._point += 1
        if stamp >= point - half and (
            self._nearest is None or abs(stamp - point) < abs(self._nearest - point)
        ):
            self.surplus += self._nearest is not None
            self._nearest = stamp
        else:
            self.surplus += 1

    def _make(self, moment: int, *, held: bool) -> bool:
        try:
            paired = self.assembler.paired(moment)
        except MissingStream as missing:
            self.dropped.update(missing.streams)
            self.dropped['moments'] += 1
            return False
        self._rows.append(Row(paired, self.commands.before(moment), held, self.part))
        return True

    def _set_back(self) -> None:
        self._decide_all()
        self._waiting.clear()
        # The repeated stamps that told of it are those of new moments.
        for reason in self._brought_nothing[1 - REPEATED_BY :]:
            self.dropped.subtract([reason, 'moments'])
        self.dropped = +self.dropped
        self._brought_nothing.clear()
        self._decided = self._start = None
        self.commands.clear()
        self.part += 1

    def _taken(self) -> list[Row]:
        rows, self._rows = self._rows, []
        return rows
