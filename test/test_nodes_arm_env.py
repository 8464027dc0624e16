# SPDX-License-Identifier: Apache-2.0
"""env:=arm over the graph, beside the mock of the arm: what ends its motion, however it is asked to end."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arm_fakes import arm_contract, ramp
from arm_graph import PATIENT, TOPIC, Background, Commanded, swing, wait_for_streams
from lifecycle_msgs.msg import Transition
from rclpy.node import Node
from ros_graph import environment, node_process, spinning, wait_until
from std_msgs.msg import Bool, Empty, Float64MultiArray
from std_srvs.srv import SetBool, Trigger

from openeta_msgs.msg import ArmStatus
from openeta_ros.embodiment import Embodiment
from openeta_ros.envs import EnvError
from openeta_ros.nodes.arm_env import ArmEnv
from openeta_ros.nodes.peer import bring_up
from openeta_ros.nodes.runtime import Process
from openeta_ros.nodes.subscription import on_executor


class Graph:
    """A mock arm, an env node that drives it, and who looks on."""

    def __init__(
        self, node: Node, process: Process, env_process: Any, mock_process: Any, embodiment: Embodiment
    ):
        self.node, self.embodiment = node, embodiment
        self.env_process: subprocess.Popen[bytes] = env_process
        self.mock_process: subprocess.Popen[bytes] = mock_process
        self.notes: list[str] = []
        self.env = ArmEnv(node, process, 'env', embodiment, row_timeout_s=60.0, note=self.notes.append)
        self.commands = Commanded(node)
        self.status = ArmStatus()
        node.create_subscription(ArmStatus, 'env/status', lambda status: setattr(self, 'status', status), 10)

    def call(self, service_type: Any, name: str, **fields: Any) -> Any:
        client = self.node.create_client(service_type, name)
        assert client.wait_for_service(60.0)
        future = client.call_async(service_type.Request(**fields))
        wait_until(future.done)
        on_executor(self.node, lambda: self.node.destroy_client(client))
        return future.result()

    def ready(self) -> None:
        """Have the env active, enabled and at home."""
        bring_up([self.env.peer], 120.0, print)
        wait_for_streams(self.env)
        self.call(SetBool, 'env/enable', data=True)
        self.call(Trigger, 'env/reset_stop')
        self.env.reset(0)

    def moving(self, happen: Callable[[], None]) -> EnvError:
        """Execute a long chunk, have something happen in its middle, and return what it ended in."""
        seen, happening = [], []

        def on_row(result: Any, sensors: Any) -> None:
            seen.append(result)
            if len(seen) == 8:
                happening.append(Background(happen))

        rows = swing(self.embodiment)
        with pytest.raises(EnvError) as ended:
            self.env.chunk_step(rows, 'qpos', on_row)
        happening[0].join()
        assert 8 <= len(seen) < len(rows)
        return ended.value


@pytest.fixture(scope='module')
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    folder = tmp_path_factory.mktemp('arm')
    embodiment = arm_contract(folder, **PATIENT)
    path = str(embodiment.path)
    arm = {'env': 'arm', 'task': 'reach', 'embodiment': path, 'max_steps': 10_000}
    with (
        environment(),
        node_process('mock', folder / 'mock.log', embodiment=path, task='reach', camera_hz=20.0) as mock,
        node_process('env', folder / 'env.log', **arm) as env,
        spinning('tester') as (node, process),
    ):
        made = Graph(node, process, env, mock, embodiment)
        made.env.wait_until_found(time.monotonic() + 120.0)
        yield made


def test_nothing_leaves_before_it_is_active_and_enabled(graph: Graph) -> None:
    bring_up([graph.env.peer], 120.0, print)
    with pytest.raises(EnvError, match='nobody enabled the arm') as refused:
        graph.env.reset(0)
    assert refused.value.kind == 'disabled'
    wait_until(lambda: graph.status.state == 'disabled')
    assert not len(graph.commands) and graph.status.commands == 0
    graph.ready()
    results = graph.env.chunk_step(ramp(graph.embodiment, 8), 'qpos')
    assert [result.info['step'] for result in results] == list(range(1, 9))
    wait_until(lambda: len(graph.commands) and graph.status.commands > 0)
    told = graph.env.descriptor()
    assert told['real_time'] and told['seed_honoured']
    assert told['arm'] == {'speed': 1.0, 'dry_run': False, 'servo_hz': 100.0, 'enabled_at_start': False}


@pytest.mark.parametrize('message', [Empty(), Bool(data=True)])
def test_the_stop_topic_ends_a_chunk_mid_way_and_latches(graph: Graph, message: Any) -> None:
    graph.ready()
    publisher = graph.node.create_publisher(type(message), 'stop', 10)
    wait_until(publisher.get_subscription_count)
    if isinstance(message, Bool):
        publisher.publish(Bool(data=False))  # which says nothing
    error = graph.moving(lambda: publisher.publish(message))
    assert error.kind == 'stop' and '/stop' in str(error)
    graph.commands.assert_comes_to_rest()
    wait_until(lambda: graph.status.state == 'stopped')
    with pytest.raises(EnvError, match='reset_stop') as refused:
        graph.env.reset(1)
    assert refused.value.kind == 'stopped'
    assert graph.call(Trigger, 'env/reset_stop').success
    graph.env.reset(1)
    on_executor(graph.node, lambda: graph.node.destroy_publisher(publisher))
    wait_until(lambda: not graph.node.count_publishers('/stop'))


def test_deactivated_in_the_middle_of_a_chunk_it_is_at_rest_when_that_returns(graph: Graph) -> None:
    graph.ready()
    answers: list[Any] = []

    def deactivate() -> None:
        future = graph.env.peer.begin_transition(Transition.TRANSITION_DEACTIVATE)
        answers.append(graph.env.peer.wait(future, 60.0, 'deactivate'))

    assert graph.moving(deactivate).kind == 'inactive'
    assert answers[0].success
    graph.commands.assert_comes_to_rest()


def test_a_second_commander_holds_a_moving_arm_and_is_refused_before_the_start(graph: Graph) -> None:
    graph.ready()
    others: list[Any] = []

    def meddle() -> None:
        others.append(graph.node.create_publisher(Float64MultiArray, TOPIC, 10))

    error = graph.moving(meddle)
    # Its endpoint may be known before its name is.
    assert error.kind == 'commander' and 'publishes on /arm_controller/commands too' in str(error)
    assert '/tester' in str(error) or 'another node' in str(error)
    graph.commands.assert_comes_to_rest()

    def refusal() -> str:
        try:
            graph.env.reset(0)
        except EnvError as refused:
            assert refused.kind == 'commander'
            return str(refused)
        return ''

    wait_until(lambda: '/tester publishes' in refusal())
    on_executor(graph.node, lambda: graph.node.destroy_publisher(others[0]))
    wait_until(lambda: not refusal())  # the env has heard of its end too


def test_a_chunk_that_is_cancelled_ends_and_the_arm_rests(graph: Graph) -> None:
    graph.ready()
    seen = []

    def on_row(result: Any, sensors: Any) -> None:
        seen.append(result)
        if len(seen) == 8:
            raise KeyboardInterrupt

    rows = swing(graph.embodiment)
    with pytest.raises(KeyboardInterrupt):
        graph.env.chunk_step(rows, 'qpos', on_row)
    wait_until(lambda: graph.status.state == 'ready')
    graph.commands.assert_comes_to_rest(silent=False)
    count = len(graph.commands)
    wait_until(lambda: len(graph.commands) >= count + 10)  # it is told to stay where it is
    assert not np.ptp(graph.commands.values[-10:], axis=0).any()
    assert 8 <= len(seen) < len(rows)


def test_drivers_that_fall_silent_end_motion_on_the_monotonic_clock(graph: Graph) -> None:
    graph.ready()
    seen = []

    def on_row(result: Any, sensors: Any) -> None:
        seen.append(result)
        if len(seen) == 8:
            graph.mock_process.send_signal(signal.SIGSTOP)

    try:
        with pytest.raises(EnvError) as held:
            graph.env.chunk_step(swing(graph.embodiment), 'qpos', on_row)
    finally:
        graph.mock_process.send_signal(signal.SIGCONT)
    assert held.value.kind in ('stale_state', 'stale_camera', 'no_observation')
    wait_until(lambda: graph.status.state == 'holding')
    graph.commands.assert_comes_to_rest()


def test_an_env_node_that_ends_or_is_killed_leaves_the_arm_at_rest(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path, **PATIENT)
    path = str(embodiment.path)
    arm = {'env': 'arm', 'task': 'reach', 'embodiment': path, 'enabled': True, 'max_steps': 10_000}
    with (
        environment(),
        node_process('mock', tmp_path / 'mock.log', embodiment=path, task='reach', camera_hz=20.0) as mock,
    ):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with (
                node_process('env', tmp_path / f'env{number}.log', **arm) as env_process,
                spinning('tester') as (node, process),
            ):
                graph = Graph(node, process, env_process, mock, embodiment)
                graph.env.wait_until_found(time.monotonic() + 120.0)
                graph.ready()
                error = graph.moving(partial(env_process.send_signal, number))
                assert error.kind in ('gone', 'inactive')
                graph.commands.assert_comes_to_rest()
                # Who commanded has gone too.
                wait_until(lambda graph=graph: not graph.node.count_publishers(f'/{TOPIC}'), 120.0)
