# SPDX-License-Identifier: Apache-2.0
"""The policy node: a policy that sees the contract's topics and answers with chunks of actions.

The policy itself runs in a process of its own (started here, or reached at its address). Its answers are
waited for on the worker thread, so that the bridge goes on receiving.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.action.server import ServerGoalHandle

from openeta_msgs.action import Act
from openeta_msgs.msg import ActionChunk
from openeta_msgs.srv import Reset, SetDemonstration
from openeta_ros.embodiment import Kinematics
from openeta_ros.embodiment.resources import local_policy
from openeta_ros.episodes import Demonstration, demonstration
from openeta_ros.episodes.made_up import made_up_observation
from openeta_ros.episodes.policy import LocalPolicy
from openeta_ros.nodes import messages, runtime
from openeta_ros.nodes.configured import ConfiguredNode
from openeta_ros.nodes.description import load_contract
from openeta_ros.nodes.diagnostics import Diagnostics, PolicyHealth
from openeta_ros.nodes.goals import serve_goals
from openeta_ros.nodes.observations import ObservationPublisher
from openeta_ros.nodes.streams import Bridge
from openeta_ros.observation import Observation
from openeta_ros.vector_policy import PolicyUnavailable
from openeta_ros.vector_policy.client import RemotePolicy
from openeta_ros.vector_policy.process import START_TIMEOUT_S, open_policy

# Pictures of each camera that are kept: an observation is asked for soon after it was made.
HISTORY = 16
# Seconds that an observation may take from the env's answer to this node.
OBSERVATION_TIMEOUT_S = 10.0
# The picture that is named counts as lost when others have come after it for so long: then the first of these
# will do. Who steps in lock-step names each before there is another.
LOST_S = 1.0


@dataclass(frozen=True)
class _Configured:
    """What there is while the node is configured."""

    remote: RemotePolicy
    policy: LocalPolicy
    bridge: Bridge
    health: PolicyHealth
    embodiment: str

    def act(self, observation: Observation) -> np.ndarray:
        """Return the policy's rows, noting how the call went."""
        try:
            rows = self.policy.act(observation)
        except PolicyUnavailable as error:
            self.health.failed(error)
            raise
        self.health.answered(self.remote.timing)
        return rows


class PolicyNode(ConfiguredNode):
    """See openeta_msgs for what the services and actions mean, and `parameters` for the parameters."""

    def __init__(self, process: runtime.Process) -> None:
        super().__init__(process, 'policy')
        self._opened = contextlib.ExitStack()
        self._configured: _Configured | None = None
        self._chunks = self.create_publisher(ActionChunk, '~/action_chunk', 10)
        self.create_service(Reset, '~/reset', self._on_reset)
        self.create_service(SetDemonstration, '~/set_demonstration', self._on_set_demonstration)
        serve_goals(self, process, Act, '~/act', self._act)

    def on_end(self) -> None:
        """Close the policy and the subscriptions. On the worker."""
        self._configured = None
        self._opened.close()

    def _open(self) -> None:
        self.on_end()
        embodiment = load_contract(self, self._process, self._values)
        kinematics = Kinematics(embodiment)
        log_file = self._values['policy_log'] or None
        remote = self._opened.enter_context(
            open_policy(
                local_policy(self._values['policy']) or self._values['policy'],
                timeout_s=self._values['policy_timeout_s'],
                log_file=log_file,
            )
        )
        policy = LocalPolicy(remote, embodiment)
        if self._values['warm_up']:
            self._warm_up(remote, made_up_observation(embodiment, kinematics))
        observations = ObservationPublisher(self, embodiment)
        self._opened.callback(observations.close)
        bridge = Bridge(
            self,
            embodiment,
            kinematics,
            history=HISTORY,
            reliability=self._values['reliability'],
            on_observation=observations.publish,
            wanted=observations.wanted,
        )
        self._opened.callback(bridge.close)
        health = PolicyHealth()
        diagnostics = Diagnostics(self, bridge, embodiment.name, lambda: [health.status()])
        self._opened.callback(diagnostics.close)
        self._configured = _Configured(remote, policy, bridge, health, embodiment.name)

    def _warm_up(self, remote: RemotePolicy, seen: Observation) -> None:
        """Have the policy make its first inference now, outside of every figure, and forget what it saw.

        A policy that answers with an error (that it lacks a demonstration, say) is as usable as before.
        """
        try:
            timing = remote.warm_up(seen, timeout_s=START_TIMEOUT_S)
            remote.reset(0)
        except PolicyUnavailable as error:
            if error.remote_type is None:
                raise
            self.get_logger().warning(f'the policy is not warmed up: {error.message}')
        else:
            self.get_logger().info(f'the first answer of the policy took {timing.wait_s:.3f} s')

    def _describe(self) -> str:
        configured = self._configured
        return json.dumps(dict(configured.policy.descriptor())) if configured is not None else ''

    def _on_reset(self, request: Any, response: Any) -> Any:
        def reset() -> None:
            usable = self._usable()
            usable.policy.reset(request.seed)
            usable.bridge.new_episode()

        return self._answered(response, reset)

    def _on_set_demonstration(self, request: Any, response: Any) -> Any:
        def show() -> None:
            policy = self._usable().policy
            if request.path:
                shown = demonstration.load(Path(request.path))
            else:
                shown = Demonstration(messages.arrays_of(request.arrays), json.loads(request.info or '{}'))
            policy.set_demonstration(shown)

        return self._answered(response, show)

    def _act(self, goal: ServerGoalHandle) -> Any:
        """Answer with a chunk for the observation that the goal names. On the worker."""
        result = Act.Result()
        try:
            usable = self._usable()
            stamp = messages.time_ns(goal.request.observation_stamp)
            _, observation = usable.bridge.wait_for(stamp, OBSERVATION_TIMEOUT_S, self._check, lost_s=LOST_S)
            if stamp not in (0, observation.stamp_ns):
                later_ms = (observation.stamp_ns - stamp) / 1e6
                self.get_logger().warning(f'a picture was lost: the policy sees one {later_ms:.0f} ms later')
            begin = time.perf_counter()
            rows = usable.act(observation)
            result.latency_ms = 1e3 * (time.perf_counter() - begin)
            result.chunk = messages.chunk_message(
                rows,
                usable.policy.action_type,
                embodiment=usable.embodiment,
                observation_ns=observation.stamp_ns,
            )
            result.chunk.header.stamp = self.get_clock().now().to_msg()
            self._chunks.publish(result.chunk)
        except Exception as error:
            result.failure = messages.failure_message(error)
            runtime.log_failure(self, 'no action', error)
        return result

    def _check(self) -> None:
        if self._process.stopping:
            raise runtime.Stopping

    def _usable(self) -> _Configured:
        if self._configured is None or not self._active:
            name = self.get_fully_qualified_name()
            raise PolicyUnavailable(f'{name} answers only while ACTIVE: configure and activate it first')
        return self._configured


def main() -> None:
    """Run the node."""
    runtime.main(PolicyNode)


if __name__ == '__main__':
    main()
