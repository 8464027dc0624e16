# SPDX-License-Identifier: Apache-2.0
"""A node that ends takes its shared memory with it, which would else stay until the machine restarts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from openeta_ros.nodes.graph import graph_environment
from openeta_ros.nodes.shared_memory import remove_abandoned

START_S = 60.0


def segments(pid: int) -> set[Path]:
    """Return the shared memory of Fast DDS that the process has mapped; ports are shared, and outlive it."""
    try:
        text = Path(f'/proc/{pid}/maps').read_text()
    except OSError:  # it has just ended
        return set()
    return {Path(path) for path in re.findall(r'/dev/shm/fastrtps_[0-9a-f]{16}$', text, re.MULTILINE)}


@contextlib.contextmanager
def running(node: str, environment: Mapping[str, str]) -> Iterator[tuple[subprocess.Popen[bytes], set[Path]]]:
    """Run a node; yield its process and its shared memory."""
    command = [
        sys.executable,
        '-m',
        f'openeta_ros.nodes.{node}',
        '--ros-args',
        '-p',
        'embodiment:=light_arm',
    ]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            deadline = time.monotonic() + START_S
            while not (own := segments(process.pid)) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert own, 'the node opened no shared memory'
            time.sleep(0.5)
            yield process, segments(process.pid)
        finally:
            process.kill()


def left_of(own: set[Path]) -> list[Path]:
    """Return what is left of it. What another process of the same domain has mapped is that one's own."""
    others = set().union(*(segments(int(folder.name)) for folder in Path('/proc').glob('[0-9]*')))
    return [path for path in own - others if path.exists()]


@pytest.mark.parametrize(
    ('node', 'number'), [('env', signal.SIGINT), ('policy', signal.SIGTERM), ('bridge', signal.SIGTERM)]
)
def test_nothing_of_a_node_stays_in_shared_memory(node: str, number: signal.Signals) -> None:
    with graph_environment() as environment, running(node, environment) as (process, own):
        process.send_signal(number)
        assert process.wait(60.0) == 0
    assert not left_of(own)


def test_what_a_killed_node_left_is_removed_and_nothing_of_one_that_lives() -> None:
    with graph_environment() as environment, running('bridge', environment) as (_, alive):
        with running('bridge', environment) as (process, both):
            process.kill()
            process.wait()
            left = [path for path in both - alive if path.exists()]
        assert left, 'a killed process removed its shared memory itself'
        assert not set(left) & set(remove_abandoned())  # it may just have been made
        for path in left:
            os.utime(f'{path}_el', (0, 0))  # as later
        assert set(left) <= set(remove_abandoned())
        assert not any(path.exists() for path in left)
        assert any(path.exists() for path in alive)
