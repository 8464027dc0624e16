# SPDX-License-Identifier: Apache-2.0
"""The policy node: it acts on the very observation that it is asked about, and hands on what its policy
says."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from contracts import QUICK_ARM
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from ros_graph import environment, node_process, spinning, wait_until

from openeta_msgs.msg import ActionChunk
from openeta_msgs.msg import Observation as ObservationMessage
from openeta_msgs.srv import SetDemonstration
from openeta_ros.embodiment import Embodiment, load
from openeta_ros.envs import Sensors
from openeta_ros.episodes import Demonstration
from openeta_ros.nodes import messages
from openeta_ros.nodes.parameters import Value
from openeta_ros.nodes.peer import bring_up
from openeta_ros.nodes.remote import GraphPolicy
from openeta_ros.nodes.runtime import Process
from openeta_ros.nodes.sensors import SensorPublisher
from openeta_ros.observation import Observation
from openeta_ros.vector_policy import PolicyUnavailable

MS = 1_000_000
# Answers with what it saw, so that a test sees it too.
ECHO = """
import os
import numpy as np

class Echo:
    action_type = 'qpos'
    def reset(self, seed):
        if seed == 13:
            raise ValueError('not this seed')
        self.seed = seed
    def set_demonstration(self, arrays, info):
        self.shown = float(arrays['actions'].sum()) + info.get('extra', 0)
    def act(self, observation):
        if self.seed == 14:
            os._exit(3)
        mean = float(observation['frames_front'].mean())
        return {'action': np.array([[self.seed, self.shown, mean, *observation['qpos']]], dtype='<f4')}
"""
# Writes down what it is asked.
TELLS = """
import pathlib

class Echo:
    action_type = 'qpos'
    def tell(self, text):
        with pathlib.Path(__file__).with_name('calls').open('a') as file:
            file.write(f'{text}, ')
    def reset(self, seed): self.tell(f'reset {seed}')
    def set_demonstration(self, arrays, info): self.tell('demonstration')
    def act(self, observation):
        self.tell(f'act {observation["qpos"].shape}')
        return {'action': observation['qpos']}
"""


def written_policy(folder: Path, text: str = ECHO) -> Path:
    folder.mkdir()
    (folder / 'echo.py').write_text(text)
    (folder / 'policy.yaml').write_text('api: 1\npolicy: echo:Echo\n')
    return folder


class Robot:
    """Publishes a robot's streams from this process."""

    def __init__(self, node: Node, embodiment: Embodiment) -> None:
        self._publisher = SensorPublisher(node, embodiment, {})
        self._embodiment = embodiment
        self.stamp_ns = 0

    def moment(self, grey: int) -> Observation:
        """Publish the next moment."""
        self.stamp_ns += 50 * MS
        return self.publish(self.stamp_ns, grey)

    def publish(self, stamp_ns: int, grey: int) -> Observation:
        """Publish one moment, all pictures of one grey; return what identifies it."""
        pictures = {
            name: np.full((*(camera.size or (4, 4)), 3), grey, np.uint8)
            for name, camera in self._embodiment.cameras.items()
        }
        positions = {joint: 0.01 * (grey + index) for index, joint in enumerate(self._embodiment.wire_joints)}
        seen = Observation({'endpose': np.zeros(self._embodiment.ee_size)}, stamp_ns)
        self._publisher.publish(Sensors(stamp_ns, pictures, positions, {}), seen)
        return seen


Graph = tuple[Node, Process, GraphPolicy, Robot]


@contextlib.contextmanager
def policy_node(tmp_path: Path, source: Path, **more: Value) -> Iterator[tuple[Node, Process, GraphPolicy]]:
    """Run a policy node; yield a node of ours beside it, its process, and the policy, not configured yet."""
    with (
        environment(),
        node_process('policy', tmp_path / 'node.log', policy=str(source), embodiment=QUICK_ARM, **more),
        spinning('tester') as (node, process),
    ):
        policy = GraphPolicy(node, process, 'policy', timeout_s=60.0)
        policy.wait_until_found(time.monotonic() + 120.0)
        yield node, process, policy


@contextlib.contextmanager
def echo(folder: Path) -> Iterator[Graph]:
    with policy_node(folder, written_policy(folder / 'policy')) as (node, process, policy):
        bring_up([policy.peer], 120.0, print)
        yield node, process, policy, Robot(node, load(QUICK_ARM))


@pytest.fixture(scope='module')
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graph]:
    """For tests after which the policy is as usable as before."""
    with echo(tmp_path_factory.mktemp('graph')) as graph:
        yield graph


@pytest.fixture
def own_graph(tmp_path: Path) -> Iterator[Graph]:
    with echo(tmp_path) as graph:
        yield graph


def test_it_acts_on_the_observation_it_is_asked_about(graph: Graph) -> None:
    _, _, policy, robot = graph
    assert policy.descriptor() == {'policy': 'echo:Echo', 'action_type': 'qpos'}
    policy.reset(5)
    policy.set_demonstration(Demonstration({'actions': np.ones((2, 3))}, {'extra': 1}))
    seen = {grey: robot.moment(grey) for grey in (1, 2, 3)}
    for grey in (2, 3, 1):  # not the newest: the one that is named
        rows = policy.act(seen[grey])
        assert rows.dtype == np.dtype('<f4')
        np.testing.assert_array_equal(rows[0, :3], [5, 7, grey])
        assert rows[0, 3] == np.float32(0.01 * grey)


def test_it_waits_for_an_observation_that_is_still_under_way(graph: Graph) -> None:
    _, _, policy, robot = graph
    policy.reset(5)
    policy.set_demonstration(Demonstration({'actions': np.zeros((1, 3))}, {}))
    robot.moment(1)
    late = Observation({}, robot.stamp_ns + 50 * MS)
    publisher = threading.Timer(0.3, robot.moment, [2])
    publisher.start()
    assert policy.act(late)[0, 2] == 2
    publisher.join()


def test_where_the_picture_that_is_named_was_lost_it_acts_on_the_next_one(graph: Graph) -> None:
    _, _, policy, robot = graph
    policy.reset(5)
    policy.set_demonstration(Demonstration({'actions': np.zeros((1, 3))}, {}))
    robot.moment(1)
    lost = Observation({}, robot.stamp_ns + 20 * MS)
    robot.moment(2)
    robot.moment(3)
    assert policy.act(lost)[0, 2] == 2


def test_a_demonstration_may_come_in_the_message(graph: Graph) -> None:
    node, _, policy, robot = graph
    policy.reset(5)
    client = node.create_client(SetDemonstration, 'policy/set_demonstration')
    arrays = messages.observation_arrays({'actions': np.full((1, 2), 4.0)})
    policy.peer.call(client, SetDemonstration.Request(arrays=arrays, info='{"extra": 2}'), 60.0)
    assert policy.act(robot.moment(1))[0, 1] == 10


def test_where_the_time_of_the_calls_went_is_told_and_that_a_policy_is_gone(own_graph: Graph) -> None:
    node, _, policy, robot = own_graph
    told: list[DiagnosticStatus] = []
    node.create_subscription(DiagnosticArray, '/diagnostics', lambda message: told.extend(message.status), 10)
    policy.reset(5)
    policy.set_demonstration(Demonstration({'actions': np.zeros((1, 3))}, {}))
    for index in range(1, 4):
        policy.act(robot.moment(index))

    def values() -> dict[str, str]:
        own = [status for status in list(told) if status.name == 'policy: policy']
        return {pair.key: pair.value for pair in own[-1].values} if own else {}

    wait_until(lambda: values().get('calls') == '3')
    assert values()['failures'] == '0'
    for part in ('encode', 'wait', 'decode'):
        assert 0.0 <= float(values()[f'{part}_ms_p50']) <= float(values()[f'{part}_ms_max'])
    camera = 'policy: camera top (topic camera/top/image_raw)'
    assert DiagnosticStatus.OK in {status.level for status in told if status.name == camera}
    policy.reset(14)
    with pytest.raises(PolicyUnavailable, match='went away') as gone:
        policy.act(robot.moment(1))
    assert gone.value.remote_type is None

    def failed() -> list[str]:
        own = [status for status in list(told) if status.name == 'policy: policy']
        return [status.message for status in own if status.level == DiagnosticStatus.ERROR]

    wait_until(failed)
    assert 'went away' in failed()[-1]


def test_the_observation_that_the_policy_sees_is_published_for_who_listens(graph: Graph) -> None:
    node, _, policy, robot = graph
    seen: list[ObservationMessage] = []
    node.create_subscription(ObservationMessage, 'policy/observation', seen.append, 10)
    chunks: list[ActionChunk] = []
    node.create_subscription(ActionChunk, 'policy/action_chunk', chunks.append, 10)
    wait_until(
        lambda: node.count_publishers('/policy/observation') and node.count_publishers('/policy/action_chunk')
    )
    policy.reset(5)
    policy.set_demonstration(Demonstration({'actions': np.zeros((1, 3))}, {}))
    answers: dict[int, np.ndarray] = {}

    def heard() -> bool:
        """Act, again until the policy node has heard of us."""
        moment = robot.moment(3)
        answers[moment.stamp_ns] = policy.act(moment)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: seen and chunks, 1.0)
        return bool(seen and chunks)

    wait_until(heard)
    assert messages.arrays_of(seen[0].arrays)['frames_front'].mean() == 3
    stamp = messages.time_ns(chunks[0].observation_stamp)
    np.testing.assert_array_equal(messages.rows_of(chunks[0]), answers[stamp])


def test_what_the_policy_answers_with_an_error_is_its_error(graph: Graph) -> None:
    policy = graph[2]
    with pytest.raises(PolicyUnavailable, match='not this seed') as refused:
        policy.reset(13)
    assert refused.value.remote_type == 'ValueError'
    policy.reset(5)  # and it can be asked again


def test_why_a_policy_cannot_be_started_is_told(tmp_path: Path) -> None:
    source = written_policy(tmp_path / 'policy')
    (source / 'echo.py').write_text('raise RuntimeError("no weights here")\n')
    with policy_node(tmp_path, source) as (_, _, policy):
        with pytest.raises(PolicyUnavailable, match='no weights here') as failed:
            bring_up([policy.peer], 120.0, print)
        assert 'no weights here' in failed.value.log_tail


@pytest.mark.parametrize('warm_up', [False, True])
def test_it_is_warmed_up_only_when_asked_and_outside_of_all_figures(tmp_path: Path, warm_up: bool) -> None:
    source = written_policy(tmp_path / 'policy', TELLS)
    with policy_node(tmp_path, source, warm_up=warm_up) as (node, _, policy):
        told: list[dict[str, str]] = []
        node.create_subscription(
            DiagnosticArray,
            '/diagnostics',
            lambda message: told.extend(
                {pair.key: pair.value for pair in one.values}
                for one in message.status
                if one.name == 'policy: policy'
            ),
            10,
        )
        bring_up([policy.peer], 120.0, print)
        calls = source / 'calls'
        assert (calls.read_text() if calls.exists() else '') == (
            'reset 0, act (7,), reset 0, ' if warm_up else ''
        )
        wait_until(lambda: told)
        assert told[-1] == {'calls': '0', 'failures': '0'}


def test_a_policy_that_cannot_be_warmed_up_is_used_all_the_same(tmp_path: Path) -> None:
    source = written_policy(tmp_path / 'policy')  # it acts only after a demonstration
    with policy_node(tmp_path, source, warm_up=True) as (_, _, policy):
        bring_up([policy.peer], 120.0, print)
        assert 'is not warmed up: act: AttributeError' in (tmp_path / 'node.log').read_text()
        policy.reset(5)
