# SPDX-License-Identifier: Apache-2.0
"""What a server does with peers that send what no client would."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import socket
import struct
import time
from multiprocessing.connection import Client

import numpy as np
import pytest

from openeta_ros.vector_policy import PolicyUnavailable, wire
from openeta_ros.vector_policy.client import RemotePolicy
from openeta_ros.vector_policy.process import PolicyProcess

POLICY = """
import os, time
import numpy as np

class Slow:
    action_type = 'qpos'
    def reset(self, seed): pass
    def set_demonstration(self, arrays, info): pass
    def act(self, observation):
        print('key' if 'VECTOR_POLICY_AUTHKEY' in os.environ else 'no key', os.getcwd(), flush=True)
        time.sleep(float(observation['sleep_s']))
        return {'action': [1.0]}
"""


class Boom:
    """Unpickling this makes the file: proof that something unpickled it."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, 'w')


@pytest.fixture
def server(tmp_path):
    (tmp_path / 'slow.py').write_text(POLICY)
    (tmp_path / 'policy.yaml').write_text('api: 1\npolicy: slow:Slow\n')
    with PolicyProcess(tmp_path, log_file=tmp_path / 'log', timeout_s=20) as process:
        deadline = time.monotonic() + 20
        while not os.path.exists(process.address) or 'listening' not in process.log_file.read_text():
            assert time.monotonic() < deadline, process.log_file.read_text()
            time.sleep(0.02)
        yield process


def wait_for_log(server: PolicyProcess, text: str, *, times: int = 1, within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while server.log_file.read_text().count(text) < times:
        assert time.monotonic() < deadline, server.log_file.read_text()
        time.sleep(0.02)


def rogue(server: PolicyProcess) -> socket.socket:
    """A connection that has read its challenge and not answered it."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5)
    sock.connect(server.address)
    sock.recv(4096)
    return sock


def test_strangers_are_hung_up_on_with_one_line_each_and_the_next_client_is_served(server, tmp_path):
    marker = tmp_path / 'unpickled'
    payload = pickle.dumps(Boom(marker))
    nonsense = [
        b'\xff\xff\xff\xff',
        b'\xff\xff\xff\xff' + struct.pack('!Q', 1 << 32) + b'x' * 100,
        b'\x80\0\0\0',
        b'\0\0\0\0',
        random.Random(0).randbytes(64),
        struct.pack('!i', len(payload)) + payload,
        b'GET / HTTP/1.1\r\n\r\n',
    ]
    for number, data in enumerate(nonsense):
        with rogue(server) as sock:
            started = time.monotonic()
            sock.sendall(data)
            try:
                while sock.recv(4096):
                    pass
            except ConnectionResetError:
                pass
            assert time.monotonic() - started < 1
        lines = server.log_file.read_text().splitlines()[1:]
        assert len(lines) == number + 1, lines
    with rogue(server) as sock:
        sock.sendall(struct.pack('!i', 16) + b'half')
    with pytest.raises(multiprocessing.AuthenticationError):
        Client(server.address, 'AF_UNIX', authkey=b'another key than this')
    with server.connect() as policy:
        assert policy.hello()['policy'] == 'slow:Slow'
    lines = server.log_file.read_text().splitlines()[1:]
    assert len([line for line in lines if ' WARNING ' in line]) == len(nonsense) + 2
    assert 'Traceback' not in server.log_file.read_text()
    assert not marker.exists()


class OneByteAtATime:
    """A socket whose every write is a single byte."""

    def __init__(self, sock):
        self.sock = sock

    def send_bytes(self, frame):
        for byte in struct.pack('!i', len(frame)) + bytes(frame):
            self.sock.send(bytes([byte]))

    def recv_bytes(self, maxlength=None):
        (size,) = struct.unpack('!i', self.sock.recv(4, socket.MSG_WAITALL))
        return self.sock.recv(size, socket.MSG_WAITALL)


def test_a_client_whose_frames_come_one_byte_at_a_time_is_served(server):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(server.address)
        conn = OneByteAtATime(sock)
        multiprocessing.connection.answer_challenge(conn, server.authkey)
        multiprocessing.connection.deliver_challenge(conn, server.authkey)
        wire.send(conn, 'hello')
        assert wire.recv(conn)[1]['policy'] == 'slow:Slow'
        wire.send(conn, 'act', {}, {'sleep_s': 0.0})
        assert wire.recv(conn)[2]['action'] == [1.0]


@pytest.mark.parametrize(
    ('data', 'said'),
    [
        (b'\xff\xff\xff\xff', 'header: frame longer than 4194304 bytes'),
        (struct.pack('!i', 0), 'malformed header: JSONDecodeError'),
        (random.Random(1).randbytes(64), 'malformed header: JSONDecodeError'),  # a negative length
        (
            struct.pack('!i', 40) + pickle.dumps(Boom('/nowhere/at/all'))[:40],
            'malformed header: UnicodeDecodeError',
        ),
    ],
    ids=['long', 'empty', 'random', 'pickle'],
)
def test_a_malformed_message_of_the_client_is_answered_with_the_reason_and_ends_the_session(
    server, data, said
):
    conn = Client(server.address, 'AF_UNIX', authkey=server.authkey)
    wire.send(conn, 'hello')
    assert wire.recv(conn)[0] == 'ok'
    os.write(conn.fileno(), data)
    started = time.monotonic()
    op, fields, _ = wire.recv(conn)
    assert time.monotonic() - started < 1
    assert op == 'error' and said in fields['message']
    with pytest.raises((EOFError, ConnectionResetError)):
        wire.recv(conn)
    wait_for_log(server, 'malformed message, ending the session: ')
    assert 'Traceback' not in server.log_file.read_text()


def test_a_client_that_is_still_sending_when_its_message_is_refused_gets_to_read_why(server):
    conn = Client(server.address, 'AF_UNIX', authkey=server.authkey)
    wire.send(conn, 'hello')
    wire.recv(conn)
    header, body = wire.encode('act', {}, {'x': np.zeros(500_000)})
    conn.send_bytes(header.replace(b'<f8', b'|O8'))
    wait_for_log(server, 'malformed message')
    conn.send_bytes(body)
    assert "dtype '|O8'" in wire.recv(conn)[1]['message']


def test_half_a_frame_and_then_nothing_is_a_client_that_hung_up(server):
    with Client(server.address, 'AF_UNIX', authkey=server.authkey) as conn:
        os.write(conn.fileno(), struct.pack('!i', 100) + b'{"protocol"')
    wait_for_log(server, 'the client hung up')


def test_a_client_that_gives_up_during_a_call_takes_the_server_along(server):
    policy = server.connect()
    policy.hello()
    policy.timeout_s = 0.3
    with pytest.raises(PolicyUnavailable, match=r'act: no answer within 0\.3s'):
        policy.act({'sleep_s': 3600.0})
    wait_for_log(server, 'the client hung up during act; exiting without its answer')


def test_requests_that_are_sent_ahead_are_answered_in_order_though_the_client_reads_late(server):
    conn = Client(server.address, 'AF_UNIX', authkey=server.authkey)
    for op in ('hello', 'act', 'act', 'close'):
        wire.send(conn, op, {}, {'sleep_s': 0.2})
    assert [wire.recv(conn)[0] for _ in range(4)] == ['ok', 'action', 'action', 'ok']


def test_the_policy_sees_its_own_directory_and_never_the_key(server, tmp_path):
    with server.connect() as policy:
        policy.hello()
        policy.act({'sleep_s': np.array(0.0)})
    assert f'no key {tmp_path}' in server.log_file.read_text()


def test_a_server_over_tcp_answers_without_waiting_for_delayed_acknowledgements(server):
    """Nagle's algorithm and delayed acknowledgements would cost 40 ms for each of these."""
    from openeta_ros.vector_policy.frames import FrameSocket

    with socket.create_server(('127.0.0.1', 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    near, far = FrameSocket(near), FrameSocket(far)
    observation = {str(number): np.zeros(10) for number in range(8)}
    started = time.monotonic()
    for _ in range(20):
        wire.send(near, 'act', {}, observation)
        wire.recv(far)
        wire.send(far, 'action', {}, {'action': [1.0]})
        wire.recv(near)
    assert time.monotonic() - started < 0.4
    near.close()
    far.close()


def test_only_one_client_is_ever_served(server):
    with server.connect() as policy:
        policy.hello()
        assert not os.path.exists(server.address)
        with pytest.raises(PolicyUnavailable, match=r'nothing listened at .* within 0\.2s'):
            RemotePolicy(server.address, server.authkey, timeout_s=0.2)
