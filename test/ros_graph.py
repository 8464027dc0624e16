# SPDX-License-Identifier: Apache-2.0
"""For tests of the graph: nodes as processes, and a node of the test's own that spins beside it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

pytest.importorskip('rclpy')

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from openeta_ros.nodes.graph import NodeSpec, graph_environment
from openeta_ros.nodes.parameters import Value
from openeta_ros.nodes.runtime import Process


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """Give this process, and what it starts, the environment of a graph: a domain of its own, the profile."""
    before = dict(os.environ)
    os.environ.pop('ROS_DOMAIN_ID', None)
    with graph_environment() as ours:
        os.environ.update({'MUJOCO_GL': 'egl', **ours})
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


@contextlib.contextmanager
def spinning(
    name: str, *, namespace: str = '', arguments: Sequence[str] = ()
) -> Iterator[tuple[Node, Process]]:
    """Yield a node whose executor spins on a thread, and the process that its waits look at."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = Node(name, context=context, namespace=namespace, cli_args=list(arguments))
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            executor.spin_once(timeout_sec=0.2)

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    process = Process()
    process.start()
    try:
        yield node, process
    finally:
        stop.set()
        executor.wake()
        thread.join()
        process.finish(lambda: None)
        node.destroy_node()
        rclpy.shutdown(context=context)


@contextlib.contextmanager
def node_process(name: str, log: Path, **parameters: Value) -> Iterator[subprocess.Popen[bytes]]:
    """Run a node in a process of its own; it must end by itself when it is told to."""
    with log.open('wb') as output:
        process = subprocess.Popen(
            NodeSpec(name, parameters).command, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def processes_with(variable: str, value: str) -> list[str]:
    """Return the command lines of all processes that have a variable in their environment."""
    found = []
    for folder in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if f'{variable}={value}'.encode() in (folder / 'environ').read_bytes().split(b'\0'):
                found.append((folder / 'cmdline').read_text().replace('\0', ' '))
    return found


def wait_until(condition: object, timeout_s: float = 120.0) -> None:
    """Wait until a callable returns something true; fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, 'it did not happen in time'
        time.sleep(0.02)


def run_openeta(arguments: list[str], variables: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start the openeta command; its output can be read."""
    return subprocess.Popen(
        [sys.executable, '-m', 'openeta_ros.cli', *arguments],
        env={**os.environ, 'MUJOCO_GL': 'egl', **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
