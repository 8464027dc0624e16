# SPDX-License-Identifier: Apache-2.0
"""The env and the policy of the episode runner, when they are nodes of the graph.

The runner sees what it sees in one process: the same arrays, bit for bit, and the same errors.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.action import ActionClient
from rclpy.node import Node

from openeta_msgs.action import Act
from openeta_msgs.msg import ActionChunk
from openeta_msgs.msg import StepResult as StepResultMessage
from openeta_msgs.srv import Expert, Reset, SetDemonstration, Step
from openeta_ros.control import Execution
from openeta_ros.embodiment import Embodiment, Kinematics
from openeta_ros.envs import EnvError, Sensors, StepResult
from openeta_ros.episodes import Demonstration
from openeta_ros.episodes.runner import RowObserver
from openeta_ros.nodes import messages
from openeta_ros.nodes.peer import Peer
from openeta_ros.nodes.runtime import Process
from openeta_ros.nodes.streams import Bridge
from openeta_ros.nodes.subscription import DEPTH
from openeta_ros.observation import MissingStream, Observation, Streams
from openeta_ros.vector_policy import PolicyUnavailable

# Seconds that an env may take for a scene or an expert's plan, beyond which it hangs.
SCENE_TIMEOUT_S = 120.0
# Seconds for reset and set_demonstration of a policy, and for what the graph adds to a call.
POLICY_TIMEOUT_S, MARGIN_S = 300.0, 15.0


class GraphEnv:
    """An `EpisodeEnv` that is an env node. Not for use on the executor's thread.

    Args:
        row_timeout_s: how long a row may take, and a picture on its way.
    """

    def __init__(
        self, node: Node, process: Process, name: str, embodiment: Embodiment, *, row_timeout_s: float
    ) -> None:
        self.peer = Peer(node, process, name, lambda text: EnvError('gone', text))
        self.embodiment = embodiment
        self._row_timeout_s, self._scene_timeout_s = row_timeout_s, SCENE_TIMEOUT_S
        self._step_before = 0  # the number of the last row
        self._bridge = Bridge(node, embodiment, Kinematics(embodiment), history=DEPTH)
        self._reset = node.create_client(Reset, f'{name}/reset')
        self._step = node.create_client(Step, f'{name}/step')
        self._expert = node.create_client(Expert, f'{name}/expert')
        self._rows: deque[StepResultMessage] = deque()
        self._changed = threading.Condition()
        node.create_subscription(StepResultMessage, f'{name}/step_result', self._on_row, 100)
        self._conditions_before: Counter[str] = Counter()
        self._sensors: Sensors | None = None
        self._observation: Observation | None = None

    def wait_until_found(self, deadline: float) -> None:
        """Wait until the env node is discovered, with all that is used of it."""
        clients = (self._reset, self._step, self._expert)
        self.peer.wait_until_found(deadline, [client.service_is_ready for client in clients])

    @property
    def sensors(self) -> Sensors:
        """What the last observation was made from."""
        if self._sensors is None:
            raise EnvError('not_reset', 'nothing was seen yet: call reset(seed) first')
        return self._sensors

    def descriptor(self) -> Mapping[str, Any]:
        """Return what the env node says of itself."""
        return self.peer.description()

    def conditions(self) -> Mapping[str, int]:
        """Return what was wrong with the streams since the reset."""
        return self._bridge.condition_counts() - self._conditions_before

    def reset(self, seed: int) -> Observation:
        """Begin an episode."""
        answer = self.peer.call(self._reset, Reset.Request(seed=seed), self._scene_timeout_s)
        self._step_before, self._observation = 0, None
        self._bridge.new_episode()
        self._conditions_before = self._bridge.condition_counts()
        return self._see(messages.time_ns(answer.stamp))

    def expert(self) -> np.ndarray:
        """Return the expert's (H, D) rows."""
        answer = self.peer.call(self._expert, Expert.Request(), SCENE_TIMEOUT_S)
        rows = messages.array_of(answer.actions)
        if rows is None:
            raise EnvError('no_expert', f'the node {self.peer.name} answered without rows')
        return rows

    def chunk_step(
        self,
        actions: np.ndarray,
        action_type: str,
        on_row: RowObserver | None = None,
        execution: Execution | None = None,
    ) -> list[StepResult]:
        """Execute rows (H, A); each is told of as soon as its pictures are here."""
        stamp = 0 if self._observation is None else self._observation.stamp_ns
        chunk = messages.chunk_message(
            actions, action_type, embodiment=self.embodiment.name, observation_ns=stamp
        )
        if execution is not None:
            chunk.horizon, chunk.asynchronous = execution.horizon or 0, execution.asynchronous
        self._rows.clear()
        future = self._begin(chunk)
        future.add_done_callback(lambda _: self._notify())
        results: list[StepResult] = []

        def tell(row: StepResultMessage) -> None:
            nonlocal stamp
            stamp, self._step_before = messages.time_ns(row.stamp), row.step
            results.append(messages.step_result(row, self._see(stamp)))
            if on_row is not None:
                on_row(results[-1], self.sensors)

        try:
            while (row := self._next_row(future, len(results), stamp)) is not None:
                tell(row)
        except BaseException as interruption:
            for row in self._stop(future)[len(results) :]:
                with contextlib.suppress(type(interruption)):
                    tell(row)
            raise
        error = messages.error_of(future.result().failure)
        if error is not None:
            raise error
        return results

    def _begin(self, chunk: ActionChunk) -> Any:
        """Send a chunk; return the future of its answer, which has `results` and `failure`."""
        return self._step.call_async(Step.Request(chunk=chunk))

    def _stop(self, future: Any) -> Sequence[StepResultMessage]:
        """Stop a chunk and return the rows that it executed; a service cannot be stopped."""
        return ()

    def _next_row(self, future: Any, done: int, after_ns: int) -> StepResultMessage | None:
        """Return the next row's result as soon as it is there; None when the chunk has ended.

        Rows come on a topic while the chunk runs. The answer of the service holds them all and is what
        counts; with the topic alone, a lost message would be a lost row.
        """
        deadline = time.monotonic() + self._row_timeout_s
        while True:
            with self._changed:
                while self._rows and self._is_past(self._rows[0], after_ns):
                    self._rows.popleft()
                if future.done():
                    answer = future.result().results
                    return answer[done] if done < len(answer) else None
                if self._rows:
                    return self._rows.popleft()
                self._changed.wait(0.1)
            self.peer.check()
            if self._waits():
                deadline = time.monotonic() + self._row_timeout_s
            if time.monotonic() > deadline:
                raise self.peer.silent(f'row {done} of the step', self._row_timeout_s)

    def _is_past(self, row: StepResultMessage, after_ns: int) -> bool:
        """Whether a row is one of those before; of an arm's rows several may fall on one picture."""
        return (messages.time_ns(row.stamp), row.step) <= (after_ns, self._step_before)

    def _waits(self) -> bool:
        """Whether the env waits for somebody, who takes as long as it takes."""
        return False

    def _see(self, stamp_ns: int) -> Observation:
        """Return the observation of exactly this stamp.

        A simulator draws each picture once, and they come reliably: any other one is of another state.
        """
        return self._observed(stamp_ns, math.inf)

    def _observed(self, stamp_ns: int, lost_s: float) -> Observation:
        """Return the observation of a stamp, or the next; `lost_s` is that of `Bridge.wait_for`."""
        try:
            streams, self._observation = self._bridge.wait_for(
                stamp_ns, self._row_timeout_s, self.peer.check, lost_s=lost_s
            )
        except MissingStream as missing:
            raise EnvError(
                'stream', f'waited {self._row_timeout_s:g} s for an observation: {missing}'
            ) from None
        self._sensors = _sensors(streams)
        return self._observation

    def _on_row(self, row: StepResultMessage) -> None:
        with self._changed:
            self._rows.append(row)
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


class PatientActionClient(ActionClient):
    """An action client that may be used while another thread spins.

    rclpy's sends a request and then notes that it waits for its answer; an answer that the executor takes in
    between is dropped ('Ignoring unexpected goal response'), and the wait for it never ends.
    """

    def __init__(self, node: Node, action_type: Any, name: str) -> None:
        self._sending = threading.Lock()
        super().__init__(node, action_type, name)

    def send_goal_async(self, *arguments: Any, **keywords: Any) -> Any:
        with self._sending:
            return super().send_goal_async(*arguments, **keywords)

    def _get_result_async(self, goal_handle: Any) -> Any:
        with self._sending:
            return super()._get_result_async(goal_handle)

    def _cancel_goal_async(self, goal_handle: Any) -> Any:
        with self._sending:
            return super()._cancel_goal_async(goal_handle)

    async def execute(self, taken_data: Any) -> None:
        with self._sending:
            pass  # what is being sent is noted by then
        await super().execute(taken_data)


class GraphPolicy:
    """An `EpisodePolicy` that is a policy node. Not for use on the executor's thread."""

    def __init__(self, node: Node, process: Process, name: str, *, timeout_s: float) -> None:
        self.peer = Peer(node, process, name, lambda text: PolicyUnavailable(text, op='connect'))
        self._timeout_s = timeout_s + MARGIN_S
        self._reset = node.create_client(Reset, f'{name}/reset')
        self._show = node.create_client(SetDemonstration, f'{name}/set_demonstration')
        self._act = PatientActionClient(node, Act, f'{name}/act')
        self._descriptor: Mapping[str, Any] = {}

    def wait_until_found(self, deadline: float) -> None:
        """Wait until the policy node is discovered, with all that is used of it."""
        ready = [self._reset.service_is_ready, self._show.service_is_ready, self._act.server_is_ready]
        self.peer.wait_until_found(deadline, ready)

    @property
    def action_type(self) -> str:
        """What the rows of `act` hold: 'qpos' or 'ee'."""
        return str(self.descriptor()['action_type'])

    def descriptor(self) -> Mapping[str, Any]:
        """Return what the policy node says of its policy."""
        if not self._descriptor:
            self._descriptor = self.peer.description()
        return self._descriptor

    def reset(self, seed: int) -> None:
        """Start an episode."""
        self.peer.call(self._reset, Reset.Request(seed=seed), POLICY_TIMEOUT_S)

    def set_demonstration(self, demonstration: Demonstration) -> None:
        """Show how the task is done: by file, since its pictures are far more than a message should hold."""
        if demonstration.path is not None:
            self._show_file(demonstration.path)
            return
        handle, name = tempfile.mkstemp(suffix='.npz')
        os.close(handle)
        try:
            self._show_file(demonstration.save(Path(name)).path)
        finally:
            os.unlink(name)

    def act(self, observation: Observation) -> np.ndarray:
        """Return the policy's rows for an observation, which the policy node sees under the same stamp."""
        goal = Act.Goal(observation_stamp=messages.time_message(observation.stamp_ns))
        handle = self.peer.wait(self._act.send_goal_async(goal), self._timeout_s, 'the action act')
        answer = self.peer.wait(handle.get_result_async(), self._timeout_s, 'the action act')
        error = messages.error_of(answer.result.failure)
        if error is not None:
            raise error
        return messages.rows_of(answer.result.chunk)

    def _show_file(self, path: Path | None) -> None:
        request = SetDemonstration.Request(path=str(path))
        self.peer.call(self._show, request, POLICY_TIMEOUT_S)


def _sensors(streams: Streams) -> Sensors:
    return Sensors(streams.stamp_ns, streams.pictures, streams.positions, streams.velocities)
