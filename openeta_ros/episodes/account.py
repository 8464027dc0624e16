# SPDX-License-Identifier: Apache-2.0
"""The account of a conversion: what became of every message and moment of a bag."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from openeta_ros.observation import Condition

# Conditions of streams that are told as text; one that comes and goes may do so at every row.
MOST_TOLD = 20


@dataclass
class TopicAccount:
    """One topic: its name in the bag and in the contract, how many messages the storage holds (None where it
    does not say), how many were read, and how many of these could not be used, by reason."""

    topic: str
    contract: str
    message_type: str
    messages: int | None
    read: int = 0
    rejected: dict[str, int] = field(default_factory=dict)


@dataclass
class Account:
    """What became of a bag.

    Attributes:
        rows: moments in the arrays.
        held_rows: of these, moments at which no new clock picture came, so that what was there is held.
        dropped: moments that are not in the arrays.
        dropped_because: how many of them lacked what, by stream and reason (one may lack several).
        surplus: clock pictures between the points of the contract's rate.
        parts: how many stretches without a jump back of time.
        gaps: rows that follow the one before by more than 1.5 periods (`count`), the longest (`longest_s`).
        topics: by topic of the bag.
        ages_ms: median and maximum of how far the samples are from their row's moment, by stream.
        conditions: what was wrong with streams, from when to when.
        actions: where they are from.
        notes: what is odd with the bag, and was worked around.
    """

    rows: int = 0
    held_rows: int = 0
    dropped: int = 0
    dropped_because: Counter[str] = field(default_factory=Counter)
    surplus: int = 0
    parts: int = 1
    gaps: dict[str, float] = field(default_factory=dict)
    topics: list[TopicAccount] = field(default_factory=list)
    ages_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)
    actions: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """Return it as JSON-safe data."""
        return asdict(self) | {'dropped_because': dict(self.dropped_because)}

    def lines(self) -> Iterable[str]:
        """Yield it as text."""
        held = f', {self.held_rows} of them held' if self.held_rows else ''
        surplus = f'; {self.surplus} clock pictures between them' if self.surplus else ''
        yield f'{self.rows} rows{held}; {self.dropped} dropped{surplus}'
        for reason, count in self.dropped_because.most_common():
            yield f'  {count} x {reason}'
        for topic in self.topics:
            yield f'{topic.topic}: {topic.read} of {topic.messages} messages read ({topic.message_type})'
            for reason, count in topic.rejected.items():
                yield f'  {count} x {reason}'
        for stream, ages in self.ages_ms.items():
            yield f'age of {stream}: median {ages["p50"]:.1f} ms, largest {ages["max"]:.1f} ms'
        for condition in self.conditions[:MOST_TOLD]:
            until = 'the end' if condition.until_ns is None else f'{condition.until_ns / 1e9:.3f}'
            when = f'from {condition.since_ns / 1e9:.3f} to {until}, {condition.count} times'
            yield f'{condition.stream}: {condition.text} ({when})'
        if len(self.conditions) > MOST_TOLD:
            yield f'{len(self.conditions) - MOST_TOLD} more conditions (--json lists them)'
        if self.gaps:
            yield f'{self.gaps["count"]:.0f} gaps between rows, the longest {self.gaps["longest_s"]:.3f} s'
        others = self.actions.get('from_next_state')
        told = (
            ', '.join(f'{joint} {count}' for joint, count in others.items())
            if others != 'all' and others
            else ''
        )
        rest = f'; from the next state, in so many rows: {told}' if told else ''
        yield f'actions from {self.actions.get("source", "nowhere")}{rest}'
        yield from (f'note: {note}' for note in self.notes)


class Ages:
    """Collects ages of samples."""

    def __init__(self) -> None:
        self._ages_ns: dict[str, array[int]] = {}

    def add(self, ages_ns: Mapping[str, int]) -> None:
        """Take those of one row."""
        for stream, age_ns in ages_ns.items():
            self._ages_ns.setdefault(stream, array('q')).append(age_ns)

    def figures(self) -> dict[str, dict[str, float]]:
        """Return median and maximum in milliseconds, by stream."""
        return {
            stream: {'p50': float(np.median(ages)) / 1e6, 'max': max(ages) / 1e6}
            for stream, ages in self._ages_ns.items()
        }
