# SPDX-License-Identifier: Apache-2.0
"""The env node of a physical arm, as an evaluation sees it: it takes its time, and sometimes a person's."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from std_srvs.srv import SetBool, Trigger

from openeta_msgs.msg import ArmStatus
from openeta_ros.embodiment import Embodiment
from openeta_ros.nodes.held import HeldEnv
from openeta_ros.nodes.runtime import Process

KEYS = 'Enter: the scene is in order; s, Enter: solved; f, Enter: failed'


class ArmEnv(HeldEnv):
    """A `HeldEnv` that is an arm. While it waits for a person, nothing here grows impatient.

    Args:
        note: told what a person is asked to do, and what the arm holds for.
    """

    def __init__(
        self,
        node: Node,
        process: Process,
        name: str,
        embodiment: Embodiment,
        *,
        row_timeout_s: float,
        note: Callable[[str], None],
    ) -> None:
        super().__init__(node, process, name, embodiment, row_timeout_s=row_timeout_s)
        self._scene_timeout_s = math.inf
        self._note = note
        self._status = ArmStatus()
        node.create_subscription(ArmStatus, f'{name}/status', self._on_status, 10)
        self._ready = node.create_client(Trigger, f'{name}/scene_ready')
        self._judge = node.create_client(SetBool, f'{name}/judge')
        if sys.stdin is not None and sys.stdin.isatty():
            threading.Thread(target=self._listen, name='keys', daemon=True).start()

    def key(self, line: str) -> None:
        """Take what a person typed: a line."""
        word = line.strip().lower()
        if word == '':
            self._ready.call_async(Trigger.Request())
        elif word in ('s', 'f'):
            self._judge.call_async(SetBool.Request(data=word == 's'))
        else:
            self._note(f'{word!r} means nothing; {KEYS}')

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            for line in sys.stdin:
                self.key(line)

    def _on_status(self, status: Any) -> None:
        before, self._status = self._status, status
        new = (status.state, status.reason) != (before.state, before.reason)
        if new and status.reason and status.state != 'inactive':
            keys = f' ({KEYS})' if status.state == 'waiting' else ''
            self._note(f'{status.state}: {status.reason}{keys}')

    def _waits(self) -> bool:
        return bool(self._status.state == 'waiting')
