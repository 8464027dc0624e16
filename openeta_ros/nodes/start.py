# SPDX-License-Identifier: Apache-2.0
"""The console scripts of the nodes.

Importing what a node needs takes a second, in which Ctrl-C would print a traceback from wherever it struck:
so the signals are held back first, and `runtime` lets them through when it answers them.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
from collections.abc import Iterator

HELD_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def hold_signals() -> None:
    """Hold back what asks this process to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Hold back what asks this process to end while the block runs.

    Around a fork: Python drops what a signal raises while it calls its own hooks there.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def env() -> None:
    """Run the env node."""
    _run('env')


def policy() -> None:
    """Run the policy node."""
    _run('policy')


def evaluation() -> None:
    """Run the eval node."""
    _run('eval')


def bridge() -> None:
    """Run the bridge node."""
    _run('bridge')


def recorder() -> None:
    """Run the recorder node."""
    _run('recorder')


def replay() -> None:
    """Run the replay node."""
    _run('replay')


def mock() -> None:
    """Run the mock node."""
    _run('mock')


def code_policy() -> None:
    """Run the code_policy node."""
    _run('code_policy')


def _run(name: str) -> None:
    hold_signals()
    importlib.import_module(f'openeta_ros.nodes.{name}').main()
