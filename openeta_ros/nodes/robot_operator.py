# SPDX-License-Identifier: Apache-2.0
"""What people say to the arm: services of the env node, and the stop topic; and what they are told.

All of it is on the robot's own node, whose executor nothing blocks, under the names of the env node.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import Bool, Empty
from std_srvs.srv import SetBool, Trigger

from openeta_msgs.msg import ArmStatus as ArmStatusMessage
from openeta_ros.envs.arm_operator import Operator
from openeta_ros.envs.arm_robot import ArmStatus

# Looks of the timer between two publications of an unchanged status.
STATUS_EVERY = 2


class OperatorServices:
    """The services and the status of an arm, `prefix` being the env node's full name."""

    def __init__(self, node: Node, prefix: str, operator: Operator, stop_topic: str | None) -> None:
        self._node, self._operator = node, operator
        self.status: Callable[[], ArmStatus] | None = None
        self._told: tuple[str, str] | None = None
        self._looks = 0
        self._publisher = node.create_publisher(ArmStatusMessage, f'{prefix}/status', 10)
        node.create_service(SetBool, f'{prefix}/enable', self._on_enable)
        node.create_service(Trigger, f'{prefix}/reset_stop', self._on_reset_stop)
        node.create_service(Trigger, f'{prefix}/scene_ready', self._on_scene_ready)
        node.create_service(SetBool, f'{prefix}/judge', self._on_judge)
        node.create_subscription(Empty, f'{prefix}/alive', self._on_alive, 10)
        self._stop = StopTopic(node, stop_topic, operator) if stop_topic else None

    def look(self) -> None:
        """Tell the status, and follow the publishers of the stop topic. On the executor's thread."""
        if self._stop is not None:
            self._stop.look()
        if self.status is None:
            return
        status = self.status()
        said = status.state, status.reason
        self._looks += 1
        if said == self._told and self._looks % STATUS_EVERY:
            return
        if said != self._told and status.reason and status.state != 'inactive':
            self._node.get_logger().warning(f'{status.state}: {status.reason}')
        self._told = said
        self._publisher.publish(
            ArmStatusMessage(
                state=status.state,
                reason=status.reason,
                tracking_error=status.tracking_error,
                joint=status.joint,
                commands=status.commands,
            )
        )

    def _on_alive(self, message: Any) -> None:
        self._operator.heard_s = time.monotonic()

    def _on_enable(self, request: Any, response: Any) -> Any:
        self._operator.enabled = bool(request.data)
        response.success, response.message = True, 'enabled' if request.data else 'disabled'
        return response

    def _on_reset_stop(self, request: Any, response: Any) -> Any:
        was = self._operator.stopped
        response.success = self._operator.reset_stop()
        response.message = f'stopped before by {was}' if response.success else 'the arm was not stopped'
        return response

    def _on_scene_ready(self, request: Any, response: Any) -> Any:
        response.success = bool(self._operator.waiting)
        response.message = '' if response.success else 'nobody waits for the scene; the next reset will'
        self._operator.scene_ready()
        return response

    def _on_judge(self, request: Any, response: Any) -> Any:
        self._operator.judge(bool(request.data))
        response.success = True
        return response


class StopTopic:
    """Stops the arm at a message of std_msgs/Empty, or Bool when it is true, whoever sends it.

    It listens for Empty until only Bool is published, reliably where all publishers are reliable, and hears
    what was sent before it came where all of them keep that.
    """

    def __init__(self, node: Node, topic: str, operator: Operator) -> None:
        self._node, self._operator = node, operator
        self._topic = node.resolve_topic_name(topic)
        self._asked: tuple[Any, ReliabilityPolicy, DurabilityPolicy] | None = None
        self._subscription: Any = None
        self._before: Any = None  # it hears until the one that took its place has been there for a look
        self.look()

    def look(self) -> None:
        """Follow the publishers there are."""
        if self._before is not None:
            self._node.destroy_subscription(self._before)
            self._before = None
        publishers = []
        if self._node.count_publishers(self._topic):
            publishers = self._node.get_publishers_info_by_topic(self._topic)
        elif self._asked is not None:
            return
        kinds = {info.topic_type for info in publishers}
        kind = Bool if 'std_msgs/msg/Bool' in kinds and 'std_msgs/msg/Empty' not in kinds else Empty
        offered = [info.qos_profile for info in publishers]
        reliable = all(one.reliability == ReliabilityPolicy.RELIABLE for one in offered)
        kept = bool(offered) and all(one.durability == DurabilityPolicy.TRANSIENT_LOCAL for one in offered)
        asked = (
            kind,
            ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            DurabilityPolicy.TRANSIENT_LOCAL if kept else DurabilityPolicy.VOLATILE,
        )
        if self._asked == asked:
            return
        if kinds - {'std_msgs/msg/Bool', 'std_msgs/msg/Empty'} or len(kinds) > 1:
            told = ', '.join(sorted(kinds))
            self._node.get_logger().error(
                f'{self._topic} is published as {told}: of these only {kind.__name__} stops the arm'
            )
        if self._asked is not None and self._asked[0] is not kind:
            # One participant has one type of a topic: the next look asks for the other one.
            self._node.destroy_subscription(self._subscription)
            self._subscription = self._asked = None
            return
        quality = QoSProfile(depth=10, reliability=asked[1], durability=asked[2])
        try:
            subscription = self._node.create_subscription(kind, self._topic, self._on_stop, quality)
        except RuntimeError as error:  # the former one is not quite gone
            self._node.get_logger().info(f'{self._topic}: {error}', throttle_duration_sec=5.0)
            return
        self._before, self._subscription, self._asked = self._subscription, subscription, asked

    def _on_stop(self, message: Any) -> None:
        if getattr(message, 'data', True):
            self._operator.stop(f'the topic {self._topic}')
