# SPDX-License-Identifier: Apache-2.0
"""What every test may rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

# A shell starts what it runs in the background with SIGINT ignored, and children inherit that; the tests of
# Ctrl-C need it as it is in a terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The files that take longest come first, in this order, so that no worker is left alone with one at the end.
LONGEST = (
    'test_env_genesis',
    'test_nodes_graph',
    'test_cli_workers',
    'test_nodes_arm_killed',
    'test_faults',
    'test_nodes_arm_env',
    'test_nodes_replay',
    'test_cli_transports',
    'test_cli_eval',
    'test_cli_doctor_arm',
    'test_mock_outcomes',
    'test_nodes_recorder',
    'test_nodes_policy_life',
    'test_nodes_arm_people',
    'test_nodes_diagnostics',
    'test_nodes_policy',
    'test_nodes_code_policy',
    'test_nodes_env',
)

KERNELS = """
from openeta_ros.embodiment import load
from openeta_ros.envs import EnvFacade, EnvSpec

with EnvFacade.from_spec(EnvSpec('genesis', 'pick_cube', load('franka_genesis'))) as env:
    env.reset(0)
    env.chunk_step(env.expert()[:2])
"""


@pytest.fixture(scope='session')
def genesis_kernels() -> None:
    """Have Genesis compile its kernels once, in a process whose end stores them. One worker needs them alone.

    A busy machine may take long for it: tests that need them have a `timeout` of their own.
    """
    caches = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache')
    if not any(caches.glob('quadrants/*/openeta_ros-genesis*')):
        subprocess.run([sys.executable, '-c', KERNELS], check=True)


class Together(LoadFileScheduling):
    """Files as a whole on one worker, and all of Genesis on one.

    Until its first scene is there takes a process half a minute.
    """

    def _split_scope(self, nodeid: str) -> str:
        return 'genesis' if is_genesis(nodeid) else str(super()._split_scope(nodeid))


def is_genesis(nodeid: str) -> bool:
    """Whether a test makes scenes in Genesis."""
    return 'test_env_genesis' in nodeid or 'genesis-franka' in nodeid


@pytest.hookimpl(optionalhook=True)  # `-p no:xdist` is no mistake
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Tests go to workers as `Together` says."""
    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, each as a whole: workers get them in this order."""
    places = {name: place for place, name in enumerate(LONGEST)}

    def place(item: pytest.Item) -> int:
        return -1 if is_genesis(item.nodeid) else places.get(item.path.stem, len(places))

    items.sort(key=place)
