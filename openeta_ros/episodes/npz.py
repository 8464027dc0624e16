# SPDX-License-Identifier: Apache-2.0
"""An .npz file whose arrays grow side by side, so that every byte is written once.

An .npz is a zip of .npy files, each in one piece. Writing each array to a file of its own and zipping these
at the end would write everything twice, which costs more than decoding the pictures does. Here each array
gets room for the rows that are expected; when there are more, or far fewer, the arrays move.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

# More of the expected room than this left empty, and the file is written anew without it.
MOST_EMPTY = 0.1
COPY_BYTES = 1 << 22
DATE = (1980, 1, 1, 0, 0, 0)  # zip's zero, so that equal arrays are equal files


def npy_header(row: NDArray[Any], count: int) -> bytes:
    """Return the .npy header of `count` such rows; it is as long for any count (numpy leaves room for it)."""
    header = io.BytesIO()
    described = {'descr': row.dtype.str, 'fortran_order': False, 'shape': (count, *row.shape)}
    npy.write_array_header_1_0(header, described)  # type: ignore[no-untyped-call]
    return header.getvalue()


class NpzFile:
    """Writes the .npz file `path`. Which arrays there are is known with their first rows, added together."""

    def __init__(self, path: Path, expected_rows: int) -> None:
        self._path = path
        self._capacity = max(1, expected_rows)
        # Without buffer: rows go where they belong at once, by position.
        self._file = path.open('w+b', buffering=0)
        self._arrays: dict[str, _Array] = {}
        self._end = 0

    def add(self, name: str, row: NDArray[Any]) -> None:
        """Add a row to an array."""
        if name not in self._arrays:
            self._arrays[name] = _Array(name, row, self._end)
            self._end = self._arrays[name].end(self._capacity)
        array = self._arrays[name]
        if array.count == self._capacity:
            self._move(2 * self._capacity)
        data = np.ascontiguousarray(row).data
        _write(self._file, data, array.end(array.count))
        array.checksum = zlib.crc32(data, array.checksum)
        array.count += 1

    def complete(self, others: Mapping[str, NDArray[Any]]) -> None:
        """Add the arrays that are whole already, and finish the file."""
        most = max((array.count for array in self._arrays.values()), default=1)
        if most < (1 - MOST_EMPTY) * self._capacity:
            self._move(most)
        entries = []
        for array in self._arrays.values():
            header = npy_header(array.row, array.count)
            entry = array.entry
            entry.file_size = entry.compress_size = len(header) + array.count * array.row.nbytes
            entry.CRC = combined(zlib.crc32(header), array.checksum, array.count * array.row.nbytes)
            _write(self._file, memoryview(entry.FileHeader(zip64=True) + header), array.offset)
            entries.append(entry)
        self._file.close()
        with self._path.open('r+b') as file, _archive_from(file, self._end) as archive:
            archive.filelist += entries
            archive.NameToInfo.update({entry.filename: entry for entry in entries})
            for name, whole in others.items():
                content = io.BytesIO()
                np.save(content, whole, allow_pickle=False)
                archive.writestr(zipfile.ZipInfo(f'{name}.npy', DATE), content.getvalue())

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()

    def _move(self, capacity: int) -> None:
        """Give every array room for so many rows, in a new file of the same name."""
        old, ends = self._file, 0
        other = self._path.with_name(f'{self._path.name}.moved')
        self._file = other.open('w+b', buffering=0)
        for array in self._arrays.values():
            begin, size = array.end(0), array.count * array.row.nbytes
            array.offset = array.entry.header_offset = ends
            for at in range(0, size, COPY_BYTES):
                part = os.pread(old.fileno(), min(size - at, COPY_BYTES), begin + at)
                _write(self._file, memoryview(part), array.end(0) + at)
            ends = array.end(capacity)
        self._end, self._capacity = ends, capacity
        old.close()
        os.replace(other, self._path)


def _archive_from(file: BinaryIO, offset: int) -> zipfile.ZipFile:
    """Return a zip archive whose next entry, and directory, are written from an offset on."""
    file.seek(offset)
    return zipfile.ZipFile(file, 'w', zipfile.ZIP_STORED)


def _write(file: FileIO, data: memoryview, offset: int) -> None:
    data = data.cast('B')
    while data:
        written = os.pwrite(file.fileno(), data, offset)
        data, offset = data[written:], offset + written


class _Array:
    def __init__(self, name: str, row: NDArray[Any], offset: int) -> None:
        self.row = row
        self.offset = offset
        self.count = 0
        self.checksum = 0  # of the rows alone
        self.entry = zipfile.ZipInfo(f'{name}.npy', DATE)
        self.entry.header_offset = offset
        self.entry.CRC = 0
        self._before = len(self.entry.FileHeader(zip64=True)) + len(npy_header(row, 0))

    def end(self, count: int) -> int:
        """Return where `count` rows of it end in the file."""
        return self.offset + self._before + count * self.row.nbytes


def combined(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32 of two byte strings after each other, from that of each and the length of the second.

    As zlib's crc32_combine, which Python does not offer: appending a zero bit to a string multiplies its CRC
    by a matrix over GF(2); its powers of two are found by squaring.
    """
    power = [0xEDB88320, *(1 << bit for bit in range(31))]  # one zero bit
    bits = 8 * second_bytes
    while bits:
        if bits & 1:
            first = _times(power, first)
        power = [_times(power, column) for column in power]
        bits >>= 1
    return first ^ second


def _times(matrix: list[int], vector: int) -> int:
    total, column = 0, 0
    while vector:
        if vector & 1:
            total ^= matrix[column]
        vector >>= 1
        column += 1
    return total
