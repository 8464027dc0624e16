# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and polite kills end a command through its own clean-up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A second Ctrl-C within this time is an impatient finger, and must not break the clean-up of the first.
PATIENCE_S = 5.0


@contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt (SIGINT) or SystemExit (SIGTERM, SIGHUP: 128 + signal) in the main thread.

    A later signal is ignored for `PATIENCE_S`, then ends the process at once: what it started dies with it.
    """
    stopped_at: float | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped_at
        now = time.monotonic()
        if stopped_at is None:
            stopped_at = now
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        if now - stopped_at > PATIENCE_S:
            os._exit(128 + number)

    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
