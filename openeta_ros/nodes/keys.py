# SPDX-License-Identifier: Apache-2.0
"""Single keys of the terminal that a node was started from."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Mapping

ARROWS = {b'\x1b[A': 'up', b'\x1b[B': 'down', b'\x1b[C': 'right', b'\x1b[D': 'left'}
POLL_S = 0.2
READ_BYTES = 16


class Keys:
    """Calls what belongs to a key ('s', ' ', 'up', 'right', ...) when it is pressed, on a thread of its own.

    Does nothing where stdin is no terminal, or this process is not in its foreground.
    """

    def __init__(self, actions: Mapping[str, Callable[[], None]]) -> None:
        self._actions = actions
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._input = sys.stdin.fileno()
            if os.tcgetpgrp(self._input) != os.getpgrp():  # else it would be stopped for asking
                return
            self._before = termios.tcgetattr(self._input)
        except (OSError, ValueError, termios.error):
            return
        tty.setcbreak(self._input)
        self._thread = threading.Thread(target=self._run, name='keys', daemon=True)
        self._thread.start()

    @property
    def there(self) -> bool:
        """Whether there is somebody to press them."""
        return self._thread is not None

    def close(self) -> None:
        """Give the terminal back as it was."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
            self._thread = None

    def _run(self) -> None:
        while not self._stop.is_set():
            if not select.select([self._input], [], [], POLL_S)[0]:
                continue
            data = os.read(self._input, READ_BYTES)
            if not data:
                return
            names = [ARROWS[data]] if data in ARROWS else data.decode(errors='ignore')
            for name in names:
                if name in self._actions:
                    self._actions[name]()
