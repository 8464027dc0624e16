# SPDX-License-Identifier: Apache-2.0
"""Picture messages for tests: plain objects with the fields of sensor_msgs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings

STAMP = SimpleNamespace(sec=12, nanosec=5)
HEADER = SimpleNamespace(stamp=STAMP, frame_id='')


def image(rows: Any, encoding: str, width: int, **fields: Any) -> SimpleNamespace:
    """An Image of rows of bytes (height or more, bytes); `fields` replace what follows from them."""
    rows = np.asarray(rows, np.uint8)
    usual = {
        'height': rows.shape[0],
        'width': width,
        'encoding': encoding,
        'is_bigendian': 0,
        'step': rows.shape[1],
        'data': rows.tobytes(),
    }
    return SimpleNamespace(header=HEADER, **{**usual, **fields})


def pixels(
    values: np.ndarray, encoding: str, *, bigendian: bool = False, padding: int = 0
) -> SimpleNamespace:
    """An Image of values (H, W, C) uint8, uint16 or float32, each row followed by padding of 0xEE."""
    height, width = values.shape[:2]
    ordered = values.astype(values.dtype.newbyteorder('>' if bigendian else '<'))
    rows = np.frombuffer(ordered.tobytes(), np.uint8).reshape(height, -1)
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=0xEE)
    return image(rows, encoding, width, is_bigendian=int(bigendian))


def compressed(data: bytes, text: str) -> SimpleNamespace:
    return SimpleNamespace(header=HEADER, format=text, data=data)


def examples(count: int) -> settings:
    """So many examples, however long a busy machine takes to draw them."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])
