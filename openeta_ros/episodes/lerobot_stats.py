# SPDX-License-Identifier: Apache-2.0
"""The statistics that LeRobot keeps of each feature, by which its policies normalise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Stats = Mapping[str, Array]

QUANTILES = {'q01': 0.01, 'q10': 0.1, 'q50': 0.5, 'q90': 0.9, 'q99': 0.99}
# Of a picture every n-th pixel in both directions counts.
PIXEL_STRIDE = 8


def of_columns(rows: Array) -> dict[str, Array]:
    """Return the statistics of each column of (N, D)."""
    quantiles = np.quantile(rows, list(QUANTILES.values()), axis=0)
    return {
        'min': rows.min(axis=0),
        'max': rows.max(axis=0),
        'mean': rows.mean(axis=0, dtype=np.float64),
        'std': rows.std(axis=0, dtype=np.float64),
        'count': np.array([len(rows)]),
        **dict(zip(QUANTILES, quantiles, strict=True)),
    }


class PictureStats:
    """Counts the colours of pictures (H, W, 3) uint8; its figures are of (3, 1, 1), 0 to 1."""

    def __init__(self) -> None:
        self._histogram = np.zeros((3, 256), dtype=np.int64)
        self._pictures = 0

    def add(self, picture: Array) -> None:
        """Count one picture."""
        pixels = picture[::PIXEL_STRIDE, ::PIXEL_STRIDE].reshape(-1, 3)
        for channel in range(3):
            self._histogram[channel] += np.bincount(pixels[:, channel], minlength=256)
        self._pictures += 1

    def figures(self) -> dict[str, Array]:
        """Return the statistics."""
        values = np.arange(256) / 255
        total = self._histogram.sum(axis=1)
        mean = self._histogram @ values / total
        below = self._histogram.cumsum(axis=1) / total[:, None]
        there = self._histogram > 0
        figures = {
            'min': values[there.argmax(axis=1)],
            'max': values[255 - there[:, ::-1].argmax(axis=1)],
            'mean': mean,
            'std': np.sqrt(np.maximum(self._histogram @ values**2 / total - mean**2, 0)),
            **{name: values[(below >= share).argmax(axis=1)] for name, share in QUANTILES.items()},
        }
        return {name: one.reshape(3, 1, 1) for name, one in figures.items()} | {
            'count': np.array([self._pictures])
        }


def together(parts: Sequence[Stats]) -> dict[str, Array]:
    """Return the statistics of all episodes of one feature. Quantiles are the mean of the episodes', weighted
    by their lengths, as LeRobot does it."""
    stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    counts = stacked['count'].astype(np.float64)
    weights = counts.reshape(len(parts), *(1,) * (stacked['mean'].ndim - 1)) / counts.sum()
    mean = (stacked['mean'] * weights).sum(axis=0)
    variance = ((stacked['std'] ** 2 + (stacked['mean'] - mean) ** 2) * weights).sum(axis=0)
    return {
        'min': stacked['min'].min(axis=0),
        'max': stacked['max'].max(axis=0),
        'mean': mean,
        'std': np.sqrt(variance),
        'count': stacked['count'].sum(axis=0),
        **{name: (stacked[name] * weights).sum(axis=0) for name in QUANTILES},
    }
