# SPDX-License-Identifier: Apache-2.0
"""Arrays that grow by rows, written as they come: memory holds a row, however many there will be.

While they are written they lie in a hidden folder beside, and get their name when they are complete.
`NAME.partial` it is not called: so is the recording that a killed recorder left, which may be what is read.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from openeta_ros.episodes.npz import NpzFile, npy_header

INFO = 'info'
# Rows that wait to be written, at most.
MOST_WAITING = 6


class ArraysError(ValueError):
    """A row does not fit to those before it; the text says how."""


class ArraysWriter:
    """Writes `target`: an .npz file when its name ends so, else a folder of .npy files. A context manager.

    What was written is thrown away unless `complete` is called. `expected_rows` need not be right.
    """

    def __init__(self, target: Path, expected_rows: int) -> None:
        self._target = target
        target.parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix=f'.{target.name}.', dir=target.parent))
        self._partial = self._folder / target.name
        self._sink: _Sink = (
            NpzFile(self._partial, expected_rows) if target.suffix == '.npz' else _Folder(self._partial)
        )
        self._first: dict[str, NDArray[Any]] = {}
        # Writing pictures takes as long as making them: it has a thread of its own.
        self._pool = ThreadPoolExecutor(1, 'arrays')
        self._writing: deque[Future[None]] = deque()

    def __enter__(self) -> ArraysWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._sink.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Add one row to each of some arrays, or none when one does not fit; the rows must not change later.

        Raises:
            ArraysError: a row has another shape or type than the first of its array.
            OSError: an earlier row could not be written.
        """
        for name, row in rows.items():
            first = self._first.setdefault(name, row)
            if row.shape != first.shape or row.dtype != first.dtype:
                remedy = '' if row.ndim < 2 else '; the `size` of the camera in the contract makes them alike'
                raise ArraysError(
                    f'{name} is {row.dtype} {row.shape}, and {first.dtype} {first.shape} before{remedy}'
                )
        self._writing.append(self._pool.submit(self._add, rows))
        self._wait(MOST_WAITING)

    def cut(self) -> None:
        """Do nothing: arrays go on, and `info` counts the parts."""

    def complete(self, others: Mapping[str, NDArray[Any]], info: Mapping[str, Any]) -> None:
        """Add the arrays that are whole already and `info` (as JSON text), and give the target its name."""
        self._wait(0)
        self._sink.complete({**others, INFO: np.array(json.dumps(dict(info)))})
        if self._target.is_dir():
            shutil.rmtree(self._target)
        os.replace(self._partial, self._target)

    def _add(self, rows: Mapping[str, NDArray[Any]]) -> None:
        for name, row in rows.items():
            self._sink.add(name, row)

    def _wait(self, most: int) -> None:
        """Wait until no more than so many rows are to be written."""
        while len(self._writing) > most:
            self._writing.popleft().result()


class _Sink(Protocol):
    def add(self, name: str, row: NDArray[Any]) -> None: ...

    def complete(self, others: Mapping[str, NDArray[Any]]) -> None: ...

    def close(self) -> None: ...


class _Folder:
    """A folder of .npy files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, BinaryIO] = {}
        self._first: dict[str, NDArray[Any]] = {}
        self._counts: dict[str, int] = {}
        path.mkdir(parents=True)

    def add(self, name: str, row: NDArray[Any]) -> None:
        if name not in self._files:
            self._files[name] = (self._path / f'{name}.npy').open('w+b')
            self._files[name].write(npy_header(row, 0))
            self._first[name], self._counts[name] = row, 0
        self._files[name].write(np.ascontiguousarray(row).data)
        self._counts[name] += 1

    def complete(self, others: Mapping[str, NDArray[Any]]) -> None:
        for name, file in self._files.items():
            file.seek(0)
            file.write(npy_header(self._first[name], self._counts[name]))
        self.close()
        for name, array in others.items():
            np.save(self._path / f'{name}.npy', array, allow_pickle=False)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
