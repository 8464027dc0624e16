# SPDX-License-Identifier: Apache-2.0
"""A node beside the env node: in its namespace and remapped as it is, under a name of its own."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import rclpy
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions


def make_node(parent: Node | None) -> Node:
    """Return a node that is remapped as its parent is, but for its name."""
    if parent is None and not rclpy.ok():
        rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    name, namespace = ('env', '') if parent is None else (parent.get_name(), parent.get_namespace())
    return Node(
        f'{name}_robot',
        namespace=namespace,
        cli_args=arguments_without_name(sys.argv[1:]),
        use_global_arguments=False,
        start_parameter_services=False,
    )


def arguments_without_name(arguments: Sequence[str]) -> list[str]:
    """Return the ROS arguments of this process without those that name its node."""
    kept: list[str] = []
    for argument in arguments:
        if re.search(r'(^|:)__(node|name|ns):=', argument):
            if kept and kept[-1] in ('-r', '--remap'):
                kept.pop()
            continue
        kept.append(argument)
    return kept
