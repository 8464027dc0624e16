# SPDX-License-Identifier: Apache-2.0
"""Whatever bytes come, the receiver returns or refuses in time, as the published implementation does."""

from __future__ import annotations

import json
import random
import socket
import struct
import time
import tracemalloc
from multiprocessing.connection import Connection

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openeta_ros.vector_policy import WireError, wire
from openeta_ros.vector_policy.frames import FrameSocket

peer_wire = pytest.importorskip(
    'vector_policy.wire', reason='the peer robotensor-vector-policy is not installed'
)

ARRAYS = {
    'frames_front': np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
    'none': np.zeros((0, 2)),
    'qpos': 1.5,
}
FRAMES = wire.encode('act', {'info': {'a': [1, None]}}, ARRAYS)
VALID = b''.join(struct.pack('!i', len(frame)) + bytes(frame) for frame in FRAMES)
MAX_BYTES = 1 << 20
# A busy machine is slow to make examples; what they are stays the same.
SLOWLY = {'deadline': None, 'derandomize': True, 'suppress_health_check': [HealthCheck.too_slow]}


def outcome(receive) -> tuple:
    try:
        op, fields, arrays = receive()
    except (WireError, peer_wire.WireError) as exc:
        return 'refused', str(exc)
    except (EOFError, OSError):
        return ('gone',)
    return (
        op,
        fields,
        {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()},
    )


def ours(data: bytes) -> tuple:
    """What our receiver makes of these bytes and the end of the connection, in time and in little memory."""
    near, far = socket.socketpair()
    with near, far:
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)
        conn = FrameSocket(far)
        conn.deadline = time.monotonic() + 120
        return outcome(lambda: wire.recv(conn, max_bytes=MAX_BYTES))


def peers(data: bytes) -> tuple:
    near, far = socket.socketpair()
    with near, Connection(far.detach()) as conn:
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)
        return outcome(lambda: peer_wire.recv(conn, max_bytes=MAX_BYTES))


def test_every_byte_of_a_message_flipped_cut_off_or_doubled_is_taken_as_the_peer_takes_it():
    for position in range(len(VALID)):
        before, byte, after = VALID[:position], VALID[position], VALID[position + 1 :]
        for data in (
            before + bytes([byte ^ 0xFF]) + after,
            before + bytes([byte ^ 1]) + after,
            before,
            before + bytes([byte]) + VALID[position:],
            before + after,
        ):
            assert ours(data) == peers(data), data


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=4) | st.just('<f8'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
entries = st.fixed_dictionaries(
    {
        'name': st.text(max_size=3) | json_values,
        'dtype': st.sampled_from(sorted(wire.DTYPES)) | json_values,
        'shape': st.lists(st.integers(-1, 5), max_size=4) | json_values,
    },
    optional={'extra': json_values},
)
headers = st.fixed_dictionaries(
    {
        'protocol': st.just(1) | json_values,
        'op': st.sampled_from(wire.CLIENT_OPS) | json_values,
        'fields': st.just({}) | json_values,
        'arrays': st.lists(entries, max_size=3) | json_values,
    },
    optional={'more': json_values},
)


@settings(max_examples=250, **SLOWLY)
@given(headers, st.lists(st.binary(max_size=40), max_size=3))
def test_any_header_and_any_frames_are_taken_as_the_peer_takes_them(header, bodies):
    frames = [json.dumps(header).encode(), *bodies]
    data = b''.join(struct.pack('!i', len(frame)) + frame for frame in frames)
    assert ours(data) == peers(data)


@settings(max_examples=500, **SLOWLY)
@given(st.binary(max_size=200))
def test_any_bytes_are_taken_as_the_peer_takes_them(data):
    assert ours(data) == peers(data)


def test_no_message_takes_more_memory_than_is_permitted():
    randomness = random.Random(0)
    worst = 0
    for _ in range(200):
        shape = [
            randomness.choice([1, 7, 2**10, 2**20, 2**31, 2**62]) for _ in range(randomness.randrange(3))
        ]
        header = {
            'protocol': 1,
            'op': 'act',
            'fields': {},
            'arrays': [{'name': 'x', 'dtype': '|u1', 'shape': shape}],
        }
        text = json.dumps(header).encode()
        prefix = randomness.choice(
            [struct.pack('!i', 2**31 - 1), struct.pack('!iQ', -1, 2**62), b'\0\x0f\xff\xff']
        )
        tracemalloc.start()
        ours(struct.pack('!i', len(text)) + text + prefix)
        worst = max(worst, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert worst < MAX_BYTES + (1 << 20)


def test_a_sender_that_stops_is_given_up_at_the_deadline_wherever_it_stops():
    for length in range(0, len(VALID), 37):
        near, far = socket.socketpair()
        with near, far:
            near.sendall(VALID[:length])
            conn = FrameSocket(far)
            conn.deadline = time.monotonic() + 0.05
            with pytest.raises(TimeoutError):
                wire.recv(conn, max_bytes=MAX_BYTES)
