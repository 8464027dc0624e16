# SPDX-License-Identifier: Apache-2.0
"""The actions of the mock's controllers, where control_msgs is installed, end as those of ros2_control do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from contracts import contract, written
from ros_graph import environment, node_process, spinning, wait_until

pytest.importorskip('control_msgs.action')

from builtin_interfaces.msg import Duration
from control_msgs.action import FollowJointTrajectory, GripperCommand
from rclpy.node import Node
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from openeta_ros.nodes.remote import PatientActionClient

JOINTS = contract('light_arm')['arms']['arm']['joints']


@pytest.fixture(scope='module')
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp('mock')
    data = contract('light_arm')
    arm = data['arms']['arm']
    arm['limits']['acceleration'] = [8.0] * 6
    arm['command'] = {'interface': 'joint_trajectory', 'topic': 'arm_controller/joint_trajectory'}
    arm['gripper']['command'] = {'interface': 'gripper_command', 'topic': 'gripper/gripper_action'}
    robot = str(written(data, folder).path)
    with (
        environment(),
        node_process('mock', folder / 'log', embodiment=robot, task='reach'),
        spinning('tester') as (tester, _),
    ):
        yield tester


class Action:
    """Sends goals and says how they end."""

    def __init__(self, node: Node, kind: Any, name: str) -> None:
        self._client = PatientActionClient(node, kind, name)
        assert self._client.wait_for_server(60.0)
        self.feedback: list[Any] = []

    def send(self, goal: Any) -> Any:
        future = self._client.send_goal_async(goal, lambda message: self.feedback.append(message.feedback))
        wait_until(future.done)
        return future.result()

    @staticmethod
    def end(handle: Any) -> tuple[int, Any]:
        future = handle.get_result_async()
        wait_until(future.done)
        return future.result().status, future.result().result


def goal(position: float, seconds: float, joints: list[str] = JOINTS) -> FollowJointTrajectory.Goal:
    whole, rest = divmod(seconds, 1.0)
    after = Duration(sec=int(whole), nanosec=int(rest * 1e9))
    point = JointTrajectoryPoint(positions=[position] * len(joints), time_from_start=after)
    return FollowJointTrajectory.Goal(trajectory=JointTrajectory(joint_names=joints, points=[point]))


def test_goals_of_trajectories_succeed_are_rejected_preempted_and_cancelled(node: Node) -> None:
    action = Action(node, FollowJointTrajectory, 'arm_controller/follow_joint_trajectory')
    status, result = action.end(action.send(goal(0.1, 1.0)))
    assert (status, result.error_code) == (4, 0)
    assert not action.send(goal(0.1, 1.0, JOINTS[:5])).accepted
    count = len(action.feedback)
    old = action.send(goal(0.5, 1000.0))
    wait_until(lambda: len(action.feedback) > count + 5)
    assert list(action.feedback[-1].joint_names) == JOINTS
    new = action.send(goal(0.0, 0.5))
    status, result = action.end(old)
    assert (status, result.error_code) == (6, -1)
    assert result.error_string == 'Current goal preempted by new incoming action.'
    assert action.end(new)[0] == 4
    cancelled = action.send(goal(0.5, 1000.0))
    wait_until(cancelled.cancel_goal_async().done)
    status, result = action.end(cancelled)
    assert (status, result.error_code) == (5, 0)


def test_a_goal_of_a_gripper_succeeds_at_once_whatever_was_commanded(node: Node) -> None:
    action = Action(node, GripperCommand, 'gripper/gripper_action')
    wanted = GripperCommand.Goal()
    wanted.command.position = 0.2
    status, result = action.end(action.send(wanted))
    assert status == 4 and result.reached_goal
