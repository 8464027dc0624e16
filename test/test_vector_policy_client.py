# SPDX-License-Identifier: Apache-2.0
"""A call returns the answer to its own request, or raises and says why."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from multiprocessing.connection import Listener

import numpy as np
import pytest

from openeta_ros.vector_policy import PolicyUnavailable, WireError, wire
from openeta_ros.vector_policy.client import RemotePolicy


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
        thread.join(10)
        assert not thread.is_alive()


def marked_reply(after_s: float):
    """Answer, after this long, with the marker of the very request."""

    def answer(conn, request):
        time.sleep(after_s)
        wire.send(conn, 'action', {}, {'action': request[2]['marker']})

    return answer


def test_an_answer_that_comes_too_late_is_never_given_to_the_next_call(served_by):
    address, key = served_by(marked_reply(0.6), marked_reply(0.0))
    policy = RemotePolicy(address, key, timeout_s=10)
    policy.timeout_s = 0.2
    with pytest.raises(PolicyUnavailable, match=r'^act: no answer within 0\.2s'):
        policy.act({'marker': [1.0]})
    time.sleep(0.6)  # the late answer has been written by now
    with pytest.raises(PolicyUnavailable, match='closed after an earlier failure'):
        policy.act({'marker': [2.0]})


def test_an_interrupt_during_a_call_ends_the_connection_rather_than_leave_an_answer_in_it(served_by):
    address, key = served_by(marked_reply(0.5))
    policy = RemotePolicy(address, key, timeout_s=10)
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        policy.act({'marker': [1.0]})
    timer.join()
    with pytest.raises(PolicyUnavailable, match='closed after an earlier failure'):
        policy.act({'marker': [2.0]})


def test_an_observation_that_cannot_be_sent_leaves_the_connection_as_it_was(served_by):
    address, key = served_by(marked_reply(0.0))
    with RemotePolicy(address, key, timeout_s=10) as policy:
        with pytest.raises(WireError, match="array 'marker': dtype object cannot be sent"):
            policy.act({'marker': np.array([None])})
        assert policy.act({'marker': [2.0]})['action'] == [2.0]


def test_threads_that_share_a_policy_each_get_their_own_answer(served_by):
    address, key = served_by(*[marked_reply(0.0)] * 40)
    policy = RemotePolicy(address, key, timeout_s=10)
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
    policy = RemotePolicy(address, key, timeout_s=10, log_file=log)
    with pytest.raises(PolicyUnavailable, match=r'(?s)^act: the policy went away: .*CUDA out of memory$'):
        policy.act({})


def test_a_reply_larger_than_the_socket_buffers_arrives_whole_and_read_only(served_by):
    big = np.arange(3_000_000, dtype=np.float64).reshape(1000, 3000)

    def answer(conn, request):
        wire.send(conn, 'action', {}, {'action': big, 'again': request[2]['big']})

    address, key = served_by(answer)
    with RemotePolicy(address, key, timeout_s=20) as policy:
        got = policy.act({'big': big.T})
    assert np.array_equal(got['action'], big) and np.array_equal(got['again'], big.T)
    assert not got['action'].flags.writeable


@pytest.mark.parametrize('seed', [True, 1.0, '1', None])
def test_a_seed_that_is_no_integer_is_refused_before_anything_is_sent(served_by, seed):
    address, key = served_by()
    with pytest.raises(TypeError, match='seed must be an integer'):
        RemotePolicy(address, key, timeout_s=10).reset(seed)


def test_the_parts_of_a_call_are_timed(served_by):
    address, key = served_by(marked_reply(0.3))
    policy = RemotePolicy(address, key, timeout_s=10)
    assert policy.timing is None
    started = time.perf_counter()
    policy.act({'marker': [1.0]})
    elapsed_s = time.perf_counter() - started
    timing = policy.timing
    assert timing.op == 'act'
    assert 0.3 <= timing.wait_s <= elapsed_s
    assert 0 < timing.encode_s < 0.1 and 0 < timing.decode_s < 0.1
    assert timing.encode_s + timing.wait_s + timing.decode_s <= elapsed_s


def test_a_warm_up_may_take_longer_than_a_call_and_is_a_reset_and_an_act(served_by):
    asked = []

    def answer(conn, request):
        asked.append(request[0])
        time.sleep(0.4)
        wire.send(conn, *(('ok',) if request[0] == 'reset' else ('action', {}, {'action': [1.0]})))

    address, key = served_by(answer, answer, answer)
    policy = RemotePolicy(address, key, timeout_s=10)
    policy.timeout_s = 0.1
    assert policy.warm_up({'qpos': [0.0]}, timeout_s=10).wait_s >= 0.4
    assert asked == ['reset', 'act']
    assert policy.timeout_s == 0.1
    with pytest.raises(PolicyUnavailable, match=r'no answer within 0\.1s'):
        policy.act({'qpos': [0.0]})


def test_stopping_ends_a_call_of_another_thread_at_once(served_by):
    address, key = served_by(marked_reply(1.5))
    policy = RemotePolicy(address, key, timeout_s=20)
    failed = []

    def ask():
        with pytest.raises(PolicyUnavailable, match=r'^act: the policy went away') as caught:
            policy.act({'marker': [1.0]})
        failed.append(caught.value)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.2)
    started = time.monotonic()
    assert policy.stop() is False
    thread.join(5)
    assert failed and time.monotonic() - started < 1
    assert policy.stop() is True
