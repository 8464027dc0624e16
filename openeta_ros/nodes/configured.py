# SPDX-License-Identifier: Apache-2.0
"""What the env and the policy node share: a lifecycle around one thing that lives on the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

from openeta_msgs.msg import Failure
from openeta_msgs.srv import Describe
from openeta_ros.nodes import messages, runtime


class ConfiguredNode(LifecycleNode):
    """A node that opens something when configured, uses it only while ACTIVE, and frees it at the end.

    A subclass opens in `_open` and frees in `on_end`, both on the worker; `_describe` tells what it opened,
    which it uses only while `_active`. Its name is that of its table of parameters.
    """

    def __init__(self, process: runtime.Process, name: str) -> None:
        super().__init__(name)
        self._process = process
        self._values = runtime.declare(self, name)
        self._active = False
        self._failure = Failure()
        self.create_service(Describe, '~/describe', self._on_describe)
        self._change_state = self._service_change_state.callback
        self._service_change_state.callback = self._on_change_state

    def _open(self) -> None:
        raise NotImplementedError

    def on_end(self) -> None:
        """Free what was opened, if anything was."""
        raise NotImplementedError

    def _describe(self) -> str:
        """Return a JSON object; empty when nothing is open."""
        raise NotImplementedError

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Open; `~/describe` tells why when it fails."""
        self._failure = Failure()
        try:
            self._process.call(self._open)
        except Exception as error:
            self._failure = messages.failure_message(error)
            runtime.log_failure(self, f'the {self.get_name()} node cannot be configured', error)
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Allow its use."""
        self._active = True
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Refuse its use."""
        self._active = False
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free it."""
        self._process.call(self.on_end)
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free it, from any state."""
        self._active = False
        self._process.call(self.on_end)
        return TransitionCallbackReturn.SUCCESS

    def _on_change_state(self, request: Any, response: Any) -> Any:
        """Refuse a transition that does not lead out of the present state: rclpy would end the node."""
        asked, state = request.transition, self._state_machine.current_state[1]
        found = [entry[:2] for entry in self._state_machine.available_transitions]
        if any(asked.label == label if asked.label else asked.id == number for number, label in found):
            return self._change_state(request, response)
        there = ', '.join(f'{label} ({number})' for number, label in found)
        name = asked.label or f'transition {asked.id}'
        self.get_logger().warning(f'{name} was asked for and does not lead out of {state}; {there} do')
        response.success = False
        return response

    def _on_describe(self, request: Any, response: Any) -> Any:
        response.descriptor, response.failure = self._describe(), self._failure
        return response

    def _answered(self, response: Any, job: Callable[[], None]) -> Any:
        """Have the worker do what a service asks; its failure is the answer's."""
        try:
            self._process.call(job)
        except Exception as error:
            response.failure = messages.failure_message(error)
            runtime.log_failure(self, 'refused', error)
        return response
