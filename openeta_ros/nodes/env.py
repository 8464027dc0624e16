# SPDX-License-Identifier: Apache-2.0
"""The env node: a simulator as a robot on the graph, or a physical arm.

A simulator publishes the contract's topics under simulated stamps; of an arm the drivers do. It moves only
while ACTIVE. The env lives on the worker thread, which answers the services, so that a step is answered when
it is done; the executor hears meanwhile who cancels, deactivates or stops.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import rclpy.action.server
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn
from std_srvs.srv import Trigger

from openeta_msgs.action import StepChunk
from openeta_msgs.msg import ActionChunk
from openeta_msgs.msg import StepResult as StepResultMessage
from openeta_msgs.srv import Expert, Reset, Step
from openeta_ros.control import Execution
from openeta_ros.envs import EnvError, EnvFacade, EnvSpec, Sensors, StepResult
from openeta_ros.envs.arm_operator import Operator
from openeta_ros.nodes import messages, runtime
from openeta_ros.nodes.configured import ConfiguredNode
from openeta_ros.nodes.deferred import serve_later
from openeta_ros.nodes.description import load_contract
from openeta_ros.nodes.goals import serve_goals
from openeta_ros.nodes.sensors import SensorPublisher

# The env that is a physical arm, and its options among the parameters.
ARM = 'arm'
ARM_OPTIONS = ('speed', 'dry_run', 'servo_hz', 'success')


class _Cancelled(Exception):
    """A chunk ends after the row that just ran."""


class EnvNode(ConfiguredNode):
    """See openeta_msgs for what the services and actions mean, and `parameters` for the parameters."""

    def __init__(self, process: runtime.Process) -> None:
        super().__init__(process, 'env')
        self._env: EnvFacade | None = None
        self._descriptor = ''
        self._publisher: SensorPublisher | None = None
        self._operator = Operator(enabled=self._values['enabled'])
        self._rows = self.create_publisher(StepResultMessage, '~/step_result', 100)
        serve_later(self, process, Reset, '~/reset', self._reset)
        serve_later(self, process, Step, '~/step', self._answer_step)
        serve_later(self, process, Expert, '~/expert', self._expert)
        serve_later(self, process, Trigger, '~/close', self._close)
        serve_goals(self, process, StepChunk, '~/step_chunk', self._step_chunk)

    def on_end(self) -> None:
        """Free the env. On the worker."""
        env, self._env, self._descriptor = self._env, None, ''
        if env is not None:
            env.close()

    def on_stop(self) -> None:
        """Bring an arm to rest: the process is told to end. On any thread."""
        self._operator.active = False
        if not self._operator.idle.wait(self._operator.rest_s):
            self.get_logger().error(f'the arm is not at rest after {self._operator.rest_s:.3g} s')

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Allow motion."""
        self._operator.active = True
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Allow no motion; an arm is at rest when this returns."""
        self.on_stop()
        return super().on_deactivate(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the env, from any state; an arm comes to rest first."""
        self.on_stop()
        return super().on_shutdown(state)

    def _open(self) -> None:
        values = self._values
        arm = values['env'] == ARM
        options = {name: values[name] for name in ARM_OPTIONS} if arm else {}
        spec = EnvSpec(
            backend=values['env'],
            task=values['task'],
            embodiment=load_contract(self, self._process, values),
            max_steps=values['max_steps'] or None,
            options=options | ({'node': self, 'operator': self._operator} if arm else {}),
        )
        self.on_end()
        self._env = EnvFacade.from_spec(spec)
        self._descriptor = json.dumps(self._env.descriptor())
        if self._publisher is None and not arm:
            self._publisher = SensorPublisher(self, spec.embodiment, self._env.camera_poses)

    def _describe(self) -> str:
        return self._descriptor

    def _reset(self, request: Any, response: Any) -> None:
        env = self._usable()
        observation = env.reset(request.seed)
        self._publish(env.sensors, observation)
        response.stamp = messages.time_message(observation.stamp_ns)

    def _answer_step(self, request: Any, response: Any) -> None:
        self._step(request.chunk, response.results.append)

    def _expert(self, request: Any, response: Any) -> None:
        response.actions = messages.array_message(self._usable().expert())

    def _close(self, request: Any, response: Any) -> None:
        self.on_end()
        response.success = True

    def _step_chunk(self, goal: rclpy.action.server.ServerGoalHandle) -> Any:
        result = StepChunk.Result()

        def tell(row: StepResultMessage) -> None:
            result.results.append(row)
            goal.publish_feedback(StepChunk.Feedback(result=row))
            if goal.is_cancel_requested:
                raise _Cancelled

        try:
            self._step(goal.request.chunk, tell)
        except _Cancelled:
            pass
        except Exception as error:
            result.failure = messages.failure_message(error)
        return result

    def _step(self, chunk: ActionChunk, tell: Callable[[StepResultMessage], None]) -> None:
        """Execute a chunk, publishing what is seen after each row. On the worker."""
        env = self._usable()
        _check_rate(chunk.rate_hz, env.spec.embodiment.rate_hz)

        def on_row(result: StepResult, sensors: Sensors) -> None:
            self._publish(sensors, result.observation)
            row = messages.step_message(result)
            self._rows.publish(row)
            tell(row)
            if self._process.stopping:
                raise runtime.Stopping

        execution = Execution(chunk.horizon or None, chunk.asynchronous)
        env.chunk_step(messages.rows_of(chunk), chunk.action_type, on_row, execution)

    def _usable(self) -> EnvFacade:
        if self._env is None or not self._active:
            name = self.get_fully_qualified_name()
            raise EnvError('state', f'{name} moves only while ACTIVE: configure and activate it first')
        return self._env

    def _publish(self, sensors: Sensors, observation: Any) -> None:
        if self._publisher is not None:  # an arm's drivers publish themselves
            self._publisher.publish(sensors, observation)


def _check_rate(wanted_hz: float, rate_hz: float) -> None:
    if wanted_hz not in (0.0, rate_hz):
        raise EnvError(
            'option', f'the chunk is for {wanted_hz:g} rows a second, the contract says {rate_hz:g}'
        )


def main() -> None:
    """Run the node."""
    runtime.main(EnvNode)


if __name__ == '__main__':
    main()
