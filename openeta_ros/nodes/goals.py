# SPDX-License-Identifier: Apache-2.0
"""Action servers whose goals the worker carries out, one after another.

The goal is deferred: the executor hands it to the worker and goes on, and is told to answer when the result
is there. (A coroutine that waits for the worker would keep rclpy's executor busy all the while.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy.action import ActionServer, CancelResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.node import Node

from openeta_ros.nodes.runtime import Process

Job = Callable[[ServerGoalHandle], Any]


def serve_goals(node: Node, process: Process, action_type: Any, name: str, job: Job) -> ActionServer:
    """Offer an action.

    `job` returns the result, whose `failure` says what went wrong, and looks at `goal.is_cancel_requested`
    where it can end early.
    """

    def accepted(goal: ServerGoalHandle) -> None:
        process.submit(lambda: goal.execute(partial(_answer, job(goal))))

    return ActionServer(
        node,
        action_type,
        name,
        execute_callback=_never,
        handle_accepted_callback=accepted,
        cancel_callback=lambda goal: CancelResponse.ACCEPT,
    )


def _answer(result: Any, goal: ServerGoalHandle) -> Any:
    if goal.is_cancel_requested:
        goal.canceled()
    elif result.failure.kind:
        goal.abort()
    else:
        goal.succeed()
    return result


def _never(goal: ServerGoalHandle) -> Any:
    raise AssertionError('goals are executed with their own answer')
