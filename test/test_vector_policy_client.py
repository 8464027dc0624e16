# SPDX-License-Identifier: Apache-2.0
"""A call returns the answer to its own request, or raises and says why."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from multiprocessing.connection import Listener
from types import SimpleNamespace

import numpy as np
import pytest

from openeta_ros.vector_policy import PolicyUnavailable, WireError, client, wire
from openeta_ros.vector_policy.client import RemotePolicy

# For what is sure to happen, however busy the machine is.
SURE_S = 120.0
# For what is sure not to happen.
TOO_SHORT_S = 1e-9


@pytest.fixture
def served_by(tmp_path):
    """served_by(*answers): (address, key) of a server that answers request n by calling answers[n](conn)."""
    threads = []

    def start(*answers):
        address, key = str(tmp_path / 's'), secrets.token_bytes(16)
        listener = Listener(address, 'AF_UNIX', authkey=key)

        def run():
            with listener, listener.accept() as conn:
                for answer in answers:
                    try:
                        request = wire.recv(conn)
                        answer(conn, request)
                    except (EOFError, OSError):
                        return

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return address, key

    yield start
    for thread in threads:
        thread.join(SURE_S)
        assert not thread.is_alive()


def marked_reply(conn, request):
    """Answer with the marker of the very request."""
    wire.send(conn, 'action', {}, {'action': request[2]['marker']})


def no_reply(conn, request):
    """Answer nothing until the client has hung up."""
    conn.recv_bytes()


def test_an_answer_that_comes_too_late_is_never_given_to_the_next_call(served_by):
    given_up = threading.Event()

    def late(conn, request):
        given_up.wait(SURE_S)
        marked_reply(conn, request)

    address, key = served_by(late, marked_reply)
    policy = RemotePolicy(address, key, timeout_s=SURE_S)
    policy.timeout_s = 0.2
    with pytest.raises(PolicyUnavailable, match=r'^act: no answer within 0\.2s'):
        policy.act({'marker': [1.0]})
    given_up.set()
    with pytest.raises(PolicyUnavailable, match='closed after an earlier failure'):
        policy.act({'marker': [2.0]})


def test_an_interrupt_during_a_call_ends_the_connection_rather_than_leave_an_answer_in_it(served_by):
    def interrupt(conn, request):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        no_reply(conn, request)

    address, key = served_by(interrupt)
    policy = RemotePolicy(address, key, timeout_s=SURE_S)
    with pytest.raises(KeyboardInterrupt):
        policy.act({'marker': [1.0]})
    with pytest.raises(PolicyUnavailable, match='closed after an earlier failure'):
        policy.act({'marker': [2.0]})


def test_an_observation_that_cannot_be_sent_leaves_the_connection_as_it_was(served_by):
    address, key = served_by(marked_reply)
    with RemotePolicy(address, key, timeout_s=SURE_S) as policy:
        with pytest.raises(WireError, match="array 'marker': dtype object cannot be sent"):
            policy.act({'marker': np.array([None])})
        assert policy.act({'marker': [2.0]})['action'] == [2.0]


def test_threads_that_share_a_policy_each_get_their_own_answer(served_by):
    address, key = served_by(*[marked_reply] * 40)
    policy = RemotePolicy(address, key, timeout_s=SURE_S)
    got = {}

    def ask(first: int) -> None:
        for marker in range(first, first + 10):
            got[marker] = policy.act({'marker': [marker]})['action'].tolist()

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(0, 40, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {marker: [marker] for marker in range(40)}


def test_a_server_that_leaves_in_the_middle_of_a_reply_is_named_with_the_end_of_its_log(served_by, tmp_path):
    def half(conn, request):
        conn.send_bytes(wire.encode('action', {}, {'action': np.zeros(1000)})[0])
        conn.close()

    log = tmp_path / 'log'
    log.write_text('CUDA out of memory\n')
    address, key = served_by(half)
    policy = RemotePolicy(address, key, timeout_s=SURE_S, log_file=log)
    with pytest.raises(PolicyUnavailable, match=r'(?s)^act: the policy went away: .*CUDA out of memory$'):
        policy.act({})


def test_a_reply_larger_than_the_socket_buffers_arrives_whole_and_read_only(served_by):
    big = np.arange(3_000_000, dtype=np.float64).reshape(1000, 3000)

    def answer(conn, request):
        wire.send(conn, 'action', {}, {'action': big, 'again': request[2]['big']})

    address, key = served_by(answer)
    with RemotePolicy(address, key, timeout_s=SURE_S) as policy:
        got = policy.act({'big': big.T})
    assert np.array_equal(got['action'], big) and np.array_equal(got['again'], big.T)
    assert not got['action'].flags.writeable


@pytest.mark.parametrize('seed', [True, 1.0, '1', None])
def test_a_seed_that_is_no_integer_is_refused_before_anything_is_sent(served_by, seed):
    address, key = served_by()
    with pytest.raises(TypeError, match='seed must be an integer'):
        RemotePolicy(address, key, timeout_s=SURE_S).reset(seed)


def test_the_parts_of_a_call_are_timed(served_by, monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=time.monotonic, perf_counter=lambda: clock.now)

    class Slow:
        """Takes 10 s to become an array."""

        def __array__(self, dtype=None, copy=None):
            clock.now += 10
            return np.ones(1)

    def receive(conn, **limits):
        clock.now += 1
        return wire.recv(conn, **limits)

    def answer(conn, request):
        clock.now += 100
        marked_reply(conn, request)

    address, key = served_by(answer)
    policy = RemotePolicy(address, key, timeout_s=SURE_S)
    assert policy.timing is None
    monkeypatch.setattr(client, 'time', clock)
    monkeypatch.setattr(client, 'wire', SimpleNamespace(encode=wire.encode, recv=receive))
    policy.act({'marker': Slow()})
    assert policy.timing == client.CallTiming('act', encode_s=10, wait_s=100, decode_s=1)


def test_a_warm_up_may_take_longer_than_a_call_and_is_a_reset_and_an_act(served_by):
    asked = []

    def answer(conn, request):
        asked.append(request[0])
        wire.send(conn, *(('ok',) if request[0] == 'reset' else ('action', {}, {'action': [1.0]})))

    address, key = served_by(answer, answer)
    policy = RemotePolicy(address, key, timeout_s=SURE_S)
    policy.timeout_s = TOO_SHORT_S
    assert policy.warm_up({'qpos': [0.0]}, timeout_s=SURE_S) == policy.timing
    assert policy.timing.op == 'act'
    assert asked == ['reset', 'act']
    assert policy.timeout_s == TOO_SHORT_S
    with pytest.raises(PolicyUnavailable, match=r'no answer within 1e-09s'):
        policy.act({'qpos': [0.0]})


def test_stopping_ends_a_call_of_another_thread_at_once(served_by):
    asked, failed = threading.Event(), []

    def answer(conn, request):
        asked.set()
        no_reply(conn, request)

    address, key = served_by(answer)
    policy = RemotePolicy(address, key, timeout_s=SURE_S)

    def ask():
        with pytest.raises(PolicyUnavailable, match=r'^act: the policy went away') as caught:
            policy.act({'marker': [1.0]})
        failed.append(caught.value)

    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(SURE_S)
    assert policy.stop() is False
    thread.join(SURE_S)
    assert failed
    assert policy.stop() is True
