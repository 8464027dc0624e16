# SPDX-License-Identifier: Apache-2.0
"""Open loop: a policy sees what was recorded, and what it would do is compared with what was done.

Nothing moves, so an error does not lead to others: it is measured where the recording was, not where the
policy would have gone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from openeta_ros.embodiment import Embodiment
from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.bag_demonstration import Progress, convert_into
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.demonstration import Demonstration
from openeta_ros.episodes.frames import Array, Frames
from openeta_ros.episodes.lerobot import POSE
from openeta_ros.episodes.recording import SentChunk, sent_chunks
from openeta_ros.episodes.results import Latency
from openeta_ros.episodes.runner import EpisodePolicy
from openeta_ros.observation import Observation

# Half open: on which side of it a gripper is commanded, decides whether two commands agree.
GRIPPER_HALF = 0.5
SENT = 'the rows that were sent'
COMMANDED = 'the rows that were commanded'
REACHED = 'the poses that were reached'


@dataclass(frozen=True)
class ColumnError:
    """One column of the rows: mean and largest absolute difference; of a gripper also the share of rows in
    which both commands are on the same side of half open."""

    name: str
    mean: float
    largest: float
    agreement: float | None


@dataclass(frozen=True)
class OpenLoop:
    """How a policy's rows differ from those of a recording.

    Attributes:
        policy: what it says of itself.
        reference: what its rows were compared with.
        calls, rows: how often it was asked, and how many of its rows were compared.
        columns: the differences by column; rad or m, grippers 0 to 1.
        by_step: mean absolute difference of the first, second, ... row of its answers, without grippers.
        latency_ms: of its answers; None when there was none.
        notes: what was odd with the recording.
    """

    policy: Mapping[str, Any]
    reference: str
    calls: int
    rows: int
    columns: tuple[ColumnError, ...]
    by_step: tuple[float, ...]
    latency_ms: Latency | None
    notes: tuple[str, ...] = field(default=())

    def json(self) -> dict[str, Any]:
        """Return it as JSON-safe data."""
        return {
            **asdict(self),
            'policy': dict(self.policy),
            'latency_ms': None if self.latency_ms is None else self.latency_ms.model_dump(),
        }

    def lines(self) -> Iterator[str]:
        """Yield it as text."""
        yield f'policy     {self.policy["policy"]} ({self.policy["action_type"]})'
        yield f'compared   {self.rows} rows of {self.calls} answers with {self.reference}'
        width = max(len(column.name) for column in self.columns)
        for column in self.columns:
            agreed = '' if column.agreement is None else f'  agrees in {100 * column.agreement:.1f} %'
            yield f'  {column.name:<{width}}  mean {column.mean:.6f}  largest {column.largest:.6f}{agreed}'
        yield 'by row of the answer'
        for step, error in enumerate(self.by_step):
            yield f'  {step + 1:>3}  mean {error:.6f}'
        if self.latency_ms is not None:
            yield f'latency    p50 {self.latency_ms.p50:.1f} ms, p99 {self.latency_ms.p99:.1f} ms'
        yield from (f'note: {note}' for note in self.notes)


def open_loop(
    bag: Bag,
    embodiment: Embodiment,
    policy: EpisodePolicy,
    *,
    policy_seed: int,
    demonstration: Demonstration | None = None,
    every: int | None = None,
    progress: Progress = lambda share: None,
) -> OpenLoop:
    """Let a policy answer the observations of a recording, as fast as it can.

    Args:
        bag: open for reading.
        embodiment: the contract of the robot that was recorded.
        policy: reset with `policy_seed` first, and shown `demonstration`.
        every: rows between two questions; None asks again when the rows of an answer are used up, as an
            evaluation does.

    Raises:
        BagError: the recording gives no rows to compare with, or the policy's have another length.
        PolicyUnavailable: the policy is gone, or answered with an error.
    """
    policy.reset(policy_seed)
    if demonstration is not None:
        policy.set_demonstration(demonstration)
    comparison = _Comparison(embodiment, policy, list(sent_chunks(bag)), every)
    account = convert_into(Frames(comparison, embodiment.rate_hz), bag, embodiment, progress=progress)
    dropped = [f'{account.dropped} moments of the recording are incomplete'] if account.dropped else []
    return comparison.result((*account.notes, *dropped))


@dataclass
class _Answer:
    first: int
    rows: Array


class _Comparison:
    """A `FrameWriter` that asks the policy, and compares its rows with references when these come."""

    def __init__(
        self, embodiment: Embodiment, policy: EpisodePolicy, sent: Sequence[SentChunk], every: int | None
    ) -> None:
        self._embodiment, self._policy, self._every = embodiment, policy, every
        kind = policy.action_type
        self._sent = [chunk for chunk in sent if chunk.action_type == kind] if kind == 'ee' else []
        self._reference = SENT if self._sent else COMMANDED if kind == 'qpos' else REACHED
        self._names, self._grippers = _columns(embodiment, kind)
        self._index = 0
        self._next_question = 0
        self._answers: list[_Answer] = []
        self._durations_ms: list[float] = []
        self._sums = np.zeros(len(self._names))
        self._largest = np.zeros(len(self._names))
        self._agreed = np.zeros(len(self._names))
        self._rows = 0
        self._steps: list[list[float]] = []  # sum and count, by row of the answer

    def frame(self, observation: Mapping[str, Array], action: Array, time_s: float) -> None:
        if self._reference == REACHED:  # by the row before: what it led to is seen only now
            self._compare(self._index - 1, observation['endpose'])
        if self._index >= self._next_question:
            self._ask(observation)
        if self._reference != REACHED:
            self._compare(self._index, action if self._reference == COMMANDED else self._sent_at(time_s))
        self._index += 1

    def gap(self) -> None:
        """What was foreseen before a gap has nothing to be compared with."""
        self._answers = []
        self._index += 1
        self._next_question = self._index

    def result(self, notes: tuple[str, ...]) -> OpenLoop:
        if not self._rows:
            raise BagError('the recording has no rows to compare with')
        columns = [
            ColumnError(
                name=name,
                mean=float(self._sums[column] / self._rows),
                largest=float(self._largest[column]),
                agreement=float(self._agreed[column] / self._rows) if column in self._grippers else None,
            )
            for column, name in enumerate(self._names)
        ]
        return OpenLoop(
            policy=self._policy.descriptor(),
            reference=self._reference,
            calls=len(self._durations_ms),
            rows=self._rows,
            columns=tuple(columns),
            by_step=tuple(total / count for total, count in self._steps),
            latency_ms=Latency.of(self._durations_ms),
            notes=notes,
        )

    def _ask(self, observation: Mapping[str, Array]) -> None:
        asked = time.perf_counter()
        rows = np.atleast_2d(self._policy.act(Observation(observation, 0)))
        self._durations_ms.append((time.perf_counter() - asked) * 1e3)
        if rows.ndim != 2 or rows.shape[1] != len(self._names):
            raise BagError(
                f'the policy answers rows of shape {rows.shape}, and {self._policy.action_type} of '
                f'{self._embodiment.name} is (H, {len(self._names)})'
            )
        self._answers.append(_Answer(self._index, rows.astype(np.float64)))
        self._next_question = self._index + (self._every or len(rows))

    def _compare(self, index: int, reference: Array) -> None:
        for answer in self._answers:
            step = index - answer.first
            if not 0 <= step < len(answer.rows):
                continue
            row = answer.rows[step]
            error = np.abs(row - reference)
            self._sums += error
            self._largest = np.maximum(self._largest, error)
            self._agreed += (row > GRIPPER_HALF) == (reference > GRIPPER_HALF)
            self._rows += 1
            while len(self._steps) <= step:
                self._steps.append([0.0, 0.0])
            self._steps[step][0] += float(np.delete(error, self._grippers).mean())
            self._steps[step][1] += 1
        self._answers = [one for one in self._answers if one.first + len(one.rows) > index + 1]

    def _sent_at(self, time_s: float) -> Array:
        """Return the row that was sent for a moment: our recordings begin with the first answer."""
        period_s = 1 / self._embodiment.rate_hz
        chunk, since_s = self._sent[0], time_s
        for one in self._sent:
            passed_s = time_s - (one.stamp_ns - self._sent[0].stamp_ns) / 1e9
            if passed_s > -period_s / 2:
                chunk, since_s = one, passed_s
        return np.asarray(chunk.rows[min(round(since_s / period_s), len(chunk.rows) - 1)], dtype=np.float64)


def _columns(embodiment: Embodiment, action_type: str) -> tuple[list[str], list[int]]:
    """Return the names of a row's columns, and which of them are grippers."""
    names: list[str] = []
    grippers: list[int] = []
    for name, arm in embodiment.arms.items():
        names += arm.joints if action_type == 'qpos' else [f'{name}.{column}' for column in POSE]
        if arm.gripper is not None:
            grippers.append(len(names))
            names.append(arm.gripper.joint)
    return names, grippers
