# SPDX-License-Identifier: Apache-2.0
"""What a server does with peers that send what no client would."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import random
import select
import socket
import struct
import threading
import time
from multiprocessing.connection import Client
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from openeta_ros.vector_policy import PolicyUnavailable, wire
from openeta_ros.vector_policy import session as session_module
from openeta_ros.vector_policy.client import RemotePolicy
from openeta_ros.vector_policy.frames import FrameSocket
from openeta_ros.vector_policy.process import PolicyProcess
from openeta_ros.vector_policy.session import Session

# For what is sure to happen, however busy the machine is.
SURE_S = 120.0

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
    with PolicyProcess(tmp_path, log_file=tmp_path / 'log', timeout_s=SURE_S) as process:
        wait_for_log(process, 'listening')
        yield process


def wait_for_log(server: PolicyProcess, text: str, *, times: int = 1) -> None:
    deadline = time.monotonic() + SURE_S
    while server.log_file.read_text().count(text) < times:
        assert time.monotonic() < deadline, server.log_file.read_text()
        time.sleep(0.02)


def rogue(server: PolicyProcess) -> socket.socket:
    """A connection that has read its challenge and not answered it."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(SURE_S)
    sock.connect(server.address)
    sock.recv(4096)
    return sock


def session(sock: socket.socket, **options: Any) -> Session:
    """A session in this process with a client that has shown that it knows the key."""
    return Session(cast(Any, SimpleNamespace(policy='slow:Slow')), FrameSocket(sock), **options)


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
            sock.sendall(data)
            try:
                while sock.recv(4096):
                    pass
            except ConnectionResetError:
                pass
        lines = server.log_file.read_text().splitlines()[1:]
        assert len(lines) == number + 1, lines
    with rogue(server) as sock:
        sock.sendall(struct.pack('!i', 16) + b'half')
    with pytest.raises(multiprocessing.AuthenticationError):
        Client(server.address, 'AF_UNIX', authkey=b'another key than this')
    wait_for_log(server, ' WARNING ', times=len(nonsense) + 2)
    with server.connect() as policy:
        assert policy.hello()['policy'] == 'slow:Slow'
    assert server.log_file.read_text().count(' WARNING ') == len(nonsense) + 2
    assert 'Traceback' not in server.log_file.read_text()
    assert not marker.exists()


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
    data, said, caplog, monkeypatch
):
    monkeypatch.setattr(session_module, 'LINGER_S', 0.05)  # this client reads when the session is over
    near, far = socket.socketpair()
    near.sendall(data)
    assert session(far).run() == 1
    conn = FrameSocket(near)
    op, fields, _ = wire.recv(conn)
    assert op == 'error' and said in fields['message']
    with pytest.raises((EOFError, ConnectionResetError)):
        wire.recv(conn)
    conn.close()
    assert caplog.messages == [f'malformed message, ending the session: {fields["message"]}']


def test_a_client_that_is_still_sending_when_its_message_is_refused_gets_to_read_why(monkeypatch):
    monkeypatch.setattr(session_module, 'LINGER_S', SURE_S)
    with socket.create_server(('127.0.0.1', 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    thread = threading.Thread(target=session(far).run)
    thread.start()
    conn = FrameSocket(near)
    header, body = wire.encode('act', {}, {'x': np.zeros(5_000_000)})
    conn.send_frames([header.replace(b'<f8', b'|O8')])
    assert select.select([near], [], [], SURE_S)[0]  # it is refused by now
    conn.send_frames([body])
    assert "dtype '|O8'" in wire.recv(conn)[1]['message']
    conn.close()
    thread.join(SURE_S)
    assert not thread.is_alive()


def test_half_a_frame_and_then_nothing_is_a_client_that_hung_up(caplog):
    caplog.set_level(logging.INFO, 'vector_policy.serve')
    near, far = socket.socketpair()
    near.sendall(struct.pack('!i', 100) + b'{"protocol"')
    near.close()
    assert session(far).run() == 0
    assert caplog.messages == ['the client hung up']


def test_a_client_that_stops_in_the_middle_of_a_message_is_given_up_like_a_silent_one(caplog):
    caplog.set_level(logging.INFO, 'vector_policy.serve')
    near, far = socket.socketpair()
    with near:
        near.sendall(struct.pack('!i', 100) + b'{"protocol"')
        assert session(far, idle_timeout_s=0.2).run() == 0
    assert caplog.messages == ['the client said nothing for 0.2s; ending the session']


def test_a_client_that_gives_up_during_a_call_takes_the_server_along(server):
    policy = server.connect()
    policy.hello()
    policy.timeout_s = 0.3
    with pytest.raises(PolicyUnavailable, match=r'act: no answer within 0\.3s'):
        policy.act({'sleep_s': 3600.0})
    wait_for_log(server, 'the client hung up during act; exiting without its answer')


def test_requests_that_are_sent_ahead_are_answered_in_order_though_the_client_reads_late():
    acts = iter([[1.0], [2.0]])
    policy = SimpleNamespace(action_type='qpos', act=lambda observation: {'action': next(acts)})
    near, far = socket.socketpair()
    conn = FrameSocket(near)
    for op in ('hello', 'act', 'act', 'close'):
        wire.send(conn, op)
    assert session(far, policy=policy, last=False).run() == 0
    answers = [wire.recv(conn) for _ in range(4)]
    assert [op for op, _, _ in answers] == ['ok', 'action', 'action', 'ok']
    assert [answers[index][2]['action'].tolist() for index in (1, 2)] == [[1.0], [2.0]]
    conn.close()


def test_the_policy_sees_its_own_directory_and_never_the_key(server, tmp_path):
    with server.connect() as policy:
        policy.hello()
        policy.act({'sleep_s': np.array(0.0)})
    assert f'no key {tmp_path}' in server.log_file.read_text()


class Watched(socket.socket):
    """A socket that counts its writes, and keeps what it is told to do with packets."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(fileno=sock.detach())
        self.writes, self.options = 0, []

    def sendmsg(self, *arguments: Any) -> int:
        self.writes += 1
        return super().sendmsg(*arguments)

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if level == socket.IPPROTO_TCP:
            self.options.append((option, value))
        super().setsockopt(level, option, value)


def test_over_tcp_nobody_waits_for_delayed_acknowledgements():
    """Nagle's algorithm and delayed acknowledgements would cost each message 40 ms."""
    with socket.create_server(('127.0.0.1', 0)) as listener:
        near = Watched(socket.create_connection(listener.getsockname()))
        far = Watched(listener.accept()[0])
    frames = {sock: FrameSocket(sock) for sock in (near, far)}
    observation = {str(number): np.zeros(10) for number in range(8)}
    for sent in (1, 2):
        wire.send(frames[near], 'act', {}, observation)
        wire.recv(frames[far])
        assert near.writes == sent
        assert far.options.count((socket.TCP_QUICKACK, 1)) >= sent
    for sock, conn in frames.items():
        assert (socket.TCP_NODELAY, 1) in sock.options
        conn.close()


def test_only_one_client_is_ever_served(server):
    with server.connect() as policy:
        policy.hello()
        assert not os.path.exists(server.address)
        with pytest.raises(PolicyUnavailable, match=r'nothing listened at .* within 0\.2s'):
            RemotePolicy(server.address, server.authkey, timeout_s=0.2)
