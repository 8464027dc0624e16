# SPDX-License-Identifier: Apache-2.0
"""Observations on a topic."""

from __future__ import annotations

from rclpy.node import Node

from openeta_msgs.msg import Observation as ObservationMessage
from openeta_ros.embodiment import Embodiment
from openeta_ros.nodes import messages
from openeta_ros.nodes.subscription import on_executor
from openeta_ros.observation import Observation

# An observation of three cameras has some megabytes; who cannot keep up shall lose old ones.
DEPTH = 4


class ObservationPublisher:
    """Publishes `~/observation`."""

    def __init__(self, node: Node, embodiment: Embodiment) -> None:
        self._node = node
        self._publisher = node.create_publisher(ObservationMessage, '~/observation', DEPTH)
        self._name = embodiment.name

    def close(self) -> None:
        """Publish nothing any more. For any thread."""
        on_executor(self._node, lambda: self._node.destroy_publisher(self._publisher))

    def wanted(self) -> bool:
        """Return whether anybody listens."""
        return self._publisher.get_subscription_count() > 0

    def publish(self, observation: Observation) -> None:
        """Publish an observation."""
        self._publisher.publish(messages.observation_message(observation, self._name))
