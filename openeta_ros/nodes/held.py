# SPDX-License-Identifier: Apache-2.0
"""An env node whose chunks can be stopped while they run: an arm holds, as it does when this process ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import Empty

from openeta_msgs.action import StepChunk
from openeta_msgs.msg import ActionChunk
from openeta_msgs.msg import StepResult as StepResultMessage
from openeta_ros.embodiment import Embodiment
from openeta_ros.envs import EnvError
from openeta_ros.nodes.peer import POLL_S
from openeta_ros.nodes.remote import GraphEnv, PatientActionClient
from openeta_ros.nodes.runtime import Process
from openeta_ros.observation import Observation

# How often it is told that who gives chunks lives.
ALIVE_S = 0.05
# Seconds for which the first picture of an episode is on its way, and not lost: in simulated time a reset may
# set time back, and until that is seen here the pictures of before seem to have come after it.
LOST_S = 1.0


class HeldEnv(GraphEnv):
    """A `GraphEnv` that goes by the action `~/step_chunk`. An arm ends its motion when it falls silent.

    What `on_row` raises cancels the chunk; it passes on when the env has answered that it stopped, after the
    row that was moving, and `on_row` was told of that one too.
    """

    def __init__(
        self, node: Node, process: Process, name: str, embodiment: Embodiment, *, row_timeout_s: float
    ) -> None:
        super().__init__(node, process, name, embodiment, row_timeout_s=row_timeout_s)
        self._real_time = False
        self._chunks = PatientActionClient(node, StepChunk, f'{name}/step_chunk')
        alive = node.create_publisher(Empty, f'{name}/alive', 1)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        node.create_timer(ALIVE_S, lambda: alive.publish(Empty()), clock=steady)

    def wait_until_found(self, deadline: float) -> None:
        """Wait until the env node is discovered, with all that is used of it."""
        super().wait_until_found(deadline)
        self.peer.wait_until_found(deadline, [self._chunks.server_is_ready])

    def _begin(self, chunk: ActionChunk) -> Any:
        goal = self._chunks.send_goal_async(StepChunk.Goal(chunk=chunk))
        handle = self.peer.wait(goal, self._row_timeout_s, 'the action step_chunk')
        return _Answer(handle, handle.get_result_async())

    def _see(self, stamp_ns: int) -> Observation:
        """Return the observation of this stamp; of an arm (an env in real time) the first one from it on.

        The pictures of its drivers are mostly best effort: one that the env has had may be lost on its way to
        here. Then the next complete set is taken, within the same deadline; never one from before the stamp,
        which would not show what the row did.
        """
        before = self._observation
        if before is None:
            self._real_time = bool(self.descriptor().get('real_time'))
        if not self._real_time:
            return super()._see(stamp_ns)
        if before is not None and stamp_ns <= before.stamp_ns:
            return before
        return self._observed(stamp_ns, LOST_S if before is None else 0.0)

    def _stop(self, future: Any) -> Sequence[StepResultMessage]:
        future.handle.cancel_goal_async()
        deadline = time.monotonic() + self._row_timeout_s
        with contextlib.suppress(EnvError, KeyboardInterrupt):  # it is gone: what led here is told
            while not future.done() and time.monotonic() < deadline:
                self.peer.check()
                time.sleep(POLL_S)
        return future.result().results if future.done() else ()


class _Answer:
    """The answer of an action as that of a service: its `result()` is the result itself."""

    def __init__(self, handle: Any, future: Future) -> None:
        self.handle = handle
        self._future = future

    def done(self) -> bool:
        return bool(self._future.done())

    def result(self) -> Any:
        return self._future.result().result

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._future.add_done_callback(callback)
