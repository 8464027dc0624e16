# SPDX-License-Identifier: Apache-2.0
"""The bridge node: observations for who listens, and word of each stream that is not well, once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from contracts import QUICK_ARM
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile
from ros_graph import environment, node_process, spinning, wait_until
from test_nodes_bridge import MS, Robot

from openeta_msgs.msg import Observation
from openeta_ros.embodiment import Kinematics, load
from openeta_ros.nodes import messages
from openeta_ros.observation import assemble, image_message
from openeta_ros.observation.continuity import Continuity

ARM = load(QUICK_ARM)
# Of a depth that keeps all that a test publishes in one go.
KEPT = QoSProfile(depth=50, durability=DurabilityPolicy.TRANSIENT_LOCAL)
FRONT = 'bridge: camera front (topic camera/front/image_raw)'


class Listener:
    """Hears what a bridge node tells."""

    def __init__(self, node: Node) -> None:
        self.statuses: dict[str, DiagnosticStatus] = {}
        self.history: list[DiagnosticStatus] = []  # of the front camera
        node.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 10)

    def level(self, name: str) -> bytes | None:
        return self.statuses[name].level if name in self.statuses else None

    @contextlib.contextmanager
    def then(self, *levels: bytes) -> Iterator[None]:
        """Wait until the front camera has had these levels one after the other since the block began, however
        short each lasted."""
        mark = len(self.history)
        yield
        for level in levels:
            wait_until(lambda level=level, mark=mark: self._found(level, mark), 60.0)  # type: ignore[misc]
            mark = self._found(level, mark)

    def _found(self, level: bytes, mark: int) -> int:
        """Return how many statuses came until one of a level came, from a mark on; 0 when none did."""
        levels = [status.level for status in self.history[mark:]]
        return mark + levels.index(level) + 1 if level in levels else 0

    def status(self, level: bytes) -> DiagnosticStatus:
        """Return the newest status of the front camera with a level."""
        return next(status for status in reversed(self.history) if status.level == level)

    def value(self, name: str, key: str) -> float:
        return float({pair.key: pair.value for pair in self.statuses[name].values}[key])

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        self.statuses |= {status.name: status for status in message.status}
        self.history += [status for status in message.status if status.name == FRONT]


class SentMoments:
    """A robot, and what it published by stamp."""

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self.moments: dict[int, tuple[dict[str, np.ndarray], dict[str, float]]] = {}

    def publish(self, stamp: int) -> None:
        self.moments[stamp] = self._robot.publish(stamp)


def until_heard(robot: Robot | SentMoments, seen: list[Observation]) -> int:
    """Publish moments, 50 ms apart, until one was seen: the bridge node makes observations when it has heard
    that somebody listens. Return how many."""
    for count in range(1, 61):
        robot.publish(count * 50 * MS)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: seen, 1.0)
            return count
    raise AssertionError('no observation came')


@pytest.fixture
def graph(tmp_path: Path) -> Iterator[tuple[Node, Listener, Path]]:
    log = tmp_path / 'bridge.log'
    with (
        environment(),
        node_process('bridge', log, embodiment=QUICK_ARM),
        spinning('robot') as (node, _),
    ):
        yield node, Listener(node), log


def test_each_clock_picture_becomes_an_observation_for_who_listens(
    graph: tuple[Node, Listener, Path],
) -> None:
    node = graph[0]
    seen: list[Observation] = []
    node.create_subscription(Observation, 'bridge/observation', seen.append, 20)
    robot = Robot(node, ARM, KEPT)
    wait_until(lambda: node.count_publishers('/bridge/observation'))
    wait_until(lambda: all(one.get_subscription_count() for one in [*robot.cameras.values(), robot.joints]))
    sent = SentMoments(robot)
    until_heard(sent, seen)
    for _ in range(8):
        stamp = (len(sent.moments) + 1) * 50 * MS
        sent.publish(stamp)
        wait_until(lambda stamp=stamp: messages.time_ns(seen[-1].header.stamp) == stamp)  # type: ignore[misc]
    kinematics = Kinematics(ARM)
    continuity = Continuity(ARM, kinematics)
    listened_to = list(sent.moments.items())[-len(seen) :]
    for message, (stamp, (pictures, positions)) in zip(seen, listened_to, strict=True):
        assert (messages.time_ns(message.header.stamp), message.header.frame_id) == (stamp, 'light_arm')
        arrays = messages.arrays_of(message.arrays)
        expected = assemble(ARM, kinematics, pictures, positions, stamp, continuity=continuity)
        assert arrays.keys() == expected.keys()
        assert all(np.array_equal(arrays[name], expected[name]) for name in expected)


def test_what_is_not_well_is_told_once_when_it_begins_and_once_when_it_ends(
    graph: tuple[Node, Listener, Path],
) -> None:
    node, listener, log = graph
    wait_until(lambda: listener.level(FRONT) == DiagnosticStatus.ERROR)
    assert listener.statuses[FRONT].message.startswith('nobody publishes /camera/front/image_raw')
    assert listener.statuses[FRONT].hardware_id == 'light_arm'
    robot = Robot(node, ARM, KEPT)
    with listener.then(DiagnosticStatus.OK, DiagnosticStatus.STALE):
        for index in range(1, 40):
            robot.publish(index * 50 * MS)
    assert listener.statuses[FRONT].message == 'nothing any more'
    assert listener.value(FRONT, 'rate_hz') == pytest.approx(20.0)
    assert listener.value(FRONT, 'jitter_ms_p95') == pytest.approx(0.0)
    with listener.then(DiagnosticStatus.OK, DiagnosticStatus.STALE):
        robot.publish(2100 * MS)
    lines = [line for line in log.read_text().splitlines() if 'camera front' in line]
    assert [
        ('nobody publishes' in line, 'nothing any more' in line, 'comes again' in line) for line in lines
    ] == [
        (True, False, False),
        (False, False, True),
        (False, True, False),
        (False, False, True),
        (False, True, False),
    ]


def test_messages_without_stamp_are_a_condition(graph: tuple[Node, Listener, Path]) -> None:
    node, listener, log = graph
    robot = Robot(node, ARM, KEPT)
    with listener.then(DiagnosticStatus.OK):
        robot.publish(50 * MS)
    with listener.then(DiagnosticStatus.WARN):
        robot.publish(0)
    assert listener.value(FRONT, 'condition: no_stamp') == 1
    robot.publish(100 * MS)

    def told() -> list[str]:
        return [line for line in log.read_text().splitlines() if 'camera front' in line and 'stamp' in line]

    wait_until(lambda: any('no_stamp ended' in line for line in told()), 60.0)
    assert len(told()) == 2, told()


def test_what_cannot_be_decoded_is_counted(graph: tuple[Node, Listener, Path]) -> None:
    node, listener, _log = graph
    robot = Robot(node, ARM, KEPT)
    seen: list[Observation] = []
    node.create_subscription(Observation, 'bridge/observation', seen.append, 20)
    count = until_heard(robot, seen)
    with listener.then(DiagnosticStatus.WARN):
        robot.cameras['front'].publish(b'\0\1\0\0no picture')
    assert 'no sensor_msgs/msg/Image' in listener.status(DiagnosticStatus.WARN).message
    with listener.then(DiagnosticStatus.OK):
        robot.publish((count + 1) * 50 * MS)
    front = robot.cameras.pop('front')
    stamp = (count + 2) * 50 * MS
    picture = image_message(np.zeros((60, 80, 3), np.uint8), stamp, types=messages.ros_types())
    picture.encoding = 'nonsense'
    with listener.then(DiagnosticStatus.WARN):
        robot.publish(stamp)
        front.publish(picture)
    assert "encoding 'nonsense' is unknown" in listener.status(DiagnosticStatus.WARN).message
    assert listener.value(FRONT, 'condition: rejected') == 2
    robot.cameras['front'] = front
    with listener.then(DiagnosticStatus.OK):
        robot.publish((count + 3) * 50 * MS)
    assert listener.value(FRONT, 'messages') == count + 4


def test_a_contract_or_a_parameter_that_cannot_be_is_told_in_one_sentence(tmp_path: Path) -> None:
    log = tmp_path / 'log'
    for parameters, told in (
        ({'embodiment': 'nobody'}, 'nobody'),
        ({'embodiment': 'light_arm', 'reliability': 'often'}, 'one of auto, reliable, best_effort'),
    ):
        with environment(), node_process('bridge', log, **parameters) as process:
            assert process.wait(60.0) == 2
        assert told in log.read_text() and 'Traceback' not in log.read_text()
