# SPDX-License-Identifier: Apache-2.0
"""Who gets in to a served policy, in which order, and what one policy does for several clients in turn."""

from __future__ import annotations

import multiprocessing.connection
import os
import secrets
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import answer_challenge, deliver_challenge
from pathlib import Path

import pytest
from ports import held_port

from openeta_ros.vector_policy import PolicyUnavailable, listener, wire
from openeta_ros.vector_policy import serve as serve_module
from openeta_ros.vector_policy.client import RemotePolicy

ROOT = Path(__file__).parents[1]
# For what is sure to happen, however busy the machine is.
SURE_S = 120.0

POLICY = """
import itertools, pathlib, time

built = itertools.count(1)

class Counting:
    action_type = 'qpos'

    def __init__(self):
        self.built = next(built)
        self.acts = 0

    def reset(self, seed):
        pass

    def set_demonstration(self, arrays, info):
        pass

    def act(self, observation):
        self.acts += 1
        while 'wait' in observation and not pathlib.Path('go').exists():
            time.sleep(0.02)
        return {'action': [self.built, self.acts]}

    def close(self):
        print('the policy was closed', flush=True)
"""


class Server:
    def __init__(self, folder: Path, address: str, *options: str) -> None:
        (folder / 'counting.py').write_text(POLICY)
        (folder / 'policy.yaml').write_text('api: 1\npolicy: counting:Counting\n')
        self.address, self.key, self.log = address, secrets.token_bytes(16), folder / 'log'
        command = [
            sys.executable,
            '-m',
            'openeta_ros.vector_policy.serve',
            '--manifest',
            folder / 'policy.yaml',
        ]
        command += ['--address', address, '--authkey-env', 'KEY', '--log-file', self.log, *options]
        self.process = subprocess.Popen(
            command, env={**os.environ, 'KEY': self.key.hex(), 'PYTHONPATH': str(ROOT)}
        )
        self.wait_for_log('listening on ')

    def wait_for_log(self, text: str) -> None:
        deadline = time.monotonic() + SURE_S
        while not self.log.exists() or text not in self.log.read_text():
            assert time.monotonic() < deadline, self.log.read_text() if self.log.exists() else 'no log'
            time.sleep(0.02)

    def connect(self) -> RemotePolicy:
        return RemotePolicy(self.address, self.key, timeout_s=SURE_S)


@pytest.fixture
def serve(tmp_path):
    """serve(*options, address=...): a Server that listens."""
    servers = []

    def start(*options: str, address: str | None = None) -> Server:
        servers.append(Server(tmp_path, address or str(tmp_path / 's'), *options))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()


class Door:
    """A listener in this process, for those who know the key; it never gives up on who says nothing."""

    def __init__(self, address: str) -> None:
        self.address, self.key = address, secrets.token_bytes(16)
        self.listener = listener.Listener(address)
        self.listener.admit(self.key)

    def stranger(self) -> socket.socket:
        """A peer that has read its challenge, and says nothing."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(SURE_S)
        sock.connect(self.address)
        sock.recv(4096)
        return sock

    def let_in(self) -> None:
        """Go in, and leave."""
        policy = RemotePolicy(self.address, self.key, timeout_s=SURE_S)
        self.listener.next_client().close()
        policy.close()


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr(listener, 'HANDSHAKE_TIMEOUT_S', 2 * SURE_S)
    opened = Door(str(tmp_path / 's'))
    yield opened
    opened.listener.close()


def test_peers_that_say_nothing_keep_no_client_waiting(door):
    strangers = [door.stranger() for _ in range(5)]
    door.let_in()
    door.listener.close()
    for stranger in strangers:
        assert stranger.recv(1) == b''  # nobody else gets in
        stranger.close()


def test_a_peer_that_stops_in_the_middle_of_its_answer_is_hung_up_on_before_one_that_is_slow(door, caplog):
    with door.stranger() as half, door.stranger() as silent:
        half.sendall(struct.pack('!i', 16) + b'half')
        assert half.recv(1) == b''
        assert caplog.messages == ['a client did not authenticate in time']
        silent.settimeout(0.1)
        with pytest.raises(TimeoutError):  # a slow client still has time
            silent.recv(1)
        door.let_in()


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


def test_a_client_whose_frames_come_one_byte_at_a_time_is_let_in_and_understood(door, monkeypatch):
    monkeypatch.setattr(listener, 'STALL_TIMEOUT_S', SURE_S)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(door.address)
        conn = OneByteAtATime(sock)
        answer_challenge(conn, door.key)
        deliver_challenge(conn, door.key)
        served = door.listener.next_client()
        wire.send(conn, 'act', {'a': [1]}, {'x': [2.0]})
        op, fields, arrays = wire.recv(served)
        assert (op, fields, arrays['x'].tolist()) == ('act', {'a': [1]}, [2.0])
        wire.send(served, 'action', {}, {'action': [1.0]})
        assert wire.recv(conn)[2]['action'] == [1.0]
        served.close()


def test_the_file_of_a_unix_socket_is_the_users_alone(door):
    assert stat.S_IMODE(os.stat(door.address).st_mode) == 0o600


@pytest.fixture
def ipv6_address() -> Iterator[str]:
    try:
        socket.create_server(('::1', 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip('this machine has no IPv6')
    with held_port('::1') as port:
        yield f'[::1]:{port}'


def test_a_policy_is_served_over_ipv6(serve, ipv6_address):
    with serve(address=ipv6_address).connect() as policy:
        assert policy.hello()['policy'] == 'counting:Counting'
        assert policy.act({})['action'].tolist() == [1, 1]


def test_brackets_around_something_else_than_ipv6_are_refused_by_name():
    with pytest.raises(PolicyUnavailable, match=r'^connect: cannot reach \[no such\]:80: '):
        RemotePolicy('[no such]:80', secrets.token_bytes(16), timeout_s=SURE_S)


def test_a_client_of_protocol_2_is_told_which_protocol_is_spoken(serve):
    server = serve()
    conn = multiprocessing.connection.Client(server.address, 'AF_UNIX', authkey=server.key)
    conn.send_bytes(b'{"protocol":2,"op":"hello","fields":{},"arrays":[],"observe_every":1}')
    op, fields, _ = wire.recv(conn)
    assert (op, fields['message']) == ('error', 'protocol 2; this end speaks 1')
    assert server.process.wait(SURE_S) == 1
    assert (
        'ERROR malformed message, ending the session: protocol 2; this end speaks 1' in server.log.read_text()
    )


def test_one_policy_serves_several_clients_in_turn_and_is_closed_with_the_last(serve):
    server = serve('--max-sessions', '3')
    for acts in (1, 2, 3):
        with server.connect() as policy:
            policy.hello()
            assert policy.act({})['action'].tolist() == [1, acts]
            assert os.path.exists(server.address) == (acts < 3)
        assert ('the policy was closed' in server.log.read_text()) == (acts == 3)
    assert server.process.wait(SURE_S) == 0


def test_a_client_that_hangs_up_or_errs_leaves_the_policy_to_the_next(serve, tmp_path):
    server = serve('--max-sessions', '3')
    first = server.connect()
    first.hello()
    first.timeout_s = 0.3
    with pytest.raises(PolicyUnavailable, match='no answer'):
        first.act({'wait': 1.0})
    server.wait_for_log('the client hung up during act; waiting for the policy, for the next client')
    (tmp_path / 'go').touch()
    second = multiprocessing.connection.Client(server.address, 'AF_UNIX', authkey=server.key)
    second.send_bytes(b'nonsense')
    assert wire.recv(second)[0] == 'error'
    second.close()
    with server.connect() as third:
        third.hello()
        assert third.act({})['action'].tolist() == [1, 2]
    assert server.process.wait(SURE_S) == 0


def test_a_client_that_waits_for_its_turn_is_served_then_and_one_that_left_costs_no_session(serve):
    server = serve('--max-sessions', '2')
    first = server.connect()
    first.hello()
    gone = server.connect()
    second = server.connect()
    gone._conn.close()
    answer: dict[str, object] = {}
    thread = threading.Thread(target=lambda: answer.update(second.hello()))
    thread.start()
    time.sleep(0.2)
    assert not answer
    first.close()
    thread.join(SURE_S)
    assert answer['policy'] == 'counting:Counting'
    second.close()
    assert server.process.wait(SURE_S) == 0


@pytest.mark.parametrize('count', ['0', '-1', 'x', '1.5', '²'])
def test_a_number_of_sessions_that_is_none_is_a_usage_error(count, capsys):
    with pytest.raises(SystemExit, match='2'):
        serve_module.main(
            ['--manifest', 'x', '--address', 'x', '--authkey-env', 'KEY', f'--max-sessions={count}']
        )
    assert 'is not a positive number of sessions' in capsys.readouterr().err
