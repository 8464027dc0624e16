# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and polite kills end a command through its own clean-up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A second Ctrl-C within this time is an impatient finger, and must not break the clean-up of the first.
PATIENCE_S = 5.0
# How often a stop that came during an import is tried again.
AGAIN_S = 0.02


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt (SIGINT) or SystemExit (SIGTERM, SIGHUP: 128 + signal) in the main thread.

    A later signal is ignored for `PATIENCE_S`, then ends the process at once: what it started dies with it.
    One that comes during an import is raised after it, or ends the process when that takes longer: what is
    raised in an import may be lost in a callback, or become a module that is taken for missing.
    """
    came_at: float | None = None
    raised = False
    agains: list[threading.Timer] = []

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal came_at, raised
        now = time.monotonic()
        came_at = now if came_at is None else came_at
        if not raised and not _importing(frame):
            came_at, raised = now, True
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        if now - came_at > PATIENCE_S:
            os._exit(128 + number)
        if not raised:
            agains.append(threading.Timer(AGAIN_S, os.kill, (os.getpid(), number)))
            agains[-1].daemon = True
            agains[-1].start()

    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        yield
    finally:
        for again in agains:
            again.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


def _importing(frame: FrameType | None) -> bool:
    """Say whether a module is being imported where this frame is."""
    while frame is not None:
        if frame.f_code.co_filename == '<frozen importlib._bootstrap>':
            return True
        frame = frame.f_back
    return False
