# SPDX-License-Identifier: Apache-2.0
"""The trace of a run: every call with its arguments by value, and what came of it.

An entry is a plain dict, one line of `trace.jsonl`: `seq`, `by` ('snippet' or 'runtime'), `call`, `line` (of
the snippet), `arguments`, `time_s` (since the run began), `duration_s`, `steps` ([first, last] row of the
episode that it moved, or None), and either `result` or `error` (`kind`, `message` and what the kind adds).
What moved also has `executed`, the joint rows that went to the env, a reset its `seed`; both have `observed`,
what was seen after it. From these `replay` repeats a run.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openeta_ros.code_policy.values import Step
from openeta_ros.observation import Observation

# Larger arrays are written as the base64 of their bytes.
MOST_VALUES = 4096
_SPELT_OUT = {code: f'\\x{code:02x}' for code in (*range(9), *range(11, 32), *range(127, 160))}

# Of what a snippet may call anything at all.
MAX_NAME = 100

Listener = Callable[[dict[str, Any]], None]


class Trace:
    """The entries of one run, in order; `listener` is told each one when it is complete.

    Attributes:
        calls: the entries.
        line: the snippet's line that the next call is made from; None for the runtime's own calls.
        hashed: whether results carry a digest of their pictures, as a record needs; it takes a millisecond.
    """

    def __init__(self, listener: Listener | None = None, *, hashed: bool = False) -> None:
        self.calls: list[dict[str, Any]] = []
        self.line: int | None = None
        self.by = 'runtime'
        self.hashed = hashed
        self._listener = listener
        self._begin = time.monotonic()
        self._seen: Mapping[str, npt.NDArray[Any]] | None = None
        self._told: dict[str, Any] = {}

    def begin(self, call: str) -> dict[str, Any]:
        """Return a new entry, whose `arguments` are to be filled in; it counts from when it is ended."""
        return {
            'seq': len(self.calls),
            'by': self.by,
            'call': printable(call[:MAX_NAME]),
            'line': self.line,
            'arguments': {},
            'time_s': round(time.monotonic() - self._begin, 6),
            'steps': None,
        }

    def end(self, entry: dict[str, Any], **outcome: Any) -> None:
        """Complete an entry with its `result` or its `error`."""
        entry['duration_s'] = round(time.monotonic() - self._begin - entry['time_s'], 6)
        entry.update(outcome)
        entry['seq'] = len(self.calls)
        self.calls.append(entry)
        if self._listener is not None:
            self._listener(entry)

    def write(self, path: Path) -> None:
        """Write the entries as JSON lines."""
        path.write_text(''.join(json.dumps(entry) + '\n' for entry in self.calls), encoding='utf-8')

    def told(self, value: Any) -> Any:
        """Return what a call answered as an entry holds it: pictures by their size and digest."""
        if isinstance(value, Step):
            return {
                'reward': value.reward,
                'terminated': value.terminated,
                'truncated': value.truncated,
                'info': plain(value.info),
                'observation': self.observation(value.observation),
            }
        if isinstance(value, list) and any(isinstance(item, Step) for item in value):
            return {'rows': len(value), 'last': self.told(value[-1])}
        if isinstance(value, Observation):
            return self.observation(value)
        return plain(value)

    def observation(self, observation: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        """Return an observation as JSON: numbers by value, pictures by shape (and digest)."""
        if observation is self._seen:
            return dict(self._told)
        told: dict[str, Any] = {}
        for name, array in observation.items():
            if array.ndim == 1:
                told[name] = array.tolist()
            else:
                told[name] = {'dtype': array.dtype.str, 'shape': list(array.shape)}
                if self.hashed:
                    told[name]['sha256'] = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
        # A result, its entry and its checkpoint all hold what was seen: it is gone through once.
        self._seen, self._told = observation, told
        return dict(told)


def plain(value: Any) -> Any:
    """Return a value as strict JSON that holds all of it: arrays with dtype and shape, NaN as text."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.kind not in 'biuf':
            return {'dtype': array.dtype.str, 'text': repr(value)[:1000]}
        told: dict[str, Any] = {'dtype': array.dtype.str, 'shape': list(array.shape)}
        if array.size <= MOST_VALUES and (array.dtype.kind != 'f' or np.isfinite(array).all()):
            told['values'] = array.tolist()
        else:
            told['base64'] = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode('ascii')
        return told
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, str):  # JSON has no half of a surrogate pair
        return value if value.isascii() else value.encode('utf-8', 'replace').decode('utf-8')
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    return plain(repr(value)[:1000])


def printable(text: str) -> str:
    """Return a text that a terminal shows and does not obey: what would control one is spelt out."""
    return str(plain(text.translate(_SPELT_OUT)))
