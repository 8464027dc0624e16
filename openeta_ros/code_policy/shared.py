# SPDX-License-Identifier: Apache-2.0
"""Pictures from the runtime to a snippet's process through memory that both have mapped.

A picture over the socket takes the two processes several turns each, as its buffer holds less than half of
one. The runtime alone writes here, between a call and its answer, and never where a picture is that the
process said it still holds: what a snippet gets is this memory itself, read-only, and nothing is copied. What
the runtime is told of that it need not believe: it reads nothing here, and a process that holds everything is
sent its pictures over the socket. The size is sealed, so that nobody can take memory away from a writer.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import weakref
from collections.abc import Collection
from typing import Any

import numpy as np

from openeta_ros.code_policy.values import Array

#: Of the memory, which is only used as far as pictures fill it.
SHARED_BYTES = 32 << 20
#: Smaller arrays go with the message.
LEAST_BYTES = 16 << 10
_ALIGNED = 64


class SharedMemory:
    """The writer's end. `descriptor` is what the reader maps; close it once that has begun."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create('pictures', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, SHARED_BYTES)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        self._bytes = np.frombuffer(mmap.mmap(self.descriptor, SHARED_BYTES), np.uint8)
        self._ends: dict[int, int] = {}

    def begin(self, held: Collection[Any]) -> None:
        """Begin an answer: what was placed before may be overwritten, but for what starts at `held`."""
        self._ends = {start: end for start, end in self._ends.items() if start in held}

    def place(self, array: Array) -> list[Any] | None:
        """Write an array; return where it is and what, or None when it is small or does not fit."""
        size = array.nbytes
        if size < LEAST_BYTES or array.dtype.byteorder == '>':
            return None
        start = 0
        for taken, end in sorted(self._ends.items()):
            if start + size <= taken:
                break
            start = -(-end // _ALIGNED) * _ALIGNED
        if start + size > SHARED_BYTES:
            return None
        np.copyto(self._bytes[start : start + size].view(array.dtype).reshape(array.shape), array)
        self._ends[start] = start + size
        return [start, array.dtype.str, list(array.shape)]


class SharedReader:
    """The reader's end, of the descriptor that it inherited and closes."""

    def __init__(self, descriptor: int) -> None:
        self._bytes = memoryview(mmap.mmap(descriptor, SHARED_BYTES, prot=mmap.PROT_READ))
        os.close(descriptor)
        self._owners: dict[int, weakref.ref[Array]] = {}

    def fetch(self, place: list[Any]) -> Array:
        """Return what was placed, read-only and where it is: it is held until the last view of it is gone."""
        start, dtype, shape = place
        size = math.prod(shape) * np.dtype(dtype).itemsize
        # NumPy makes the first array over a buffer the base of all views of it, and of views of views.
        owner: Array = np.frombuffer(self._bytes[start : start + size], dtype)
        self._owners[start] = weakref.ref(owner)
        return owner.reshape(shape)

    def held(self) -> list[int]:
        """Return the starts of what was fetched and is still in use."""
        self._owners = {start: owner for start, owner in self._owners.items() if owner() is not None}
        return list(self._owners)
