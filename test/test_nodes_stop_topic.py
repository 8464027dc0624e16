# SPDX-License-Identifier: Apache-2.0
"""The stop topic is heard whoever publishes it, as whatever, with whatever quality, early or late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from ros_graph import environment, spinning, wait_until
from std_msgs.msg import Bool, Empty

from openeta_ros.envs.arm_operator import Operator
from openeta_ros.nodes.robot_operator import StopTopic
from openeta_ros.nodes.subscription import on_executor

DEFAULT = QoSProfile(depth=10)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
BEST_EFFORT = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """Who stops, and the arm's node."""
    with environment(), spinning('button') as (button, _), spinning('arm') as (arm, _):
        yield button, arm


def listening(arm: Node) -> Operator:
    """Return who is stopped by the topic, which is looked at as an arm's node does."""
    operator = Operator(enabled=True)
    topic = StopTopic(arm, 'stop', operator)
    arm.create_timer(0.05, topic.look, clock=Clock(clock_type=ClockType.STEADY_TIME))
    return operator


def stops(operator: Operator, publisher: Any, message: Any) -> None:
    """Assert that a message stops, again where it may have been lost on its way."""

    def stopped() -> bool:
        publisher.publish(message)
        return bool(operator.stopped)

    wait_until(stopped)


@pytest.mark.parametrize('message', [Empty(), Bool(data=True)])
def test_a_stop_that_was_kept_is_heard_by_an_arm_that_starts_later(
    nodes: tuple[Node, Node], message: Any
) -> None:
    button, arm = nodes
    button.create_publisher(type(message), 'stop', LATCHED).publish(message)
    operator = listening(arm)
    wait_until(lambda: operator.stopped)
    assert operator.stopped == 'the topic /stop'


@pytest.mark.parametrize(
    'quality', [DEFAULT, LATCHED, BEST_EFFORT], ids=['default', 'latched', 'best effort']
)
@pytest.mark.parametrize('message', [Empty(), Bool(data=True)])
def test_whoever_comes_later_with_whatever_quality_stops(
    nodes: tuple[Node, Node], message: Any, quality: QoSProfile
) -> None:
    button, arm = nodes
    operator = listening(arm)
    stops(operator, button.create_publisher(type(message), 'stop', quality), message)


def test_false_stops_nothing_and_another_quality_beside_it_takes_nothing_away(
    nodes: tuple[Node, Node],
) -> None:
    button, arm = nodes
    first = button.create_publisher(Bool, 'stop', LATCHED)
    operator = listening(arm)
    wait_until(first.get_subscription_count)
    for _ in range(3):
        first.publish(Bool(data=False))
    other = button.create_publisher(Bool, 'stop', BEST_EFFORT)
    wait_until(other.get_subscription_count)
    assert not operator.stopped
    for publisher in (first, other):
        stops(operator, publisher, Bool(data=True))
        operator.reset_stop()
    on_executor(button, lambda: button.destroy_publisher(other))
    stops(operator, first, Bool(data=True))
