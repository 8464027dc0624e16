# SPDX-License-Identifier: Apache-2.0
"""The samples of one stream, kept in the order of their stamps, and which of them belong to a moment."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy.typing as npt

Array = npt.NDArray[Any]
T = TypeVar('T')
# How far between two samples a moment is (0 the first, 1 the second), and what the stream is worth there.
Between = Callable[[T, T, float], T]


@dataclass(frozen=True)
class Rule:
    """How a stream is read at a moment; see `Align` in the contract."""

    name: Literal['hold', 'nearest', 'interpolate']
    limit_ns: int

    def text(self) -> str:
        """Return what was looked for, for errors."""
        where = {'hold': 'before', 'nearest': 'around', 'interpolate': 'on both sides of'}[self.name]
        return f'nothing within {self.limit_ns / 1e9:g} s {where} the moment'


class Found(NamedTuple, Generic[T]):
    """What a stream is worth at a moment, and how far in time the farthest sample used for it is."""

    sample: T
    age_ns: int


class Stream(Generic[T]):
    """Samples by stamp; of equal stamps the order of coming, so that the last to come counts."""

    def __init__(self) -> None:
        self.stamps: list[int] = []
        self.samples: list[T] = []

    def add(self, stamp: int, sample: T) -> None:
        """Take a sample, in any order."""
        if not self.stamps or stamp >= self.stamps[-1]:
            self.stamps.append(stamp)
            self.samples.append(sample)
            return
        index = bisect.bisect_right(self.stamps, stamp)
        self.stamps.insert(index, stamp)
        self.samples.insert(index, sample)

    def replace(self, sample: T, other: T) -> None:
        """Let another sample stand for one that is kept."""
        for index, one in enumerate(self.samples):
            if one is sample:
                self.samples[index] = other

    def clear(self) -> None:
        """Forget everything."""
        self.stamps.clear()
        self.samples.clear()

    def keep(self, count: int) -> None:
        """Forget all but the newest; now and then, since forgetting moves what stays."""
        if len(self.stamps) > 2 * count:
            del self.stamps[:-count], self.samples[:-count]

    def release(self, stamp: int) -> None:
        """Forget what no moment from a stamp on can use by holding: all before the sample in force then."""
        index = bisect.bisect_right(self.stamps, stamp) - 1
        if index > 0:
            del self.stamps[:index], self.samples[:index]

    def reached(self, stamp: int) -> bool:
        """Whether the stream has come as far as a stamp: nothing at or before it is still under way."""
        return bool(self.stamps) and self.stamps[-1] >= stamp

    def at(self, stamp: int, rule: Rule, between: Between[T] | None = None) -> Found[T] | None:
        """Return what the stream is worth at a stamp, or None when its samples are too far from it.

        Without `between` a stream cannot be interpolated and is held instead.
        """
        after = bisect.bisect_right(self.stamps, stamp)
        before = after - 1
        age = stamp - self.stamps[before] if before >= 0 else rule.limit_ns + 1
        if rule.name == 'hold' or age == 0 or (rule.name == 'interpolate' and between is None):
            return Found(self.samples[before], age) if age <= rule.limit_ns else None
        lead = self.stamps[after] - stamp if after < len(self.stamps) else rule.limit_ns + 1
        if rule.name == 'nearest':
            index, distance = (before, age) if age <= lead else (self._last_at(after), lead)
            return Found(self.samples[index], distance) if distance <= rule.limit_ns else None
        if max(age, lead) > rule.limit_ns:
            return None
        assert between is not None
        share = age / (age + lead)
        return Found(between(self.samples[before], self.samples[after], share), max(age, lead))

    def _last_at(self, index: int) -> int:
        return bisect.bisect_right(self.stamps, self.stamps[index]) - 1
