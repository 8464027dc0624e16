# SPDX-License-Identifier: Apache-2.0
"""Which moment a message belongs to, and what is wrong with the clocks of its senders."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from openeta_ros.observation.errors import ObservationError
from openeta_ros.observation.health import Conditions, Kind, Source
from openeta_ros.observation.messages import NS_PER_S, stamp_ns

if TYPE_CHECKING:
    from openeta_ros.embodiment.schema import Align

# A stamp this much older than the newest of its stream is a clock that was set back (simulator restarted, bag
# looped), not a message overtaken by another on its way.
JUMP_BACK_NS = NS_PER_S
# A stamp this far ahead of its stream and of the time in which it came is wrong, or its clock is: the next
# message tells. Simulated time is behind the time of the day, and may leap as far as it likes.
JUMP_AHEAD_NS = 10 * NS_PER_S
# One message may be that old for other reasons (kept for late joiners, say); a second one confirms.
CONFIRMED_BY = 2
# A clock that was set back by less sends stamps that it sent before: a bag is the same again, a simulator has
# the same steps. So many of them from one stream, one upon the other, confirm that: what was overtaken has
# stamps of its own, and between messages that somebody sends twice come others.
REPEATED_BY = 3
# A stream that misses so many of its periods has ended, or pauses.
MISSED_PERIODS = 3
# Stamps years away from the time of reception are simulated time, which runs at its own speed: how far they
# are from reception then says nothing about their clocks.
SIMULATED_NS = 3 * 365 * 86400 * NS_PER_S

Deliver = Callable[[int], None]


class _Waiting(NamedTuple):
    source: Source
    stamp: int
    deliver: Deliver


class Timeline:
    """Stamps messages, delivers those whose moment is known, and notices clocks that jump or differ.

    Attributes:
        conditions: what was noticed.
        on_set_back: called when time went back, before anything of the new time is delivered.
    """

    def __init__(self, align: Align, clock: Source, on_set_back: Callable[[], None]) -> None:
        self.conditions = Conditions()
        self.on_set_back = on_set_back
        self._headers = align.timeline == 'header'
        # What goes by the time of reception cannot be overtaken at all.
        self._jump_back_ns = JUMP_BACK_NS if self._headers else 0
        self._max_offset_ns = round(align.max_offset_s * NS_PER_S)
        self._clock = clock
        self._before: dict[Source, int] = {}  # from where on stamps are of before time went back
        self._left_behind: set[Source] = set()
        self._waiting: list[_Waiting] = []
        self._repeated: dict[Source, list[_Waiting]] = {}  # delivered, but perhaps of a new time
        self._ahead: dict[Source, _Waiting] = {}
        self._sources: list[Source] = [clock]

    def watch(self, source: Source) -> Source:
        """Take a stream among those that go back together; return it."""
        self._sources.append(source)
        return source

    def take(self, source: Source, message: Any, received_ns: int | None, deliver: Deliver) -> None:
        """Count a message, and deliver it with its stamp when it has one that is usable; perhaps later.

        Raises:
            ObservationError: the contract goes by the time of reception, and none is given.
        """
        stamp = self.stamp(message, received_ns)
        source.messages += 1
        if stamp <= 0:
            reason = 'no stamp' if stamp == 0 else 'a negative stamp'
            self.reject(source, reason, received_ns or 0, kind='no_stamp')
            return
        self.conditions.right(source.text, 'no_stamp', stamp)
        self.take_stamped(source, stamp, received_ns, deliver)

    def stamp(self, message: Any, received_ns: int | None) -> int:
        """Return a message's stamp on the contract's timeline; 0 when it has none.

        Raises:
            ObservationError: the contract goes by the time of reception, and none is given.
        """
        if not self._headers:
            if received_ns is None:
                raise ObservationError('align: {timeline: receive} needs the time of reception of messages')
            return received_ns
        return stamp_ns(message) if hasattr(message, 'header') else self.stamp_of_reception(received_ns) or 0

    def stamp_of_reception(self, received_ns: int | None) -> int | None:
        """Return the stamp of what has none of its own: when it came, in the time of the clock's headers.

        Before the first of these it is not changed.
        """
        offset = self._clock.offset_ns
        if received_ns is None or offset is None:
            return received_ns
        return received_ns + (offset if abs(offset) > self._max_offset_ns else 0)

    def take_stamped(self, source: Source, stamp: int, received_ns: int | None, deliver: Deliver) -> None:
        """As `take`, for a message whose stamp is known already (and not zero)."""
        if source in self._left_behind:
            if stamp >= self._before[source]:
                text = 'stamped before time went back'
                self.reject(source, text, stamp, kind='left_behind')
                return
            self._left_behind.discard(source)
            self.conditions.right(source.text, 'left_behind', stamp)
        elif source in self._before and stamp >= self._before[source]:
            self._left_behind.clear()  # it was no set-back of all, or all that went back has caught up
            self._before.clear()
        if source.newest_ns is not None and stamp < source.newest_ns - self._jump_back_ns:
            self._waiting.append(_Waiting(source, stamp, deliver))
            if len(self._waiting) >= CONFIRMED_BY:
                self._set_back(self._waiting[0])
            return
        if self._waiting:
            for waiting in [one for one in self._waiting if one.source is source]:
                self._waiting.remove(waiting)
                self.late(source, waiting.stamp, (source.newest_ns or 0) - waiting.stamp)
        repeated = self._repeats(source, _Waiting(source, stamp, deliver))
        if len(repeated) >= REPEATED_BY:
            self._set_back(repeated[0])
            return
        if source not in self._ahead and self._far_ahead(source, stamp, received_ns):
            self._ahead[source] = _Waiting(source, stamp, deliver)
            return
        if self._ahead and source in self._ahead:
            ahead = self._ahead.pop(source)
            if stamp >= ahead.stamp - JUMP_BACK_NS:
                self._deliver(source, ahead.stamp, ahead.deliver)
            else:
                self.reject(source, 'stamped far ahead of what came next', ahead.stamp)
        self._compare(source, stamp, received_ns)
        self._deliver(source, stamp, deliver)

    def _repeats(self, source: Source, one: _Waiting) -> list[_Waiting]:
        """Return the messages of a stream, up to this one, that rise through stamps that came before."""
        if source.newest_ns is None or one.stamp >= source.newest_ns or one.stamp not in source.stamps:
            if self._repeated:
                self._repeated.pop(source, None)
            return []
        found = self._repeated.setdefault(source, [])
        if found and one.stamp <= found[-1].stamp:
            found.clear()
        found.append(one)
        return found

    def _deliver(self, source: Source, stamp: int, deliver: Deliver) -> None:
        source.newest_ns = max(stamp, source.newest_ns or stamp)
        source.stamps.append(stamp)
        deliver(stamp)

    def _far_ahead(self, source: Source, stamp: int, received_ns: int | None) -> bool:
        if received_ns is None or source.newest_ns is None:
            return False
        lead = stamp - max(source.newest_ns, received_ns, received_ns + (source.offset_ns or 0))
        return lead > JUMP_AHEAD_NS

    def reject(self, source: Source, reason: str, stamp: int, kind: Kind = 'rejected') -> None:
        """Count what of a message cannot be used."""
        source.rejected[reason] += 1
        self.conditions.found(source.text, kind, reason, stamp)

    def late(self, source: Source, stamp: int, late_ns: int) -> None:
        """Count a message whose moment is over."""
        source.rejected['late'] += 1
        text = f'a message came {late_ns / NS_PER_S:.3f} s late'
        self.conditions.happened(source.text, 'late', text, stamp)

    def offset_text(self, source: Source) -> str | None:
        """Return how far a stream's clock is off, when it is so far that it must not be paired."""
        own, clock = source.offset_ns, self._clock.offset_ns
        if own is None or clock is None or source is self._clock:
            return None
        if abs(own - clock) <= self._max_offset_ns or min(abs(own), abs(clock)) > SIMULATED_NS:
            return None
        where = 'ahead of' if own > clock else 'behind'
        return f'its stamps are {abs(own - clock) / NS_PER_S:.1f} s {where} those of {self._clock.text}'

    def silent(self) -> str | None:
        """Return for how long the clock stream sent nothing while others went on, when that is too long for a
        picture on its way, or for clocks that differ as they may."""
        newest, period_ns = self._clock.newest_ns, self._clock.period_ns
        others = [
            one.newest_ns for one in self._sources if one.newest_ns is not None and not self.offset_text(one)
        ]
        if newest is None or period_ns is None or not others:
            return None
        passed_ns = max(others) - newest
        if passed_ns <= self._max_offset_ns + MISSED_PERIODS * period_ns:
            return None
        return f'nothing for {passed_ns / NS_PER_S:.1f} s, in which other streams went on'

    def _set_back(self, first: _Waiting) -> None:
        """Begin a new time, with what came of it, of which `first` told."""
        came = [*self._waiting, *(one for repeated in self._repeated.values() for one in repeated)]
        self._waiting.clear()
        self._repeated.clear()
        self._ahead.clear()
        far_ns = (first.source.newest_ns or 0) - first.stamp
        text = f'stamps went back by {far_ns / NS_PER_S:.3f} s; what came before is forgotten'
        self.conditions.happened(first.source.text, 'set_back', text, first.stamp)
        self.on_set_back()
        for source in self._sources:
            if source.newest_ns is not None:
                self._before[source] = source.newest_ns - min(JUMP_BACK_NS, far_ns // 2)
                source.forget_time()
                self._left_behind.add(source)
        # Who already sent something of the new time is there; of the others old messages may still come.
        self._left_behind -= {one.source for one in came if one.stamp < self._before[one.source]}
        for one in came:
            self.take_stamped(one.source, one.stamp, None, one.deliver)

    def _compare(self, source: Source, stamp: int, received_ns: int | None) -> None:
        """Note how far a stream's clock is from the clock stream's, both measured against reception."""
        if received_ns is None or not self._headers:
            return
        source.compare(stamp - received_ns)
        text = self.offset_text(source)
        if text is None:
            self.conditions.right(source.text, 'offset', stamp)
        else:
            self.conditions.found(source.text, 'offset', text, stamp)
