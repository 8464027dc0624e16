# SPDX-License-Identifier: Apache-2.0
"""Commands as messages: publishers and action clients for a contract's channels, and who else has some."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from builtin_interfaces.msg import Duration
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from rclpy.node import Node
from std_msgs.msg import Float64MultiArray, Header
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from openeta_ros.control.commands import Channel, Command, PathCommand, PoseCommand
from openeta_ros.nodes.remote import PatientActionClient
from openeta_ros.observation import NS_PER_S

MESSAGES = {
    'joint_trajectory': JointTrajectory,
    'forward_position': Float64MultiArray,
    'forward_velocity': Float64MultiArray,
    'pose': PoseStamped,
}
# joint_trajectory_controller's action, beside its topic `<controller>/joint_trajectory`.
TRAJECTORY, FOLLOW = '/joint_trajectory', '/follow_joint_trajectory'
# What DDS calls a node whose endpoint was found before it was.
UNKNOWN = '_NODE_NAME_UNKNOWN_'


class CommandSender:
    """Sends the commands of channels.

    Args:
        elsewhere: channels that a process of ours sends on; looked at all the same.
        ours: names of the nodes that are ours, beside this one.
    """

    def __init__(
        self,
        node: Node,
        channels: Sequence[Channel],
        elsewhere: Sequence[Channel] = (),
        ours: Sequence[str] = (),
    ) -> None:
        self._node = node
        self._ours = {node.get_name(), *ours}
        self.channels = tuple(channels)
        self._elsewhere = tuple(elsewhere)
        self._publishers: dict[Channel, Any] = {}
        self._clients: dict[Channel, PatientActionClient] = {}
        for channel in self.channels:
            if channel.interface in MESSAGES:
                self._publishers[channel] = self._publisher(channel)
            else:
                action = _action_types()[channel.interface]
                self._clients[channel] = PatientActionClient(node, action, channel.topic)

        # Velocities go on for ever when their process is gone: then it is from here that they are ended.
        self._spare = {one for one in elsewhere if one.interface == 'forward_velocity'}
        self._publishers |= {channel: self._publisher(channel) for channel in self._spare}

    def prepared(self, command: Command) -> Callable[[], object]:
        """Return what sends one command, with its message made. For any one thread."""
        channel = command.channel
        if channel in self._publishers:
            return partial(self._publishers[channel].publish, self._message(command))
        return partial(self._clients[channel].send_goal_async, _goal(command))

    def unheard(self) -> list[str]:
        """Return a sentence for each channel that no controller listens on."""
        return [
            f'no controller listens on {self._name(channel)} ({channel.interface})'
            for channel in self.channels
            if not self._heard(channel)
        ]

    def others(self) -> list[str]:
        """Return a sentence for each channel that somebody else commands, or may."""
        return [text for channel in (*self.channels, *self._elsewhere) for text in self._others(channel)]

    def _publisher(self, channel: Channel) -> Any:
        return self._node.create_publisher(MESSAGES[channel.interface], channel.topic, 10)

    def _name(self, channel: Channel) -> str:
        if channel.interface in MESSAGES:
            return str(self._node.resolve_topic_name(channel.topic))
        return str(self._node.resolve_service_name(channel.topic))

    def _heard(self, channel: Channel) -> bool:
        if channel in self._publishers:
            return bool(self._publishers[channel].get_subscription_count())
        return self._clients[channel].server_is_ready()

    def _others(self, channel: Channel) -> Iterator[str]:
        name = self._name(channel)
        if channel.interface in MESSAGES:
            if self._node.count_publishers(name) > (2 if channel in self._spare else 1):
                infos = self._node.get_publishers_info_by_topic(name)
                nodes = [
                    f'{info.node_namespace.rstrip("/")}/{info.node_name}'
                    for info in infos
                    if info.node_name != UNKNOWN
                    and (
                        info.node_name not in self._ours or info.node_namespace != self._node.get_namespace()
                    )
                ]
                yield f'{", ".join(nodes) or "another node"} publishes on {name} too'
            if name.endswith(TRAJECTORY) and self._count_clients(name.removesuffix(TRAJECTORY) + FOLLOW):
                yield f'a client of the action {name.removesuffix(TRAJECTORY) + FOLLOW} may command too'
        elif self._count_clients(name) > 1:
            yield f'another client of the action {name} may command too'

    def _count_clients(self, action: str) -> int:
        return int(self._node.count_clients(f'{action}/_action/send_goal'))

    def _message(self, command: Command) -> Any:
        if isinstance(command, PathCommand):
            return trajectory_message(command)
        if isinstance(command, PoseCommand):
            x, y, z, qx, qy, qz, qw = map(float, command.values)
            stamp = self._node.get_clock().now().to_msg()
            return PoseStamped(
                header=Header(stamp=stamp, frame_id=command.channel.frame),
                pose=Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(x=qx, y=qy, z=qz, w=qw)),
            )
        return Float64MultiArray(data=command.values.tolist())


def trajectory_message(command: PathCommand) -> JointTrajectory:
    """Return a path as a message with stamp 0, which begins when it arrives."""
    points = [
        JointTrajectoryPoint(
            positions=positions.tolist(), velocities=velocities.tolist(), time_from_start=_duration(time_s)
        )
        for time_s, positions, velocities in zip(
            command.times_s, command.positions, command.velocities, strict=True
        )
    ]
    return JointTrajectory(joint_names=list(command.channel.names), points=points)


def _duration(time_s: float) -> Duration:
    sec, nanosec = divmod(round(time_s * NS_PER_S), NS_PER_S)
    return Duration(sec=int(sec), nanosec=int(nanosec))


def _action_types() -> dict[str, Any]:
    """Return the actions of control_msgs; the contract's channels have none where it is not installed."""
    from control_msgs import action

    return {
        'gripper_command': action.GripperCommand,
        'parallel_gripper_command': getattr(action, 'ParallelGripperCommand', None),
        'follow_joint_trajectory': action.FollowJointTrajectory,
    }


def _goal(command: Command) -> Any:
    channel = command.channel
    goal = _action_types()[channel.interface].Goal()
    if isinstance(command, PathCommand):
        goal.trajectory = trajectory_message(command)
    elif channel.interface == 'gripper_command':
        goal.command.position = float(command.values[0])
        goal.command.max_effort = channel.max_effort
    else:
        goal.command.name = list(channel.names)
        goal.command.position = command.values.tolist()
        goal.command.effort = [channel.max_effort] if channel.max_effort else []
    return goal
