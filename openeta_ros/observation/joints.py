# SPDX-License-Identifier: Apache-2.0
"""JointState messages to positions by joint name, in rad or m.

A driver may send its joints in any order, beside others, and spread over several messages. What it may not do
is leave out one joint of those it always sends: such a joint has no position at that stamp, and its former
one is not held over it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from openeta_ros.embodiment.schema import State

# A set of joints that came so often is a message of its own kind, not one that lacks something.
KNOWN_AFTER = 3
# Different lists of names of a topic that are remembered.
MOST_PLANS = 100


class JointSample(NamedTuple):
    """A joint at one stamp; the position is NaN where a message should have had it and did not."""

    position: float
    velocity: float | None

    @property
    def absent(self) -> bool:
        """Whether it is known that there is no position at this stamp."""
        return math.isnan(self.position)


ABSENT = JointSample(math.nan, None)


def between(first: JointSample, second: JointSample, share: float) -> JointSample:
    """Return the joint between two samples; absent when one of them is."""
    speeds = (first.velocity, second.velocity)
    velocity = None if speeds[0] is None or speeds[1] is None else _mixed(speeds[0], speeds[1], share)
    return JointSample(_mixed(first.position, second.position, share), velocity)


class _Plan(NamedTuple):
    """What is known of messages that name their joints alike.

    `names` are those of the contract, '' where there is none; `scales` by joint; `twice` are named more than
    once; `needed` of the contract's.
    """

    names: tuple[str, ...]
    scales: tuple[tuple[float, float], ...]
    twice: tuple[str, ...]
    needed: frozenset[str]


class JointReader:
    """Reads the messages of one topic of the contract."""

    def __init__(self, state: State, needed: Iterable[str]) -> None:
        self._state = state
        self._needed = frozenset(needed)
        self._kinds: Counter[frozenset[str]] = Counter()
        self._plans: dict[
            tuple[bool, tuple[str, ...]], _Plan
        ] = {}  # drivers name their joints alike in every message

    def read(self, message: Any, reject: Callable[[str], None]) -> dict[str, JointSample]:
        """Return the samples of a message by joint name; `reject` is told what of it cannot be used."""
        positions, velocities = _numbers(message.position), _numbers(message.velocity)
        plan = self._plan(tuple(message.name), len(positions))
        if plan is None or not positions:
            reject('no names' if plan is None else 'no positions')
            return {}
        count = len(plan.names)
        if plan.twice or len(positions) != count:
            reject(
                f'{", ".join(plan.twice)} twice'
                if plan.twice
                else f'{len(positions)} positions for {count} names'
            )
            return dict.fromkeys(plan.needed, ABSENT)
        if len(velocities) not in (0, count):
            reject(f'{len(velocities)} velocities for {count} names (positions are used)')
            velocities = []
        samples = dict.fromkeys(self._lacking(plan.needed), ABSENT)
        for name in samples:
            reject(f'without {name}')
        for index, (name, (scale, offset)) in enumerate(zip(plan.names, plan.scales, strict=True)):
            if not name:
                reject('a joint without name')
                continue
            position = scale * positions[index] + offset
            if math.isfinite(position):
                samples[name] = JointSample(position, scale * velocities[index] if velocities else None)
            else:
                samples[name] = ABSENT
                if name in self._needed:
                    reject(f'{name} is not finite')
        return samples

    def _plan(self, given: tuple[str, ...], count: int) -> _Plan | None:
        """Return what is known of messages with these names; None when neither they nor the contract name
        their joints."""
        named = bool(given) or not count
        if not named:
            given = self._state.joints or ()
            if len(given) != count:
                return None
        plan = self._plans.get((named, given))
        if plan is None:
            if len(self._plans) > MOST_PLANS:
                self._plans.clear()
            prefix = self._state.prefix if named else ''
            names = tuple(prefix + name if name else '' for name in given)
            plan = self._plans[named, given] = _Plan(
                names,
                tuple(map(self._scale, names)),
                tuple(name for name, times in Counter(names).items() if name and times > 1),
                self._needed.intersection(names),
            )
        return plan

    def _lacking(self, kind: frozenset[str]) -> set[str]:
        """Return the joints that always came together with these, and did not now."""
        self._kinds[kind] += 1
        if self._kinds[kind] > KNOWN_AFTER:
            return set()
        return {joint for known in self._kinds if kind and kind < known for joint in known - kind}

    def _scale(self, name: str) -> tuple[float, float]:
        if name in self._state.scales:
            scale = self._state.scales[name]
            return scale.scale, scale.offset
        return (math.pi / 180 if self._state.unit == 'deg' else 1.0), 0.0


def _numbers(sequence: Any) -> list[float]:
    """Return floats of Python, with which one counts faster, of an array of NumPy or of Python."""
    return sequence.tolist() if hasattr(sequence, 'tolist') else list(sequence)


def _mixed(first: float, second: float, share: float) -> float:
    return first + share * (second - first)
