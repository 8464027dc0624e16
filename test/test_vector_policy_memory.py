# SPDX-License-Identifier: Apache-2.0
"""Received arrays use memory again, never while anybody sees it, never much before their bytes arrive."""

from __future__ import annotations

import socket
import struct
import threading
import time
import tracemalloc

import numpy as np
import pytest

from openeta_ros.vector_policy import WireError, blocks, frames, wire
from openeta_ros.vector_policy.blocks import Blocks
from openeta_ros.vector_policy.frames import FrameSocket


@pytest.fixture
def pair():
    near, far = (FrameSocket(sock) for sock in socket.socketpair())
    near.deadline = far.deadline = time.monotonic() + 120
    yield near, far
    near.close()
    far.close()


def sent(pair, value: int) -> np.ndarray:
    """The picture that arrives when one full of this value was sent."""
    near, far = pair
    arrays = {'frames_front': np.full((200, 1000), value, np.uint8), 'qpos': np.full(3, float(value))}
    thread = threading.Thread(target=wire.send, args=(near, 'act', {}, arrays))
    thread.start()
    _, _, received = wire.recv(far)
    thread.join()
    assert received['qpos'].tolist() == [value] * 3
    return received['frames_front']


KEPT = {
    'the array': lambda array: array,
    'a row': lambda array: array[7],
    'a view turned and reversed': lambda array: array.T[::-1],
    'another dtype': lambda array: array.view(np.int64),
    'no array at all': lambda array: memoryview(array),
    'a view of bytes': lambda array: np.frombuffer(memoryview(array[3]), np.uint8),
}


@pytest.mark.parametrize('kept', KEPT.values(), ids=KEPT)
def test_whatever_a_policy_keeps_of_an_observation_never_changes(pair, kept):
    keeping = kept(sent(pair, 1))
    for value in range(2, 6):
        sent(pair, value)
    assert set(np.asarray(keeping).tobytes()) == {1}


def test_every_observation_of_a_history_stays_what_it_was(pair):
    history = [sent(pair, value) for value in range(8)]
    assert [set(picture.ravel().tolist()) for picture in history] == [{value} for value in range(8)]
    assert len({picture.ctypes.data for picture in history}) == 8


def test_the_memory_of_observations_that_nobody_keeps_is_used_again(pair):
    addresses = {sent(pair, value).ctypes.data for value in range(8)}
    assert len(addresses) == 1


def test_no_more_memory_is_kept_than_allowed():
    pool = Blocks()
    size = blocks.MAX_KEPT_BYTES // 4
    arrays = [pool.take(size) for _ in range(6)]
    addresses = [array.ctypes.data for array in arrays]
    assert len(set(addresses)) == 6
    del arrays
    again = [pool.take(size).ctypes.data for _ in range(4)]
    assert set(again) <= set(addresses[2:])  # the first two were given back to malloc


@pytest.mark.parametrize('size', [2**31 - 1, 2**33])
def test_a_length_that_is_only_announced_takes_little_memory(pair, size):
    near, far = pair
    prefix = struct.pack('!i', size) if size < 2**31 else struct.pack('!iQ', -1, size)
    near._sock.sendall(prefix + bytes(1000))
    near._sock.shutdown(socket.SHUT_WR)
    tracemalloc.start()
    try:
        with pytest.raises(EOFError):
            far.recv_buffer(2**34)
        assert tracemalloc.get_traced_memory()[1] < 2 * blocks.MAX_KEPT_BYTES
    finally:
        tracemalloc.stop()


def test_a_frame_whose_memory_grows_as_it_arrives_is_whole(pair, monkeypatch):
    monkeypatch.setattr(frames, 'MAX_KEPT_BYTES', 100_000)
    near, far = pair
    demonstration = {'b': np.arange(123_456.0), 'a': np.arange(7), 'c': np.arange(40_000, dtype=np.int32)}
    thread = threading.Thread(target=wire.send, args=(near, 'prompt', {}, demonstration))
    thread.start()
    _, _, received = wire.recv(far)
    thread.join()
    assert all(np.array_equal(received[name], array) for name, array in demonstration.items())
    assert not received['b'].flags.writeable


def test_a_short_frame_is_refused_though_the_next_never_comes(pair):
    near, far = pair
    header, body, _ = wire.encode('act', {}, {'a': np.zeros(50_000), 'b': np.zeros(3)})
    near.send_frames([header])
    thread = threading.Thread(target=near.send_frames, args=([body[:-8]],))
    thread.start()
    with pytest.raises(WireError, match=r"array 'a': 399992 bytes for a \[50000\] <f8"):
        wire.recv(far)
    thread.join()
