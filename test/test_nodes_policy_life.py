# SPDX-License-Identifier: Apache-2.0
"""The policy behind the policy node: killed, gone, reached again only when told to, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from contracts import QUICK_ARM
from lifecycle_msgs.msg import State, Transition
from ros_graph import environment, node_process, processes_with, spinning, wait_until
from test_nodes_policy import Robot, written_policy

from openeta_ros.embodiment import load
from openeta_ros.episodes import Demonstration
from openeta_ros.nodes.peer import bring_up
from openeta_ros.nodes.remote import GraphPolicy
from openeta_ros.vector_policy import PolicyUnavailable

TAG = 'OPENETA_TEST_TAG'
# A deadline that no test lives to see: what is told before it is told for another reason.
NEVER_S = 3600.0
# Starts a child of its own, tells both process ids, and takes its time: longer than any test lives.
SLOW = """
import os, pathlib, subprocess, sys, time
import numpy as np

class Slow:
    action_type = 'qpos'
    def __init__(self):
        child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])
        pathlib.Path(__file__).with_name('pids').write_text(f'{os.getpid()} {child.pid}')
        print('the weights are loaded', flush=True)
    def reset(self, seed): self.seed = seed
    def set_demonstration(self, arrays, info): pass
    def act(self, observation):
        if self.seed == 7:
            pathlib.Path(__file__).with_name('computes').touch()
            time.sleep(3600.0)
        return {'action': np.full((1, 1), os.getpid())}
"""


class Node:
    """A policy node in a process of its own, and what a test does with it."""

    def __init__(self, policy: GraphPolicy, robot: Robot, process: subprocess.Popen[bytes], tag: str) -> None:
        self.policy, self.robot, self.process, self.tag = policy, robot, process, tag

    def act(self, seed: int = 0) -> int:
        """Return the process id with which the policy answers."""
        self.policy.reset(seed)
        return int(self.policy.act(self.robot.moment(1))[0, 0])

    def transition(self, transition: int) -> None:
        peer = self.policy.peer
        assert peer.wait(peer.begin_transition(transition), 120.0, 'the transition').success

    def left(self) -> list[str]:
        """Return what runs of the node and of what it started."""
        return processes_with(TAG, self.tag)


@contextlib.contextmanager
def policy_node(tmp_path: Path, source: str) -> Iterator[Node]:
    tag = uuid.uuid4().hex
    parameters = {'policy': source, 'embodiment': QUICK_ARM, 'policy_timeout_s': NEVER_S}
    with environment():
        os.environ[TAG] = tag
        with (
            node_process('policy', tmp_path / 'node.log', **parameters) as process,
            spinning('tester') as (node, ours),
        ):
            policy = GraphPolicy(node, ours, 'policy', timeout_s=NEVER_S)
            policy.wait_until_found(time.monotonic() + 120.0)
            bring_up([policy.peer], 120.0, print)
            yield Node(policy, Robot(node, load(QUICK_ARM)), process, tag)


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    folder = written_policy(tmp_path / 'policy', SLOW)
    (folder / 'policy.yaml').write_text('api: 1\npolicy: echo:Slow\n')
    return folder


def pids(folder: Path) -> list[int]:
    return [int(pid) for pid in (folder / 'pids').read_text().split()]


@contextlib.contextmanager
def when_it_computes(folder: Path, job: Callable[[], object]) -> Iterator[None]:
    """Have a job done when an inference of the seed 7 is under way."""

    def run() -> None:
        wait_until((folder / 'computes').exists, 120.0)
        job()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join()


def test_a_policy_killed_while_it_computes_is_told_with_its_log_and_reached_again_when_told_to(
    tmp_path: Path, slow: Path
) -> None:
    with policy_node(tmp_path, str(slow)) as node:
        node.policy.set_demonstration(Demonstration({'actions': np.zeros((1, 1))}, {}))
        first, _ = pids(slow)
        assert node.act() == first
        with (
            when_it_computes(slow, lambda: os.kill(first, signal.SIGKILL)),
            pytest.raises(PolicyUnavailable, match='went away') as gone,
        ):
            node.act(seed=7)
        assert gone.value.remote_type is None
        assert 'the weights are loaded' in gone.value.log_tail
        with pytest.raises(PolicyUnavailable, match='closed after an earlier failure'):
            node.act()
        assert node.policy.peer.state() == State.PRIMARY_STATE_ACTIVE
        node.transition(Transition.TRANSITION_DEACTIVATE)
        node.transition(Transition.TRANSITION_CLEANUP)
        wait_until(lambda: len(node.left()) == 1)  # the node itself
        bring_up([node.policy.peer], 120.0, print)
        second, _ = pids(slow)
        assert node.act() == second != first


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_of_the_policy_is_left_however_the_node_ends(
    tmp_path: Path, slow: Path, number: signal.Signals
) -> None:
    with policy_node(tmp_path, str(slow)) as node:
        assert len(node.left()) >= 4  # node, guard, server, and what the policy started
        node.process.send_signal(number)
        assert node.process.wait(60.0) == (-number if number == signal.SIGKILL else 0)
        wait_until(lambda: not node.left(), 60.0)


def test_nothing_of_the_policy_is_left_when_the_node_ends_during_an_inference(
    tmp_path: Path, slow: Path
) -> None:
    with policy_node(tmp_path, str(slow)) as node:
        with (
            when_it_computes(slow, lambda: node.process.send_signal(signal.SIGINT)),
            pytest.raises(PolicyUnavailable),
        ):
            node.act(seed=7)
        node.process.wait(60.0)
        wait_until(lambda: not node.left(), 60.0)
        assert 'Traceback' not in (tmp_path / 'node.log').read_text()


def test_a_served_policy_that_is_started_again_is_reached_only_when_told_to(
    tmp_path: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('VECTOR_POLICY_AUTHKEY', 'ab' * 32)
    address = tmp_path / 'policy.sock'

    def serve() -> subprocess.Popen[bytes]:
        arguments = ['--manifest', str(slow / 'policy.yaml'), '--address', str(address)]
        arguments += ['--authkey-env', 'VECTOR_POLICY_AUTHKEY', '--log-file', str(tmp_path / 'serve.log')]
        command = [sys.executable, '-m', 'openeta_ros.vector_policy.serve', *arguments]
        return subprocess.Popen(command, start_new_session=True)

    servers = [serve()]
    try:
        with policy_node(tmp_path, str(address)) as node:
            assert node.act() == pids(slow)[0]
            os.killpg(servers[0].pid, signal.SIGKILL)
            servers[0].wait()
            with pytest.raises(PolicyUnavailable, match='went away'):
                node.act()
            address.unlink(missing_ok=True)
            servers.append(serve())
            wait_until(address.exists)
            with pytest.raises(PolicyUnavailable, match='closed after an earlier failure'):
                node.act()
            node.transition(Transition.TRANSITION_DEACTIVATE)
            node.transition(Transition.TRANSITION_CLEANUP)
            bring_up([node.policy.peer], 120.0, print)
            assert node.act() == pids(slow)[0]
    finally:
        for server in servers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()
