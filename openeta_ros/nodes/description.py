# SPDX-License-Identifier: Apache-2.0
"""A robot description that comes over the graph, from a topic or a parameter, where the contract says so."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from rcl_interfaces.msg import ParameterDescriptor
from rcl_interfaces.srv import GetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from openeta_ros.embodiment import Embodiment, EmbodimentError, Problem, load
from openeta_ros.nodes.runtime import Process, Stopping
from openeta_ros.nodes.subscription import StreamSubscription
from openeta_ros.observation.cdr import message_decoder

STRING = 'std_msgs/msg/String'
# Who has the description as a parameter, in nearly every graph; relative, so in the node's own namespace.
PUBLISHER = 'robot_state_publisher'
POLL_S = 0.05


def load_contract(node: Node, process: Process, values: Mapping[str, Any]) -> Embodiment:
    """Return the contract that a node's parameters name, with its robot description, which is waited for
    where it comes over the graph. Not for the executor's thread.

    A topic is std_msgs/String, kept for late joiners or sent again and again. A parameter is this node's own
    where that is set, else that of robot_state_publisher in this node's namespace.

    Raises:
        EmbodimentError: there is no such contract, or no description in time; the text says what there is
            instead.
        Stopping: the process is told to end.
    """
    embodiment, timeout_s = load(values['embodiment']), values['description_timeout_s']
    wanted = embodiment.live_description
    if wanted is None:
        return embodiment
    deadline = time.monotonic() + timeout_s
    # An executor of its own: the node's may be blocked by who waits for this (a transition of its lifecycle).
    with _listening(node) as (ear, executor):
        source: _Source = (
            _Topic(node, ear, wanted.topic)
            if wanted.topic is not None
            else _Parameter(node, ear, wanted.parameter or '')
        )
        node.get_logger().info(f'waiting for the robot description: {source.name}')
        while not (text := source.text()):
            if process.stopping:
                raise Stopping
            if time.monotonic() > deadline:
                told = f'waited {timeout_s:g} s for the robot description: {source.why()}'
                raise EmbodimentError(embodiment.path, [Problem(None, f'description: {told}')])
            executor.spin_once(timeout_sec=POLL_S)
    return embodiment.described(text, source.name)


class _Source(Protocol):
    """Where a description comes from; looked at between two turns of an executor."""

    name: str

    def text(self) -> str:
        """Return the description; empty while there is none."""

    def why(self) -> str:
        """Return why there is none."""


class _Topic:
    def __init__(self, node: Node, ear: Node, topic: str) -> None:
        self._text = ''
        self._decode = message_decoder(names=[STRING])
        # As the node itself would hear it, after its namespace and remaps.
        self._subscription = StreamSubscription(
            ear,
            node.resolve_topic_name(topic),
            [STRING],
            self._take,
            reliability='auto',
            wake=lambda: None,
        )
        self.name = f'topic {self._subscription.topic}'

    def text(self) -> str:
        self._subscription.look()
        return self._text

    def why(self) -> str:
        trouble = self._subscription.trouble()
        return trouble.text if trouble else f'nothing, or an empty text, came on {self._subscription.topic}'

    def _take(self, name: str, data: bytes) -> None:
        self._text = str(self._decode(data, name).data)


class _Parameter:
    def __init__(self, node: Node, ear: Node, parameter: str) -> None:
        if not node.has_parameter(parameter):
            told = ParameterDescriptor(description='The robot description, as the contract has it come.')
            node.declare_parameter(parameter, '', told)
        self._own = str(node.get_parameter(parameter).value)
        self._asked = parameter
        self._place = f'{node.get_namespace().rstrip("/")}/{PUBLISHER}'
        self._client = ear.create_client(
            GetParameters, node.resolve_service_name(f'{PUBLISHER}/get_parameters')
        )
        self._future: Any = None
        self.name = f'parameter {parameter}'

    def text(self) -> str:
        if self._own:
            return self._own
        if self._future is None and self._client.service_is_ready():
            self._future = self._client.call_async(GetParameters.Request(names=[self._asked]))
        if self._future is None or not self._future.done():
            return ''
        values, self._future = self._future.result().values, None
        return str(values[0].string_value) if values else ''

    def why(self) -> str:
        lacking = 'does not have it' if self._client.service_is_ready() else 'is not there'
        return f'the parameter {self._asked} is not set here, and the node {self._place} {lacking}'


@contextlib.contextmanager
def _listening(node: Node) -> Iterator[tuple[Node, SingleThreadedExecutor]]:
    """Yield a node beside a node, and its executor. It is given names that are absolute and remapped."""
    ear = Node(
        f'{node.get_name()}_description',
        namespace=node.get_namespace(),
        context=node.context,
        use_global_arguments=False,
        enable_rosout=False,
        start_parameter_services=False,
    )
    executor = SingleThreadedExecutor(context=node.context)
    executor.add_node(ear)
    try:
        yield ear, executor
    finally:
        executor.shutdown()
        ear.destroy_node()
