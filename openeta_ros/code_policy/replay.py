# SPDX-License-Identifier: Apache-2.0
"""Repeats a run from its record: the rows that were executed, to an env of the same kind, and compares.

What is repeated is what went to the env (resets, and the rows `executed`), not the snippet: it is the same
whatever the snippet would do now. In a simulator that is deterministic what comes back is the same bit for
bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from openeta_ros.code_policy.record import TRACE
from openeta_ros.code_policy.trace import Trace
from openeta_ros.episodes.runner import EpisodeEnv


@dataclass(frozen=True)
class Replayed:
    """How a repetition went.

    `rows` were sent, `compared` observations were compared with those of the record, and `differences` are
    one sentence for each that is not the same, bit for bit.
    """

    rows: int
    compared: int
    differences: tuple[str, ...]


def replay_trace(source: Path | Iterable[Mapping[str, Any]], env: EpisodeEnv) -> Replayed:
    """Repeat a run.

    Args:
        source: the folder of a record, its trace.jsonl, or the entries of a trace. The run must have begun
            with a reset, so that what it moved is known.
        env: an env like the one of the run; it is reset.

    Raises:
        ValueError: the trace moves before it resets, or is no trace.
        ActionError, EnvError: the env refuses what it once took.
    """
    trace = Trace(hashed=True)
    rows = compared = 0
    differences: list[str] = []
    running = False
    for entry in _entries(source):
        place = f'{entry["call"]} (seq {entry["seq"]})'
        if entry['call'] == 'reset' and 'result' in entry:
            seen = env.reset(int(entry['seed']))
            running = True
        elif entry.get('executed'):
            if not running:
                raise ValueError(f'{place} moves before there is a reset: where it began is not known')
            results = env.chunk_step(np.array(entry['executed'], dtype=np.float64), 'qpos')
            rows += len(results)
            seen = results[-1].observation
            if len(results) != len(entry['executed']):
                differences.append(f'{place}: {len(results)} rows ran, of {len(entry["executed"])} then')
        else:
            continue
        compared += 1
        now, then = trace.observation(seen), entry['observed']
        differences += [
            f'{place}: {name} is another' for name in sorted({*now, *then}) if now.get(name) != then.get(name)
        ]
    return Replayed(rows, compared, tuple(differences))


def _entries(source: Path | Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    if not isinstance(source, Path):
        return source
    path = source / TRACE if source.is_dir() else source
    entries = [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]
    if not all(isinstance(entry, dict) and {'seq', 'call'} <= entry.keys() for entry in entries):
        raise ValueError(f'{path} is no trace of a run')
    return entries
