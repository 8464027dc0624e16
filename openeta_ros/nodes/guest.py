# SPDX-License-Identifier: Apache-2.0
"""A node in a process that is no node: for commands that look at a graph, or drive what is on it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from openeta_ros.embodiment import Embodiment
from openeta_ros.nodes.held import HeldEnv
from openeta_ros.nodes.parameters import CONFIGURE_TIMEOUT_S, DISCOVERY_TIMEOUT_S, ROW_TIMEOUT_S
from openeta_ros.nodes.peer import bring_up
from openeta_ros.nodes.runtime import Process

SPIN_S = 0.1


@contextlib.contextmanager
def guest(name: str, namespace: str = '') -> Iterator[Node]:
    """Yield a node that a thread spins for as long as the block runs."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = Node(name, context=context, namespace=namespace)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            executor.spin_once(timeout_sec=SPIN_S)

    spinner = threading.Thread(target=spin, name='executor', daemon=True)
    spinner.start()
    try:
        yield node
    finally:
        stop.set()
        executor.wake()
        spinner.join(2.0)
        node.destroy_node()
        rclpy.shutdown(context=context)


@contextlib.contextmanager
def env_of_graph(embodiment: Embodiment, note: Callable[[str], None]) -> Iterator[HeldEnv]:
    """Yield the env node of the graph that this process is on, ready to be used; its chunks can be stopped.

    Raises:
        EnvError: it is not there, or cannot get ready.
    """
    with guest('host') as node:
        env = HeldEnv(node, Process(), 'env', embodiment, row_timeout_s=float(ROW_TIMEOUT_S.default))
        env.wait_until_found(time.monotonic() + float(DISCOVERY_TIMEOUT_S.default))
        bring_up([env.peer], float(CONFIGURE_TIMEOUT_S.default), note)
        yield env
