# SPDX-License-Identifier: Apache-2.0
"""Length-prefixed frames over a stream socket, byte for byte as multiprocessing.connection writes them.

Why not its Connection: that one copies every frame twice in Python, writes a message of many arrays in many
small packets (Nagle's algorithm and delayed acknowledgements then cost 40 ms each on TCP), and cannot stop
waiting at a deadline. Here a message leaves in one vectored write and arrays are read where they stay, each
in a single call of the kernel, which knows the deadline itself (SO_RCVTIMEO).
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from openeta_ros.vector_policy.blocks import MAX_KEPT_BYTES, Array, Blocks

#: Anything one frame can be made of. len() must count bytes.
Frame: TypeAlias = 'bytes | bytearray | memoryview'

_SHORT = struct.Struct('!i')
_LONG = struct.Struct('!Q')
_MAX_SHORT = 0x7FFFFFFF
#: Buffers the kernel takes in one call (UIO_MAXIOV).
_MAX_BUFFERS = 1024
#: What one read takes that may be more than was asked for: a message without pictures comes whole.
_AHEAD_BYTES = 4096
#: How long the rest of a length may take that can only be over the limit.
_ODD_LENGTH_S = 0.5
_TIMEVAL = struct.Struct('@ll')
#: A longer wait is for good: the kernel's own numbers end somewhere.
LONGEST_S = 1e9


class FrameSocket:
    """One end of a connection.

    Attributes:
        deadline: time.monotonic() after which every wait raises TimeoutError; None waits for good.
        patience_s: how long the other end may stop in the middle of a frame, or take none of ours, before
            TimeoutError is raised; None for good. Waiting for a frame to begin is not meant.
        readable: False once a frame longer than accepted began: its bytes are still in the way.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.deadline: float | None = None
        self.patience_s: float | None = None
        self.readable = True
        self._sock = sock
        self._blocks = Blocks()
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._first = self._last = 0  # of the bytes read ahead
        self._timeouts: dict[int, float] = {}
        self._tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
        sock.settimeout(None)
        if self._tcp:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._sock.fileno()

    def wait_readable(self, timeout_s: float | None = None) -> bool:
        """Wait for the first byte of a frame, until the deadline; False when it is not there by timeout_s.

        Raises:
            EOFError, OSError: the connection ended or broke.
        """
        if self._first == self._last:
            try:
                self._first, self._last = 0, self._receive([self._ahead], 0, timeout_s)
            except TimeoutError:
                if timeout_s is None:
                    raise
                return False
        return True

    def wait_hang_up(self) -> None:
        """Wait until the other end has finished sending, whatever is still unread, or is gone."""
        poller = select.poll()
        poller.register(self._sock, select.POLLRDHUP)
        poller.poll()

    def peer_left(self) -> bool:
        """Say whether the other end is gone and left nothing to read. Does not wait, takes no byte."""
        if self._first < self._last:
            return False
        try:
            return not self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def finish(self, linger_s: float) -> None:
        """Send no more, and throw away what still comes until the other end closes, linger_s at most.

        A socket closed with bytes unread resets the connection, and the last reply may be lost with it.
        """
        with contextlib.suppress(OSError, EOFError):
            self._sock.shutdown(socket.SHUT_WR)
            self.deadline = time.monotonic() + linger_s
            rest = memoryview(bytearray(1 << 16))
            while True:
                self._receive([rest], 0, None)

    def close(self) -> None:
        """Hang up, also when a forked child still holds this socket. Data already sent is delivered."""
        self.hang_up()
        self._sock.close()

    def hang_up(self) -> None:
        """End the connection for whoever is using it, in any thread. close() is still needed."""
        with contextlib.suppress(OSError):  # the other end was first
            self._sock.shutdown(socket.SHUT_RDWR)

    def send_bytes(self, frame: Frame) -> None:
        self.send_frames([frame])

    def send_frames(self, frames: Sequence[Frame]) -> None:
        """Send frames in order, in as few writes as the kernel takes, without joining them."""
        buffers: list[Any] = []
        for frame in frames:
            size = len(frame)
            if size > _MAX_SHORT:
                buffers.append(_SHORT.pack(-1) + _LONG.pack(size))
            else:
                buffers.append(_SHORT.pack(size))
            if size:
                buffers.append(memoryview(frame))
        first = 0
        while first < len(buffers):
            self._let_wait(socket.SO_SNDTIMEO, self.patience_s)
            try:
                sent = self._sock.sendmsg(buffers[first : first + _MAX_BUFFERS])
            except BlockingIOError:
                raise TimeoutError('timed out') from None
            while sent:
                size = len(buffers[first])
                if sent < size:
                    buffers[first] = memoryview(buffers[first])[sent:]
                    break
                sent -= size
                first += 1

    def recv_bytes(self, maxlength: int) -> bytes:
        """Receive one frame of at most maxlength bytes.

        Raises:
            EOFError: the connection ended.
            OSError: it broke, or the frame is longer (`readable` is then False, its body unread).
            TimeoutError: the deadline passed, or the other end stopped in the middle of the frame.
        """
        self.wait_readable()
        return self.recv_buffer(maxlength).tobytes()

    def recv_buffer(self, maxlength: int, more: bool = False) -> Array:
        """Receive one frame like `recv_bytes`, as a (N,) uint8 array of its own that nothing was copied into.

        With `more`, a frame of just maxlength is followed by another, whose length is read in the same call.
        The memory taken never exceeds MAX_KEPT_BYTES, or twice what has arrived.
        """
        size = self._read_length(maxlength)
        if size > maxlength:
            self.readable = False
            raise OSError('bad message length')
        if size <= MAX_KEPT_BYTES:
            buffer = self._blocks.take(size)
            self._fill(buffer.data, more and size == maxlength)
            return buffer
        buffer, filled = np.empty(MAX_KEPT_BYTES, np.uint8), 0
        while filled < size:
            buffer.resize(min(size, max(2 * filled, buffer.size)), refcheck=False)  # no view of it is left
            self._fill(buffer.data[filled:])
            filled = buffer.size
        return buffer

    def _read_length(self, maxlength: int) -> int:
        """Read the length before a frame. What no sender writes means what multiprocessing takes it for."""
        size: int
        (size,) = _SHORT.unpack(self._take(_SHORT.size, self.patience_s))
        if size != -1:
            return max(size, 0)
        over = maxlength < _MAX_SHORT  # no frame within such a limit needs this form
        try:
            (size,) = _LONG.unpack(self._take(_LONG.size, _ODD_LENGTH_S if over else self.patience_s))
        except TimeoutError:
            if not over:
                raise
            return maxlength + 1
        return size

    def _take(self, size: int, timeout_s: float | None) -> memoryview:
        """Return the next few bytes, which hold until the next call."""
        while self._last - self._first < size:
            if self._first:
                self._ahead[: self._last - self._first] = self._ahead[self._first : self._last]
                self._first, self._last = 0, self._last - self._first
            self._last += self._receive([self._ahead[self._last :]], 0, timeout_s)
        self._first += size
        return self._ahead[self._first - size : self._first]

    def _fill(self, rest: memoryview, more: bool = False) -> None:
        """Fill this memory with the next bytes; with `more`, read the length that follows them ahead."""
        known = min(self._last - self._first, len(rest))
        rest[:known] = self._ahead[self._first : self._first + known]
        self._first += known
        while known < len(rest):  # nothing is left ahead
            rest = rest[known:]
            buffers = [rest, self._ahead[: _SHORT.size]] if more else [rest]
            known = self._receive(buffers, socket.MSG_WAITALL, self.patience_s)
            self._first, self._last = 0, max(known - len(rest), 0)

    def _receive(self, buffers: list[memoryview], flags: int, timeout_s: float | None) -> int:
        """Receive into these buffers, one after the other, and return how many bytes came, 1 at least."""
        if self._tcp:
            # The kernel clears this again by itself. Without it a peer that leaves Nagle's algorithm on
            # (every stock multiprocessing.connection) waits 40 ms for each acknowledgement.
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        self._let_wait(socket.SO_RCVTIMEO, timeout_s)
        try:
            received = self._sock.recvmsg_into(buffers, 0, flags)[0]
        except BlockingIOError:
            raise TimeoutError('timed out') from None
        if not received:
            raise EOFError('the connection ended')
        return received

    def _let_wait(self, option: int, timeout_s: float | None) -> None:
        """Let the next call of the kernel wait this long, and no longer than the deadline."""
        seconds = math.inf if timeout_s is None else timeout_s
        if self.deadline is not None:
            seconds = min(seconds, self.deadline - time.monotonic())
            if seconds <= 0:
                raise TimeoutError('timed out')
        if self._timeouts.get(option, math.inf) == seconds:
            return
        self._timeouts[option] = seconds
        # In whole microseconds, one at least: zero is for good.
        whole_s, us = divmod(0 if seconds > LONGEST_S else max(int(seconds * 1e6), 1), 1_000_000)
        self._sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(whole_s, us))
