# SPDX-License-Identifier: Apache-2.0
"""The controllers of the mock on the graph: their topics, and services that activate and deactivate them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from geometry_msgs.msg import PoseStamped
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory

from openeta_ros.embodiment import Embodiment
from openeta_ros.envs.mock_controllers import Commanded, ForwardController, PoseController, activate
from openeta_ros.envs.mock_robot import MockRobot
from openeta_ros.envs.mock_trajectory import Point, Rejected, Trajectory, TrajectoryController
from openeta_ros.nodes.messages import time_ns
from openeta_ros.observation import NS_PER_S

# joint_trajectory_controller's subscription is best effort.
COMMANDS = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)


def serve_controllers(node: Node, embodiment: Embodiment, robot: MockRobot) -> None:
    """Have the controllers listen to their topics, and offer `<controller>/set_active`.

    Where control_msgs is installed, trajectory controllers and grippers have their actions too.
    """
    for one in robot.controllers:
        if isinstance(one.controller, TrajectoryController):
            if one.channel.interface == 'joint_trajectory':
                take = partial(_on_trajectory, node, robot, one, one.controller)
                node.create_subscription(JointTrajectory, one.channel.topic, take, COMMANDS)
        elif isinstance(one.controller, PoseController):
            node.create_subscription(
                PoseStamped, one.channel.topic, partial(_on_pose, node, robot, one, one.controller), COMMANDS
            )
        elif one.channel.interface in ('forward_position', 'forward_velocity'):
            take_numbers = partial(_on_numbers, node, robot, one, one.controller)
            node.create_subscription(Float64MultiArray, one.channel.topic, take_numbers, 10)
        node.create_service(SetBool, f'{one.name}/set_active', partial(_on_set_active, node, robot, one))
    for name, arm in embodiment.arms.items():
        own = arm.gripper.command if arm.gripper else None
        usable = own.usable() if own else None
        if own is not None and usable is not None and usable is not own:
            node.get_logger().warning(
                f'control_msgs is not installed: the gripper of {name} is commanded by {usable.interface} on '
                f'{usable.topic}, in the place of the action {own.topic}'
            )
    try:
        from openeta_ros.nodes.mock_actions import serve_actions
    except ImportError:
        return
    serve_actions(node, robot)


def trajectory_of(message: JointTrajectory) -> Trajectory:
    """Return a message as the controller takes it."""
    return Trajectory(
        joints=tuple(message.joint_names),
        points=tuple(
            Point(
                point.time_from_start.sec + point.time_from_start.nanosec / NS_PER_S,
                np.array(point.positions, dtype=np.float64),
                np.array(point.velocities, dtype=np.float64),
                np.array(point.accelerations, dtype=np.float64),
                np.array(point.effort, dtype=np.float64),
            )
            for point in message.points
        ),
        start_ns=time_ns(message.header.stamp),
    )


def _on_trajectory(
    node: Node, robot: MockRobot, one: Commanded, controller: TrajectoryController, message: JointTrajectory
) -> None:
    try:
        with robot.lock:
            controller.accept(trajectory_of(message), node.get_clock().now().nanoseconds)
    except Rejected as rejected:
        _log(node, one, rejected)


def _on_numbers(
    node: Node, robot: MockRobot, one: Commanded, controller: ForwardController, message: Float64MultiArray
) -> None:
    try:
        with robot.lock:
            controller.accept(np.array(message.data, dtype=np.float64))
    except Rejected as rejected:
        _log(node, one, rejected)


def _on_pose(
    node: Node, robot: MockRobot, one: Commanded, controller: PoseController, message: PoseStamped
) -> None:
    place, turn = message.pose.position, message.pose.orientation
    pose = np.array([place.x, place.y, place.z, turn.w, turn.x, turn.y, turn.z])
    try:
        with robot.lock:
            controller.accept(pose, robot.measured(one))
    except Rejected as rejected:
        _log(node, one, rejected)


def _on_set_active(node: Node, robot: MockRobot, one: Commanded, request: Any, response: Any) -> Any:
    with robot.lock:
        refused = None
        if request.data:
            refused = activate(robot.controllers, one)
        else:
            one.controller.deactivate()
    response.success, response.message = refused is None, refused or ''
    node.get_logger().info(f'{one.name} is {"active" if one.controller.active else "inactive"}')
    return response


def _log(node: Node, one: Commanded, rejected: Rejected) -> None:
    node.get_logger().error(f'{one.channel.topic}: rejected: {rejected}')
