# SPDX-License-Identifier: Apache-2.0
"""What people, and the node's lifecycle, have decided about an arm. All of it from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from openeta_ros.envs.errors import EnvError

POLL_S = 0.05


class Operator:
    """Whether the arm may move, the stop that latches, and what a person says of the scene.

    `idle` is set while nothing is sent to the arm: `rest_s` after it must not move any more at the latest.
    `waiting` says for what a person is waited for; empty when for nothing. `heard_s` is when who gives chunks
    last said that it lives; None where it never does.
    """

    def __init__(self, *, enabled: bool = False) -> None:
        self.idle = threading.Event()
        self.idle.set()
        self.rest_s = 0.0
        self.active = False
        self.enabled = enabled
        self.waiting = ''
        self.heard_s: float | None = None
        self._stopped = ''
        self._scene_ready = threading.Event()
        self._verdict: bool | None = None
        self._judged = threading.Event()

    @property
    def stopped(self) -> str:
        """Why the arm is stopped until `reset_stop`; empty when it is not."""
        return self._stopped

    def stop(self, reason: str) -> None:
        """Stop the arm; it stays so until `reset_stop`, whatever happens."""
        self._stopped = self._stopped or reason

    def reset_stop(self) -> bool:
        """Allow motion again after a stop; return whether there was one."""
        was, self._stopped = self._stopped, ''
        return bool(was)

    def forbids(self) -> tuple[str, str] | None:
        """Return the kind of `HOLDS` and the sentence of why the arm must not move; None when it may."""
        if self._stopped:
            return 'stop', f'stopped by {self._stopped}; reset_stop lets it go on'
        if not self.active:
            return 'inactive', 'the node is not ACTIVE'
        if not self.enabled:
            return 'disabled', 'nobody enabled the arm; enable does'
        return None

    def scene_ready(self) -> None:
        """Say that the scene is in order for the next episode."""
        self._scene_ready.set()

    def judge(self, success: bool) -> None:
        """Say whether the task is solved; it ends the episode."""
        self._verdict = success
        self._judged.set()

    def new_episode(self) -> None:
        """Forget what was said of the last one."""
        self._scene_ready.clear()
        self._judged.clear()
        self._verdict = None
        self.heard_s = None

    @property
    def verdict(self) -> bool | None:
        """What was said of the episode, if anything was."""
        return self._verdict

    def wait_scene(self, text: str, check: Callable[[], None]) -> None:
        """Wait for as long as it takes until the scene is in order; `text` tells people."""
        self._wait(self._scene_ready, text, check)

    def wait_verdict(self, text: str, check: Callable[[], None]) -> bool:
        """Wait for as long as it takes until somebody says whether the task is solved."""
        self._wait(self._judged, text, check)
        return bool(self._verdict)

    def _wait(self, event: threading.Event, text: str, check: Callable[[], None]) -> None:
        self.waiting = text
        try:
            while not event.wait(POLL_S):
                check()
        finally:
            self.waiting = ''


def refused(kind: str, text: str) -> EnvError:
    """Return the error of an arm that may not move when it is asked to begin."""
    return EnvError('stopped' if kind == 'stop' else kind, f'the arm does not move: {text}')
