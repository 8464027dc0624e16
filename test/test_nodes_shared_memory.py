# SPDX-License-Identifier: Apache-2.0
"""A node that ends takes its shared memory with it, which would else stay until the machine restarts."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from openeta_ros.nodes.graph import graph_environment

START_S = 60.0


def segments(pid: int) -> set[Path]:
    """Return the shared memory of Fast DDS that the process has mapped; ports are shared, and outlive it."""
    try:
        text = Path(f'/proc/{pid}/maps').read_text()
    except OSError:  # it has just ended
        return set()
    return {Path(path) for path in re.findall(r'/dev/shm/fastrtps_[0-9a-f]{16}$', text, re.MULTILINE)}


@pytest.mark.parametrize(
    ('node', 'number'), [('env', signal.SIGINT), ('policy', signal.SIGTERM), ('bridge', signal.SIGTERM)]
)
def test_nothing_of_a_node_stays_in_shared_memory(node: str, number: signal.Signals) -> None:
    with graph_environment() as environment:
        command = [
            sys.executable,
            '-m',
            f'openeta_ros.nodes.{node}',
            '--ros-args',
            '-p',
            'embodiment:=light_arm',
        ]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + START_S
        while not (own := segments(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert own, 'the node opened no shared memory'
        time.sleep(0.5)
        own = segments(process.pid)
        process.send_signal(number)
        assert process.wait(60.0) == 0
    # What another process of the same domain has mapped is that one's own.
    others = set().union(*(segments(int(folder.name)) for folder in Path('/proc').glob('[0-9]*')))
    assert not [path for path in own - others if path.exists()]
