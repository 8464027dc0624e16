# SPDX-License-Identifier: Apache-2.0
"""results.json: what was asked, what came out of each episode, and everything needed to do it again.

docs/reference/results.md documents every field; a test compares it with these models. Whatever may differ
between two identical runs lies in the fields of `VARYING`, and nowhere else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from openeta_ros.episodes.settings import EvalSettings

SCHEMA_VERSION: Literal[1] = 1
FILENAME = 'results.json'

# Times, what the run was made on and with, where its files lie, and how messages came.
VARYING = frozenset(
    {'started_at', 'wall_s', 'latency_ms', 'versions', 'host', 'output', 'path', 'conditions'}
)

# Two-sided 95 %.
Z_95 = 1.959963984540054


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra='forbid')


class Failure(_Model):
    """Why something ended badly: a word for programs, a sentence for people."""

    kind: str
    message: str


class Latency(_Model):
    """How long the policy took to answer, in milliseconds, measured where its answer is used.

    All figures are over all calls of act, the first (in which many policies still warm up) included; `first`
    tells how much of that was the warm-up.
    """

    count: int
    first: float
    p50: float
    p99: float
    mean: float
    max: float

    @classmethod
    def of(cls, durations_ms: Sequence[float]) -> Latency | None:
        """Return the figures, or None when there was no call."""
        if not durations_ms:
            return None
        p50, p99 = np.percentile(durations_ms, [50, 99])
        return cls(
            count=len(durations_ms),
            first=round(durations_ms[0], 3),
            p50=round(float(p50), 3),
            p99=round(float(p99), 3),
            mean=round(float(np.mean(durations_ms)), 3),
            max=round(max(durations_ms), 3),
        )


class EpisodeFiles(_Model):
    """Where the files of an episode lie, relative to results.json."""

    bag: str
    videos: dict[str, str]


class EpisodeResult(_Model):
    """One episode that came to its end."""

    seed: int
    policy_seed: int
    scored: bool
    success: bool
    steps: int
    reward: float
    clamped: dict[str, int]
    conditions: dict[str, int] = {}
    error: Failure | None
    latency_ms: Latency | None
    started_at: str
    wall_s: float
    files: EpisodeFiles | None = None


class SuccessRate(_Model):
    """Successes among the scored episodes, with the Wilson 95 % interval; no rate without an episode."""

    n: int
    successes: int
    rate: float | None
    low: float
    high: float

    @classmethod
    def of(cls, episodes: Sequence[EpisodeResult]) -> SuccessRate:
        """Return the rate over those of `episodes` that are scored."""
        scored = [episode.success for episode in episodes if episode.scored]
        low, high = wilson_interval(sum(scored), len(scored))
        rate = sum(scored) / len(scored) if scored else None
        return cls(n=len(scored), successes=sum(scored), rate=rate, low=low, high=high)


class Contract(_Model):
    """The embodiment's contract, whole: its text makes the run repeatable where the file has changed."""

    name: str
    path: str
    text: str


class Results(_Model):
    """The content of results.json."""

    schema_version: Literal[1] = SCHEMA_VERSION
    status: Literal['running', 'complete', 'interrupted', 'failed']
    error: Failure | None = None
    settings: EvalSettings
    env: dict[str, Any]
    policy: dict[str, Any]
    embodiment: Contract
    success_rate: SuccessRate
    episodes: tuple[EpisodeResult, ...] = ()
    latency_ms: Latency | None = None
    versions: dict[str, str]
    host: dict[str, Any]
    started_at: str
    wall_s: float = 0.0

    def write(self) -> Path:
        """Write results.json into the output directory, whole or not at all, and return its path."""
        path = Path(self.settings.output) / FILENAME
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f'{FILENAME}.partial')
        with partial.open('w', encoding='utf-8') as file:
            file.write(self.model_dump_json(indent=2) + '\n')
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        return path


def read(path: Path) -> Results:
    """Return what `Results.write` wrote; raises pydantic's ValidationError for anything else."""
    return Results.model_validate_json(path.read_bytes())


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """Return the Wilson score interval (95 %) of a proportion; (0, 1) when n is 0."""
    if n == 0:
        return 0.0, 1.0
    share, z2 = successes / n, Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    # At 0 and at n the bound is exact; rounding must not put it a hair outside.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def without_times(data: Any) -> Any:
    """Return a copy of results.json's content without what differs between identical runs (`VARYING`)."""
    if isinstance(data, Mapping):
        return {name: without_times(value) for name, value in data.items() if name not in VARYING}
    if isinstance(data, list | tuple):
        return [without_times(value) for value in data]
    return data
