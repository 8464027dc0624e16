# SPDX-License-Identifier: Apache-2.0
"""The files of a bag: which there are, in which order, and what was compressed by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import zstandard

from openeta_ros.episodes.bag_metadata import METADATA, BagError

ZSTD = b'\x28\xb5\x2f\xfd'
UNPACKED_AT_ONCE = 1 << 20
# What ends with a larger number is no split: a date, say.
MOST_SPLITS = 10_000
SUFFIXES = ('.mcap', '.db3', '.mcap.zstd', '.db3.zstd', '.mcap.zst', '.db3.zst')


def bag_files(folder: Path) -> list[Path]:
    """Return the storage files of a folder without metadata.yaml, splits in the order of their numbers."""
    files = [file for file in folder.iterdir() if file.name.endswith(SUFFIXES) and file.is_file()]
    kinds = {'mcap' if '.mcap' in file.name else 'db3' for file in files}
    if len(kinds) != 1:
        names = ', '.join(sorted(file.name for file in files))
        remedy = f'{names}; name the file that is meant' if names else 'no .mcap and no .db3'
        raise BagError(f'{folder} has no {METADATA} that says what is in it, and holds {remedy}')
    return sorted(
        files, key=lambda file: [int(part) if part.isdigit() else part for part in _parts(file.name)]
    )


def missing_splits(files: Sequence[Path]) -> list[str]:
    """Return a note where the numbers of the splits say that some are not there."""
    numbers = [int(found[1]) for file in files if (found := re.search(r'_(\d+)\.(?:mcap|db3)', file.name))]
    if len(files) < 2 or len(numbers) != len(files) or numbers[-1] >= MOST_SPLITS:
        return []
    missing = sorted(set(range(numbers[-1])) - set(numbers))
    told = ', '.join(map(str, missing[:5])) + (', ...' if len(missing) > 5 else '')
    return (
        [f'by the numbers of {files[0].name} to {files[-1].name}, splits are missing: {told}']
        if missing
        else []
    )


def _parts(name: str) -> list[str]:
    return re.split(r'(\d+)', name)


def unpacked(file: Path, folder: Path) -> Path:
    """Return a file that was compressed as a whole, unpacked."""
    target = folder / file.name.removesuffix('.zstd').removesuffix('.zst')
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        with file.open('rb') as packed, target.open('wb') as plain:
            while data := packed.read(UNPACKED_AT_ONCE):
                while data:
                    if frame.eof:
                        frame = zstandard.ZstdDecompressor().decompressobj()
                    plain.write(frame.decompress(data))
                    data = frame.unused_data
    except zstandard.ZstdError as error:
        raise BagError(f'{file} cannot be unpacked: {error}') from None
    if not frame.eof:
        raise BagError(f'{file} cannot be unpacked: it is truncated')
    return target


def plain(data: bytes | memoryview) -> bytes:
    """Return a message that was compressed by itself, unpacked."""
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except zstandard.ZstdError as error:
        raise BagError(f'a compressed message cannot be unpacked: {error}') from None
