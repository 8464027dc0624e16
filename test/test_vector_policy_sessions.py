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
from pathlib import Path

import pytest

from openeta_ros.vector_policy import PolicyUnavailable, wire
from openeta_ros.vector_policy.client import RemotePolicy

ROOT = Path(__file__).parents[1]

POLICY = """
import itertools, os, time
import numpy as np

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
        time.sleep(float(observation.get('sleep_s', 0.0)))
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
        deadline = time.monotonic() + 20
        while not self.log.exists() or text not in self.log.read_text():
            assert time.monotonic() < deadline, self.log.read_text() if self.log.exists() else 'no log'
            time.sleep(0.02)

    def connect(self) -> RemotePolicy:
        return RemotePolicy(self.address, self.key, timeout_s=20)

    def stranger(self) -> socket.socket:
        """A peer that has read its challenge, and says nothing."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(15)
        sock.connect(self.address)
        sock.recv(4096)
        return sock


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


def test_peers_that_say_nothing_keep_no_client_waiting(serve):
    server = serve()
    strangers = [server.stranger() for _ in range(5)]
    started = time.monotonic()
    with server.connect() as policy:
        policy.hello()
        assert time.monotonic() - started < 2
        assert strangers[0].recv(1) == b''  # nobody else gets in
    for stranger in strangers:
        stranger.close()


def test_a_peer_that_stops_in_the_middle_of_its_answer_is_hung_up_on_within_a_second(serve):
    server = serve()
    with server.stranger() as half, server.stranger() as silent:
        half.sendall(struct.pack('!i', 16) + b'half')
        started = time.monotonic()
        assert half.recv(1) == b''
        assert time.monotonic() - started < 1
        server.wait_for_log('a client did not authenticate in time')
        silent.settimeout(0.1)
        with pytest.raises(TimeoutError):  # a slow client still has time
            silent.recv(1)
        with server.connect() as policy:
            policy.hello()


def test_the_file_of_a_unix_socket_is_the_users_alone(serve):
    server = serve()
    assert stat.S_IMODE(os.stat(server.address).st_mode) == 0o600


def ipv6_address() -> str:
    try:
        with socket.socket(socket.AF_INET6) as free:
            free.bind(('::1', 0))
            return f'[::1]:{free.getsockname()[1]}'
    except OSError:
        pytest.skip('this machine has no IPv6')


def test_a_policy_is_served_over_ipv6(serve):
    with serve(address=ipv6_address()).connect() as policy:
        assert policy.hello()['policy'] == 'counting:Counting'
        assert policy.act({})['action'].tolist() == [1, 1]


def test_brackets_around_something_else_than_ipv6_are_refused_by_name():
    with pytest.raises(PolicyUnavailable, match=r'^connect: cannot reach \[no such\]:80: '):
        RemotePolicy('[no such]:80', secrets.token_bytes(16), timeout_s=5)


def test_a_client_of_protocol_2_is_told_which_protocol_is_spoken(serve):
    server = serve()
    conn = multiprocessing.connection.Client(server.address, 'AF_UNIX', authkey=server.key)
    conn.send_bytes(b'{"protocol":2,"op":"hello","fields":{},"arrays":[],"observe_every":1}')
    op, fields, _ = wire.recv(conn)
    assert (op, fields['message']) == ('error', 'protocol 2; this end speaks 1')
    assert server.process.wait(10) == 1
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
    assert server.process.wait(10) == 0


def test_a_client_that_hangs_up_or_errs_leaves_the_policy_to_the_next(serve):
    server = serve('--max-sessions', '3')
    first = server.connect()
    first.hello()
    first.timeout_s = 0.3
    with pytest.raises(PolicyUnavailable, match='no answer'):
        first.act({'sleep_s': 1.0})
    second = multiprocessing.connection.Client(server.address, 'AF_UNIX', authkey=server.key)
    second.send_bytes(b'nonsense')
    assert wire.recv(second)[0] == 'error'
    second.close()
    with server.connect() as third:
        third.hello()
        assert third.act({})['action'].tolist() == [1, 2]
    assert server.process.wait(10) == 0
    assert (
        'the client hung up during act; waiting for the policy, for the next client' in server.log.read_text()
    )


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
    thread.join(10)
    assert answer['policy'] == 'counting:Counting'
    second.close()
    assert server.process.wait(10) == 0


def test_a_client_that_stops_in_the_middle_of_a_message_is_given_up_like_a_silent_one(serve):
    server = serve('--idle-timeout-s', '0.5')
    conn = multiprocessing.connection.Client(server.address, 'AF_UNIX', authkey=server.key)
    os.write(conn.fileno(), struct.pack('!i', 100) + b'{"protocol"')
    assert server.process.wait(10) == 0
    assert 'the client said nothing for 0.5s; ending the session' in server.log.read_text()


@pytest.mark.parametrize('count', ['0', '-1', 'x', '1.5', '²'])
def test_a_number_of_sessions_that_is_none_is_a_usage_error(count, tmp_path):
    command = [sys.executable, '-m', 'openeta_ros.vector_policy.serve', '--manifest', 'x', '--address', 'x']
    command += ['--authkey-env', 'KEY', f'--max-sessions={count}']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert 'is not a positive number of sessions' in done.stderr
