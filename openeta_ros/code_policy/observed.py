# SPDX-License-Identifier: Apache-2.0
"""An observation, or whatever else arrays are in, as JSON for a model to read."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from openeta_ros.code_policy.prompt import BASE64, MEDIA_TYPE

Pictures = Literal['reference', 'png']

# Arrays of up to so many numbers are shown whole, rounded to micrometres and microradians.
SHOWN_VALUES, DECIMALS = 64, 6
SHOWN_CHARS, SHOWN_ITEMS, SHOWN_LEVELS = 2000, 64, 6
# Models look at no more than this of a picture, and each side costs.
LONGEST_SIDE = 512


def summarise(value: Any, *, pictures: Pictures = 'reference', level: int = 0) -> Any:
    """Return a value in types that JSON has, of bounded size.

    Arrays become `shape`, `dtype` and, up to 64 numbers, `values`; larger ones their `min`, `max` and `mean`.
    (H, W, 3) uint8 arrays are pictures: with 'reference' only their shape is given, with 'png' their pixels
    too, scaled down to 512 on the longer side. Long texts and lists are cut, and what is left out is counted.
    Numbers that JSON has not are texts ('nan', 'inf').
    """
    if level > SHOWN_LEVELS:
        return _cut(repr(value))
    if isinstance(value, Mapping):
        shown = {
            str(key): summarise(item, pictures=pictures, level=level + 1)
            for key, item in list(value.items())[:SHOWN_ITEMS]
        }
        return shown if len(value) <= SHOWN_ITEMS else {**shown, 'left_out': len(value) - SHOWN_ITEMS}
    if isinstance(value, np.ndarray):
        return _array(value, pictures)
    if isinstance(value, Enum):
        return summarise(value.value, pictures=pictures, level=level)
    if isinstance(value, np.generic):
        return summarise(value.item(), pictures=pictures, level=level)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _cut(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        items = [summarise(item, pictures=pictures, level=level + 1) for item in value[:SHOWN_ITEMS]]
        return items if len(value) <= SHOWN_ITEMS else [*items, f'and {len(value) - SHOWN_ITEMS} more']
    return _cut(repr(value))


def _array(array: NDArray[Any], pictures: Pictures) -> dict[str, Any]:
    told: dict[str, Any] = {'shape': list(array.shape), 'dtype': str(array.dtype)}
    if array.dtype == np.uint8 and array.ndim == 3 and array.shape[2] == 3 and array.size > SHOWN_VALUES:
        return told if pictures == 'reference' else {**told, MEDIA_TYPE: 'image/png', BASE64: _png(array)}
    if array.size <= SHOWN_VALUES:
        return {**told, 'values': _values(array.tolist())}
    if array.dtype.kind not in 'biuf':
        return told
    finite = array[np.isfinite(array)] if array.dtype.kind == 'f' else array
    if not finite.size:
        return {**told, 'finite': 0}
    facts = {'min': finite.min(), 'max': finite.max(), 'mean': finite.mean(dtype=np.float64)}
    told.update({name: _number(float(fact)) for name, fact in facts.items()})
    return told if finite.size == array.size else {**told, 'finite': int(finite.size)}


def _values(values: Any) -> Any:
    if isinstance(values, list):
        return [_values(value) for value in values]
    return _number(values) if isinstance(values, float) else values


def _number(value: float) -> float | str:
    # Adding zero turns -0.0 into 0.0.
    return round(value, DECIMALS) + 0.0 if math.isfinite(value) else str(value)


def _cut(text: str) -> str:
    left_out = len(text) - SHOWN_CHARS
    return text if left_out <= 0 else f'{text[:SHOWN_CHARS]} ... ({left_out} characters more)'


def _png(picture: NDArray[Any]) -> str:
    import cv2

    scale = LONGEST_SIDE / max(picture.shape[:2])
    if scale < 1.0:
        height, width = (max(1, round(side * scale)) for side in picture.shape[:2])
        picture = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
    done, data = cv2.imencode('.png', np.ascontiguousarray(picture[:, :, ::-1]))
    if not done:
        raise ValueError(f'a picture of shape {picture.shape} cannot be written as PNG')
    return base64.b64encode(data.tobytes()).decode('ascii')
