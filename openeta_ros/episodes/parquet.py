# SPDX-License-Identifier: Apache-2.0
"""One recording as one Parquet file: a row for each frame, pictures as PNG."""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.frames import Array

# Rows whose pictures are in memory, compressed.
ROWS_PER_GROUP = 32
# By runs, not matches: pictures with noise come a sixth smaller and a sixth quicker, drawn ones the same.
PNG_LEVEL = 1
THREADS = 2


class ParquetWriter:
    """Writes `path`: `frame_index`, `timestamp` (s), `qpos`, `endpose`, `action` (lists of float64),
    `frames_<camera>` (PNG in {bytes, path}, as Hugging Face's datasets have pictures), `depth_<camera>`
    (lists of float32, in m). A context manager; the file is thrown away unless `complete` is called.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._partial = path.with_name(f'{path.name}.partial')
        self._pool = ThreadPoolExecutor(THREADS, 'png')
        self._rows: list[dict[str, Any]] = []
        self._file: Any = None
        self._count = 0

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True)
        if self._file is not None:
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def frame(self, observation: Mapping[str, Array], action: Array, time_s: float) -> None:
        """Take a frame."""
        row: dict[str, Any] = {'frame_index': self._count, 'timestamp': time_s}
        for name, array in {**observation, 'action': action}.items():
            row[name] = self._pool.submit(_png, array) if array.ndim == 3 else array.reshape(-1)
        self._rows.append(row)
        self._count += 1
        if len(self._rows) == ROWS_PER_GROUP:
            self._write()

    def gap(self) -> None:
        """Do nothing: the times tell."""

    def complete(self, info: Mapping[str, Any]) -> None:
        """Write what is left, and `info` (JSON-safe) as the file's metadata `openeta_ros`.

        Raises:
            BagError: there was no frame.
        """
        if self._rows:
            self._write()
        if self._file is None:
            raise BagError(f'{self._path.name}: no two rows follow each other')
        self._file.add_key_value_metadata({'openeta_ros': json.dumps(dict(info))})
        self._file.close()
        self._file = None
        self._partial.replace(self._path)

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        picture = pa.struct({'bytes': pa.binary(), 'path': pa.string()})
        columns: dict[str, Any] = {}
        for name, first in self._rows[0].items():
            values = [row[name] for row in self._rows]
            if isinstance(first, Future):
                columns[name] = pa.array([{'bytes': one.result(), 'path': None} for one in values], picture)
            elif isinstance(first, np.ndarray):
                columns[name] = pa.array(values, pa.list_(pa.from_numpy_dtype(first.dtype)))
            else:
                columns[name] = pa.array(values)
        table = pa.table(columns)
        if self._file is None:
            self._file = pq.ParquetWriter(self._partial, table.schema, compression='zstd')
        self._file.write_table(table)
        self._rows = []


def _png(picture: Array) -> bytes:
    import cv2

    options = [cv2.IMWRITE_PNG_COMPRESSION, PNG_LEVEL, cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE]
    _, data = cv2.imencode('.png', picture[..., ::-1], options)
    return data.tobytes()
