# SPDX-License-Identifier: Apache-2.0
"""The actions of the mock's controllers, where control_msgs is installed; importing this fails elsewhere.

Goals are looked at 20 times a second, as the real controllers do: that is when feedback and results come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from control_msgs.action import FollowJointTrajectory, GripperCommand, ParallelGripperCommand
from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from openeta_ros.envs.mock_controllers import Commanded, ForwardController
from openeta_ros.envs.mock_robot import MockRobot
from openeta_ros.envs.mock_trajectory import (
    CANCELED,
    SUCCEEDED,
    SUCCESSFUL,
    Goal,
    Outcome,
    Rejected,
    TrajectoryController,
)
from openeta_ros.nodes.mock_controllers import trajectory_of
from openeta_ros.observation import NS_PER_S

LOOK_S = 0.05

# Of a running goal: tells how it ended, or None.
Look = Callable[[], Outcome | None]


def serve_actions(node: Node, robot: MockRobot) -> None:
    """Offer the actions that the controllers' interfaces name, and `follow_joint_trajectory` of each
    trajectory controller."""
    for one in robot.controllers:
        if isinstance(one.controller, TrajectoryController):
            own = one.channel.interface == 'follow_joint_trajectory'
            _Trajectories(
                node, robot, one, one.channel.topic if own else f'{one.name}/follow_joint_trajectory'
            )
        elif one.channel.interface in ('gripper_command', 'parallel_gripper_command'):
            _Grippers(node, robot, one)


class _Goals:
    """Goals of one action, that end at a look at them."""

    action: Any

    def __init__(self, node: Node, robot: MockRobot, one: Commanded, name: str) -> None:
        self._node, self._robot, self._one = node, robot, one
        self._running: list[tuple[ServerGoalHandle, Any]] = []
        self._server = ActionServer(
            node,
            self.action,
            name,
            execute_callback=lambda goal: None,
            goal_callback=self._on_goal,
            handle_accepted_callback=self._on_accepted,
            cancel_callback=lambda goal: CancelResponse.ACCEPT,
        )
        node.create_timer(LOOK_S, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def check(self, request: Any) -> None:
        """Raise Rejected when the goal cannot be taken."""
        raise NotImplementedError

    def begin(self, request: Any) -> Any:
        """Begin a goal, and return what is looked at."""
        raise NotImplementedError

    def outcome(self, goal: Any, cancelled: bool) -> Outcome | None:
        """Return how a goal ended, when it did."""
        raise NotImplementedError

    def result(self, outcome: Outcome) -> Any:
        """Return the action's result."""
        raise NotImplementedError

    def feedback(self, goal: Any) -> Any:
        """Return the action's feedback; None for none."""

    def _on_goal(self, request: Any) -> GoalResponse:
        try:
            with self._robot.lock:
                self.check(request)
        except Rejected as rejected:
            self._node.get_logger().error(f'{self._one.name}: goal rejected: {rejected}')
            return GoalResponse.REJECT
        return GoalResponse.ACCEPT

    def _on_accepted(self, handle: ServerGoalHandle) -> None:
        with self._robot.lock:
            self._running.append((handle, self.begin(handle.request)))

    def _look(self) -> None:
        for handle, goal in list(self._running):
            with self._robot.lock:
                outcome = self.outcome(goal, handle.is_cancel_requested)
                feedback = self.feedback(goal)
            if outcome is not None:
                self._running.remove((handle, goal))
                handle.execute(lambda done, outcome=outcome: self._answer(done, outcome))
            elif feedback is not None:
                handle.publish_feedback(feedback)

    def _answer(self, handle: ServerGoalHandle, outcome: Outcome) -> Any:
        if outcome.status == SUCCEEDED:
            handle.succeed()
        elif outcome.status == CANCELED:
            handle.canceled()
        else:
            handle.abort()
        return self.result(outcome)


class _Trajectories(_Goals):
    action = FollowJointTrajectory

    @property
    def _controller(self) -> TrajectoryController:
        assert isinstance(self._one.controller, TrajectoryController)
        return self._one.controller

    def check(self, request: Any) -> None:
        self._controller.check(trajectory_of(request.trajectory), self._now_ns())

    def begin(self, request: Any) -> Goal:
        goal = Goal(
            trajectory_of(request.trajectory),
            {tolerance.name: tolerance.position for tolerance in request.path_tolerance},
            {tolerance.name: tolerance.position for tolerance in request.goal_tolerance},
            request.goal_time_tolerance.sec + request.goal_time_tolerance.nanosec / NS_PER_S,
        )
        self._controller.accept_goal(goal, self._now_ns())
        return goal

    def outcome(self, goal: Goal, cancelled: bool) -> Outcome | None:
        if cancelled:
            self._controller.cancel(goal)
        return goal.outcome

    def result(self, outcome: Outcome) -> Any:
        return FollowJointTrajectory.Result(error_code=outcome.error_code, error_string=outcome.text)

    def feedback(self, goal: Goal) -> Any:
        feedback = FollowJointTrajectory.Feedback(joint_names=list(self._controller.joints))
        feedback.header.stamp = self._node.get_clock().now().to_msg()
        measured, desired = self._robot.measured(self._one), self._controller.commanded
        feedback.actual.positions = measured.tolist()
        if desired is not None:
            feedback.desired.positions = desired.tolist()
            feedback.error.positions = (desired - measured).tolist()
        return feedback

    def _now_ns(self) -> int:
        return int(self._node.get_clock().now().nanoseconds)


class _Grippers(_Goals):
    """Goals of a gripper: it is commanded as a forward controller is, and each is said to be reached."""

    def __init__(self, node: Node, robot: MockRobot, one: Commanded) -> None:
        self._parallel = one.channel.interface == 'parallel_gripper_command'
        self.action = ParallelGripperCommand if self._parallel else GripperCommand
        super().__init__(node, robot, one, one.channel.topic)

    def check(self, request: Any) -> None:
        if not self._one.controller.active:
            raise Rejected('the controller is not active')

    def begin(self, request: Any) -> float:
        assert isinstance(self._one.controller, ForwardController)
        position = request.command.position
        value = float(position[0] if self._parallel else position)
        if not np.isnan(value):
            self._one.controller.accept([value])
        return value

    def outcome(self, goal: float, cancelled: bool) -> Outcome | None:
        return Outcome(CANCELED if cancelled else SUCCEEDED, SUCCESSFUL)

    def result(self, outcome: Outcome) -> Any:
        reached = float(self._robot.measured(self._one)[0])
        if not self._parallel:
            return GripperCommand.Result(position=reached, reached_goal=True)
        result = ParallelGripperCommand.Result(reached_goal=True)
        result.state.name, result.state.position, result.state.effort = [''], [reached], [0.0]
        return result
