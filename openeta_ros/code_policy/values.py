# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of calls as JSON and named arrays, for the wire that parts snippet and runtime.

Both ends use this. What comes from a snippet's process may be anything at all: it is checked here in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from openeta_ros.vector_policy.wire import DTYPES

Array = npt.NDArray[Any]

# Stand in for what JSON does not have: {'$array': name}, {'$numbers': [numbers, dtype, shape]},
# {'$shared': place}, {'$step': {...}}.
ARRAY, NUMBERS, SHARED, STEP = '$array', '$numbers', '$shared', '$step'
# Larger arrays are sent as bytes; for these few numbers a frame of their own costs more than their text.
MOST_NUMBERS = 64
# Deeper values are a mistake; the limit keeps the recursion far from Python's own.
MAX_DEPTH = 16


@dataclass(frozen=True)
class Step:
    """What a snippet gets from calls that move: one executed row.

    `observation` maps names to arrays as `api.observe()` does (of the rows before a call's last one it holds
    no pictures); `reward` is 1.0 in the row that reached success; `info` holds `success`, `step` (1-based row
    of the episode) and `clamped`.
    """

    observation: Mapping[str, Array]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Whether the episode ended with this row."""
        return self.terminated or self.truncated


def pack(
    value: Any,
    arrays: dict[str, Array],
    place: Callable[[Array], Any] = lambda array: None,
    depth: int = 0,
) -> Any:
    """Return `value` as JSON; its arrays, and numbers that JSON lacks, are put into `arrays`.

    Args:
        place: puts an array elsewhere and returns where; None: it will not.

    Raises:
        TypeError: it holds something else than numbers, texts, None, arrays, sequences and mappings of them.
    """
    if depth > MAX_DEPTH:
        raise TypeError(f'values may be nested {MAX_DEPTH} deep, this one is deeper')
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int) and not isinstance(value, np.integer):
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, Step):
        told = {name: getattr(value, name) for name in ('reward', 'terminated', 'truncated', 'info')}
        return {STEP: pack({**told, 'observation': value.observation}, arrays, place, depth + 1)}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) and not key.startswith('$') for key in value):
            raise TypeError('keys of mappings must be texts that do not begin with $')
        return {key: pack(item, arrays, place, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [pack(item, arrays, place, depth + 1) for item in value]
    if isinstance(value, np.ndarray | np.generic | float):
        array = np.asarray(value)
        if array.dtype.kind not in 'biuf':
            raise TypeError(f'an array of {array.dtype} cannot be passed; numbers can')
        if array.size <= MOST_NUMBERS and array.dtype.str in DTYPES:
            numbers = array.ravel().tolist()
            if all(map(math.isfinite, numbers)):  # JSON has no others
                return {NUMBERS: [numbers, array.dtype.str, list(array.shape)]}
        placed = place(array)
        if placed is not None:
            return {SHARED: placed}
        name = str(len(arrays))
        arrays[name] = array
        return {ARRAY: name}
    raise TypeError(f'a {type(value).__name__} cannot be passed; numbers, texts, arrays, lists and dicts can')


def unpack(
    value: Any,
    arrays: Mapping[str, Array],
    fetch: Callable[[Any], Array] | None = None,
    depth: int = 0,
) -> Any:
    """Return what was packed: arrays are read-only, tuples have become lists, 0-d arrays numbers.

    Args:
        fetch: returns what was placed elsewhere; None: nothing may have been.

    Raises:
        ValueError, TypeError: `pack` did not make this.
    """
    if depth > 2 * MAX_DEPTH:
        raise ValueError('a value is nested too deep')
    if isinstance(value, list):
        return [unpack(item, arrays, fetch, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if ARRAY in value:
        name = value[ARRAY]
        if not isinstance(name, str) or name not in arrays:
            raise ValueError('a value refers to an array that was not sent')
        array = arrays[name]
        return array if array.ndim else array.item()
    if NUMBERS in value:
        array = _array(value[NUMBERS])
        return array if array.ndim else array.item()
    if SHARED in value and fetch is not None:
        return fetch(value[SHARED])
    if STEP in value:
        told = unpack(value[STEP], arrays, fetch, depth + 1)
        if not isinstance(told, dict):
            raise ValueError('a step is no mapping')
        return Step(**told)
    return {key: unpack(item, arrays, fetch, depth + 1) for key, item in value.items()}


def size(value: Any) -> int:
    """Return about how many bytes a value takes."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(str(key)) + size(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return 8 * len(value) + sum(map(size, value))
    return 8


def _array(told: Any) -> Array:
    """Return the array, read-only, that stands in the JSON itself."""
    if not isinstance(told, list) or len(told) != 3 or told[1] not in DTYPES:
        raise ValueError('an array is no list of numbers, dtype and shape')
    numbers, dtype, shape = told
    if not isinstance(numbers, list) or not all(type(number) in (int, float, bool) for number in numbers):
        raise ValueError('an array holds something else than numbers')
    try:
        array: Array = np.array(numbers, dtype).reshape(shape)
    except OverflowError as error:
        raise ValueError(f'an array does not hold its numbers: {error}') from error
    array.flags.writeable = False
    return array
