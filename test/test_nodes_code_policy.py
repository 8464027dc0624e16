# SPDX-License-Identifier: Apache-2.0
"""The code_policy node: snippets of goals run against the env node, tell call by call, and can be stopped."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from action_msgs.msg import GoalStatus
from model_server import ModelServer, answer, model_server
from rclpy.node import Node
from ros_graph import environment, node_process, spinning, wait_until

from openeta_msgs.action import RunSnippet
from openeta_msgs.msg import StepResult
from openeta_msgs.srv import Describe, Step
from openeta_ros.embodiment import load
from openeta_ros.nodes import messages
from openeta_ros.nodes.remote import GraphEnv, PatientActionClient

REACH = Path(__file__).parents[1] / 'examples/snippets/reach.py'
ROBOT = {'env': 'mujoco', 'task': 'reach', 'embodiment': 'light_arm', 'max_steps': 100_000}
MOVES = """\
home = api.observe()['qpos']
step = api.chunk_step([home, home, home])[-1]
RESULT = {'row': step.info['step'], 'pictures': sorted(name for name in step.observation)}
"""
# Rows that are not done before it is stopped.
ROWS = 20_000
ENDLESS = f"""\
home = api.observe()['qpos']
api.chunk_step(np.tile(home, ({ROWS}, 1)))
"""


class Client:
    """Sends goals to a code_policy node."""

    def __init__(self, node: Node, name: str = 'code_policy') -> None:
        self.node = node
        self._client = PatientActionClient(node, RunSnippet, f'{name}/run_snippet')
        wait_until(self._client.server_is_ready)
        self.events: list[dict[str, Any]] = []  # of the goal that was begun last
        self.rows: list[int] = []  # numbers of the rows that the env executed
        node.create_subscription(StepResult, 'env/step_result', lambda row: self.rows.append(row.step), 100)

    def begin(self, **goal: Any) -> Any:
        self.events = events = []

        def on_feedback(message: Any) -> None:
            events.append(json.loads(message.feedback.event))

        return self.of(self._client.send_goal_async(RunSnippet.Goal(**goal), on_feedback))

    def begin_endless(self) -> Any:
        """Begin a chunk that does not end by itself, and wait until it is in its middle."""
        handle = self.begin(code=ENDLESS, seed=3, max_rows=ROWS, wall_s=3600.0)
        wait_until(lambda: self.events)  # the scene is another one: its rows are counted anew
        mark = len(self.rows)
        wait_until(lambda: len(self.rows) > mark)
        return handle

    def run(self, **goal: Any) -> Any:
        return self.of(self.begin(**goal).get_result_async()).result

    def of(self, future: Any, timeout_s: float = 240.0) -> Any:
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        assert done.wait(timeout_s), 'no answer'
        return future.result()


@pytest.fixture(scope='module')
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        yield running


@pytest.fixture(scope='module')
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('records')


@pytest.fixture(scope='module')
def client(server: ModelServer, records: Path) -> Iterator[Client]:
    pytest.importorskip('mujoco')
    ours = {
        'embodiment': 'light_arm',
        'strict': False,
        'records': str(records),
        'provider': 'openai',
        'model': 'some-model',
        'api_base': server.base('openai'),
    }
    with (
        environment(),
        node_process('env', records / 'env.log', **ROBOT),
        node_process('code_policy', records / 'code_policy.log', **ours),
        spinning('tester') as (node, _),
    ):
        yield Client(node)


def test_a_snippet_moves_the_env_of_the_graph_and_tells_call_by_call(client: Client, records: Path) -> None:
    result = client.run(code=MOVES, seed=3)
    details = json.loads(result.details)
    assert (result.failure.kind, result.status) == ('', 'executed'), result.content
    assert details['result']['row'] == 3
    assert 'frames_front' in details['result']['pictures']
    wait_until(lambda: len(client.events) >= 3)  # feedback and results come by ways of their own
    assert [event['call'] for event in client.events][:3] == ['reset', 'observe', 'chunk_step']
    assert client.events[2]['steps'] == [1, 3]
    folder = Path(details['record'])
    assert folder.parent == records
    assert (folder / 'snippet.py').read_text() == MOVES
    assert (folder / 'episodes/0/front.mp4').stat().st_size > 0
    # Without a seed the scene stays as it is.
    assert json.loads(client.run(code=MOVES).details)['result']['row'] == 6


def test_a_snippet_that_looks_solves_the_task_over_the_graph(client: Client) -> None:
    result = client.run(code=REACH.read_text(), seed=3)
    assert result.status == 'executed', result.content
    assert json.loads(result.details)['success'] is True


def test_a_refused_row_and_a_budget_of_the_goal_are_told_of_with_their_line(client: Client) -> None:
    result = client.run(code="api.step(api.observe()['qpos'] + 3.0)\n", seed=3)
    assert (result.failure.kind, result.status) == ('', 'failed')
    assert json.loads(result.details)['error']['line'] == 1
    result = client.run(code=ENDLESS, seed=3, max_rows=2)
    assert json.loads(result.details)['error']['kind'] == 'rows'
    assert json.loads(result.details)['budgets']['rows'] == 2


def test_a_dry_run_moves_nothing(client: Client) -> None:
    assert client.run(code=MOVES, seed=3).status == 'executed'
    result = client.run(code=MOVES, dry_run=True)
    assert result.status == 'planned', result.content
    assert json.loads(client.run(code=MOVES).details)['result']['row'] == 6


def test_a_cancelled_snippet_stops_in_the_middle_of_its_chunk(client: Client) -> None:
    handle = client.begin_endless()
    client.of(handle.cancel_goal_async())
    answered = client.of(handle.get_result_async())
    details = json.loads(answered.result.details)
    assert answered.status == GoalStatus.STATUS_CANCELED
    assert details['error']['kind'] == 'cancelled'
    assert 1 <= details['state']['step'] < ROWS
    # The env is free again, and nothing of the chunk moves any more.
    now = json.loads(client.run(code="RESULT = api.step(api.observe()['qpos']).info['step']\n").details)
    assert now['result'] == details['state']['step'] + 1


def test_a_model_writes_the_snippet_and_is_told_what_came_of_the_last(
    client: Client, server: ModelServer
) -> None:
    wrong = "```python\napi.observe()\napi.step(api.observe()['qpos'] + 3.0)\n```"
    server.script = [answer(wrong), answer(f'Sorry.\n```python\n{MOVES}```')]
    server.requests.clear()
    first = client.run(task='wiggle', seed=3)
    assert first.status == 'failed'
    second = client.run(task='wiggle')
    assert second.status == 'executed', second.content
    prompts = [json.dumps(request.body) for request in server.requests]
    assert 'wiggle' in prompts[0] and 'api.chunk_step' in prompts[0]
    assert 'line 2' not in prompts[0] and 'line 2' in prompts[1]
    # Another scene, nothing of before.
    server.script = [answer(f'```python\n{MOVES}```')]
    client.run(task='wiggle', seed=4)
    assert 'line 2' not in json.dumps(server.requests[-1].body)


def test_when_no_code_comes_it_says_why(client: Client, server: ModelServer) -> None:
    server.script = [answer('I would rather not.')]
    result = client.run(task='wiggle', seed=3)
    assert result.status == 'failed' and 'no fenced block' in result.content
    assert client.run(code='', task='').failure.kind == 'option'
    assert client.run(code=MOVES, wall_s=-1.0).failure.kind == 'option'


def test_when_the_node_is_told_to_end_the_arm_stops(tmp_path: Path) -> None:
    pytest.importorskip('mujoco')
    ours = {'embodiment': 'light_arm', 'strict': False, 'records': str(tmp_path / 'records')}
    with (
        environment(),
        node_process('env', tmp_path / 'env.log', **ROBOT),
        node_process('code_policy', tmp_path / 'code_policy.log', **ours) as ended,
        spinning('tester') as (node, process),
    ):
        client = Client(node)
        env = GraphEnv(node, process, 'env', load(ROBOT['embodiment']), row_timeout_s=60.0)
        client.begin_endless()
        ended.terminate()
        ended.wait(60.0)
        env.wait_until_found(time.monotonic() + 120.0)
        chunk = messages.chunk_message(
            np.array([load('light_arm').home_qpos]), 'qpos', embodiment='light_arm'
        )
        answer = env.peer.call(node.create_client(Step, 'env/step'), Step.Request(chunk=chunk), 60.0)
        assert answer.results[0].step < ROWS


def test_what_a_snippet_can_use_is_described(client: Client) -> None:
    client.run(code='x = 1', seed=3)
    service = client.node.create_client(Describe, 'code_policy/describe')
    wait_until(service.service_is_ready)
    told = json.loads(client.of(service.call_async(Describe.Request())).descriptor)
    assert 'move_arm' in told['api']['methods'] and 'detect' in told['api']['tools']
    assert told['api']['env']['task'] == 'reach'
    assert told['backend']['implemented'] is True
