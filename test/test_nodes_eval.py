# SPDX-License-Identifier: Apache-2.0
"""The eval node as a server: evaluations and episodes as goals, with feedback, one after another."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contracts import QUICK_ARM
from rclpy.node import Node
from ros_graph import environment, node_process, spinning, wait_until

from openeta_msgs.action import Evaluate, RunEpisode
from openeta_ros.nodes.peer import Peer
from openeta_ros.nodes.remote import PatientActionClient
from openeta_ros.vector_policy import PolicyUnavailable

ROBOT = {'env': 'mujoco', 'task': 'reach', 'embodiment': QUICK_ARM}


class Client:
    """Sends goals to the eval node and waits for their results."""

    def __init__(self, node: Node, peer: Peer, output: Path) -> None:
        self._peer, self.output = peer, output
        self._clients = {
            kind: PatientActionClient(node, kind, f'eval/{name}')
            for kind, name in ((Evaluate, 'evaluate'), (RunEpisode, 'run_episode'))
        }
        wait_until(lambda: all(client.server_is_ready() for client in self._clients.values()))

    def send(self, goal: Any, on_feedback: Callable[[Any], None] | None = None) -> Any:
        client = self._clients[RunEpisode if isinstance(goal, RunEpisode.Goal) else Evaluate]
        return self._peer.wait(client.send_goal_async(goal, on_feedback), 60.0, 'the goal')

    def result(self, handle: Any) -> Any:
        return self._peer.wait(handle.get_result_async(), 300.0, 'the result').result


@pytest.fixture(scope='module')
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp('eval')
    waiting = {**ROBOT, 'autostart': False, 'output': str(folder / 'out')}
    with (
        environment(),
        node_process('env', folder / 'env.log', **ROBOT),
        node_process('policy', folder / 'policy.log', embodiment=QUICK_ARM),
        node_process('eval', folder / 'eval.log', **waiting),
        spinning('tester') as (node, process),
    ):
        peer = Peer(node, process, 'env', PolicyUnavailable)
        peer.wait_until_found(float('inf'))
        yield Client(node, peer, folder / 'out')


def test_goals_are_carried_out_one_after_another_each_with_its_own_results(client: Client) -> None:
    heard: list[tuple[int, int]] = []
    handle = client.send(
        Evaluate.Goal(episodes=2, seed=4),
        lambda message: heard.append((message.feedback.episode, message.feedback.step)),
    )
    episode = client.send(RunEpisode.Goal(seed=4))
    evaluated = client.result(handle)
    assert not evaluated.failure.kind, evaluated.failure
    assert (evaluated.episodes, evaluated.successes) == (2, 2)
    results = json.loads(Path(evaluated.results_path).read_text())
    assert [entry['seed'] for entry in results['episodes']] == [4, 5]
    # Results and feedback come by ways of their own.
    wait_until(lambda: {index for index, _ in heard} == {0, 1} and max(step for _, step in heard) > 5)
    alone = json.loads(client.result(episode).result)
    assert (alone['seed'], alone['success']) == (4, True)
    assert alone['steps'] == results['episodes'][0]['steps']


def test_a_cancelled_evaluation_ends_and_the_next_goal_is_carried_out(client: Client) -> None:
    before = set(client.output.glob('*/results.json'))
    begun = threading.Event()
    handle = client.send(Evaluate.Goal(episodes=500), lambda message: begun.set())
    assert begun.wait(60.0)
    client._peer.wait(handle.cancel_goal_async(), 60.0, 'the cancel')
    answer = client.result(handle)
    assert answer.failure.kind == 'interrupted'
    files = set(client.output.glob('*/results.json')) - before
    written = [json.loads(file.read_text()) for file in files]
    assert [results['status'] for results in written] == ['interrupted']
    assert not client.result(client.send(RunEpisode.Goal(seed=1))).failure.kind


def test_results_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / 'results.json').write_text('{}')
    log = tmp_path / 'eval.log'
    with environment(), node_process('eval', log, **ROBOT, output=str(tmp_path)) as process:
        assert process.wait(60.0) == 2
    assert f'{tmp_path} already holds results.json' in log.read_text()
    assert (tmp_path / 'results.json').read_text() == '{}'
