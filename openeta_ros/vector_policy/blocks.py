# SPDX-License-Identifier: Apache-2.0
"""Memory to receive arrays into, used again once no array refers to it.

Fresh memory is most of what receiving a picture costs: the kernel clears each page when it is first touched,
which takes longer than copying the picture into it. A block is used again only when nothing shares it any
more, neither an array nor any view of one, so that an array that somebody keeps never changes.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = 'np.ndarray[Any, np.dtype[Any]]'

#: Smaller arrays come from malloc, which uses memory again by itself.
MIN_BLOCK_BYTES = 64 << 10
#: Most memory kept. It is also the largest array whose memory is taken before its bytes arrive.
MAX_KEPT_BYTES = 64 << 20


class Blocks:
    """Blocks for one receiver; not to be shared between threads."""

    def __init__(self) -> None:
        self._blocks: deque[bytearray] = deque()
        self._kept_bytes = 0

    def take(self, size: int) -> Array:
        """Return (size,) uint8 that nobody else refers to, holding anything; at most MAX_KEPT_BYTES."""
        if size < MIN_BLOCK_BYTES:
            return np.empty(size, np.uint8)
        for block in self._blocks:
            if len(block) == size and not _shared(block):
                return np.frombuffer(block, np.uint8)
        block = bytearray(size)
        self._blocks.append(block)
        self._kept_bytes += size
        while self._kept_bytes > MAX_KEPT_BYTES:
            self._kept_bytes -= len(self._blocks.popleft())  # stays with the arrays that refer to it
        return np.frombuffer(block, np.uint8)


def _shared(block: bytearray) -> bool:
    """Say whether anything refers to a block's bytes: a bytearray then refuses to change its length."""
    try:
        block.pop()
    except BufferError:
        return True
    block.append(0)  # fits where the last byte was: nothing is moved
    return False
