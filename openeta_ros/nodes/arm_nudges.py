# SPDX-License-Identifier: Apache-2.0
"""The last step of the checklist: each joint moves by a hair and back, the gripper by a millimetre.

Told one thing, does the arm do that thing, and only that? Wrong signs, joints in another order, and
controllers that take commands and do nothing, show at a hundredth of a radian.
"""

from __future__ import annotations

import array
import time
from collections.abc import Iterator, Mapping
from typing import Any

from geometry_msgs.msg import PoseStamped
from rclpy.node import Node
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from openeta_ros.control.commands import Channel, channels
from openeta_ros.embodiment import Embodiment, Kinematics
from openeta_ros.nodes.arm_checks import Finding
from openeta_ros.nodes.messages import time_message
from openeta_ros.nodes.streams import Bridge
from openeta_ros.observation import NS_PER_S

# A nudge takes so long, and the arm so much longer to be seen to have followed.
NUDGE_S, PATIENCE_S = 0.5, 2.0
SERVO_S = 0.02
# We know of a controller before it knows of us; what it takes best effort would be lost till then.
MATCHED_S = 0.5
# Of the nudge: what counts as having moved, and as having stayed.
MOVED, STAYED = 0.5, 0.3
GRIPPER_M, GRIPPER_SHARE = 0.001, 0.02


class Nudger:
    """Nudges joints over the contract's commands. Not for use on the executor's thread."""

    def __init__(self, node: Node, embodiment: Embodiment, bridge: Bridge, kinematics: Kinematics) -> None:
        self._node, self._embodiment, self._bridge = node, embodiment, bridge
        self._limits = dict(
            zip(
                [joint for arm in embodiment.arms.values() for joint in arm.joints],
                kinematics.position_limits.tolist(),
                strict=True,
            )
        )
        self._channels = channels(embodiment)
        self._publishers = {
            channel: node.create_publisher(kind, channel.topic, 10)
            for channel in self._channels
            if (kind := _message_type(channel)) is not None
        }

    def run(self, hair: float) -> Iterator[Finding]:
        """Move one joint after the other by `hair` (rad, or m) and back, to the first that goes wrong."""
        for channel in self._channels:
            publisher = self._publishers.get(channel)
            if publisher is None or channel.interface == 'pose':
                yield Finding(
                    f'move {channel.topic}', 'warning', f'not moved: {channel.interface}', 'try it by hand'
                )
                continue
            deadline = time.monotonic() + PATIENCE_S
            while not publisher.get_subscription_count() and time.monotonic() < deadline:
                time.sleep(0.02)
            time.sleep(MATCHED_S)
            for joint in channel.joints:
                finding = self._nudge(channel, joint, hair)
                yield finding
                if finding.status == 'failed':
                    return

    def _nudge(self, channel: Channel, joint: str, hair: float) -> Finding:
        before, still = self._positions(), STAYED * hair
        gripper = next(
            (
                arm.gripper
                for arm in self._embodiment.arms.values()
                if arm.gripper and arm.gripper.joint == joint
            ),
            None,
        )
        if gripper is not None:
            low, high = sorted((gripper.open, gripper.closed))
            hair = GRIPPER_M if gripper.unit == 'm' else GRIPPER_SHARE * (high - low)
        else:
            low, high = self._limits[joint]
        # Away from the nearer end.
        way = hair if before[joint] < (low + high) / 2 else -hair
        start = {name: before[name] for name in channel.joints}
        self._send(channel, start, {**start, joint: before[joint] + way})
        after = self._settled(joint, before[joint] + way, abs(way))
        if abs(after[joint] - before[joint]) < STAYED * abs(way):  # a message that was lost, perhaps
            self._send(channel, start, {**start, joint: before[joint] + way})
            after = self._settled(joint, before[joint] + way, abs(way))
        self._send(channel, {**start, joint: before[joint] + way}, start)
        self._settled(joint, before[joint], abs(way))
        return _judged(self._embodiment, joint, way, still, before, after)

    def _positions(self) -> dict[str, float]:
        streams, _ = self._bridge.wait_for(0, PATIENCE_S)
        return dict(streams.positions)

    def _settled(self, joint: str, target: float, way: float) -> dict[str, float]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            positions = self._positions()
            if abs(positions[joint] - target) < (1 - MOVED) * way / 2 or time.monotonic() > deadline:
                return positions
            time.sleep(0.02)

    def _send(self, channel: Channel, start: Mapping[str, float], end: Mapping[str, float]) -> None:
        publisher = self._publishers[channel]
        if channel.interface == 'joint_trajectory':
            point = JointTrajectoryPoint(
                positions=[end[name] for name in channel.joints],
                velocities=[0.0] * len(channel.joints),
            )
            after = time_message(round(NUDGE_S * NS_PER_S))
            point.time_from_start.sec, point.time_from_start.nanosec = after.sec, after.nanosec
            publisher.publish(JointTrajectory(joint_names=list(channel.names), points=[point]))
            time.sleep(NUDGE_S)
            return
        steps = round(NUDGE_S / SERVO_S)
        for step in range(1, steps + 1):
            if channel.interface == 'forward_position':
                numbers = [start[one] + step / steps * (end[one] - start[one]) for one in channel.joints]
            else:
                numbers = [(end[one] - start[one]) / NUDGE_S for one in channel.joints]
            publisher.publish(Float64MultiArray(data=array.array('d', numbers)))
            time.sleep(SERVO_S)
        if channel.interface == 'forward_velocity':
            publisher.publish(Float64MultiArray(data=array.array('d', [0.0] * len(channel.joints))))


def _message_type(channel: Channel) -> Any:
    return {
        'joint_trajectory': JointTrajectory,
        'forward_position': Float64MultiArray,
        'forward_velocity': Float64MultiArray,
        'pose': PoseStamped,
    }.get(channel.interface)


def _judged(
    embodiment: Embodiment,
    joint: str,
    way: float,
    still: float,
    before: Mapping[str, float],
    after: Mapping[str, float],
) -> Finding:
    name, moved = f'move {joint}', after[joint] - before[joint]
    told = f'told to go {way:+.4g}, went {moved:+.4g}'
    for arm_name, arm in embodiment.arms.items():
        if arm.gripper is not None and arm.gripper.joint == joint:
            opens = (way > 0) == (arm.gripper.open > arm.gripper.closed)
            told += f': that is {"open" if opens else "close"}; did the gripper of {arm_name} do that?'
    others = {
        other: after[other] - before[other]
        for other in embodiment.wire_joints
        if other != joint and abs(after[other] - before[other]) > still
    }
    if moved / way > MOVED and not others:
        return Finding(name, 'ok', told)
    if others:
        who = ', '.join(f'{other} by {value:+.4g}' for other, value in others.items())
        return Finding(
            name,
            'failed',
            f'{told}; {who} moved too',
            'correct the order of joints (command.joints) or names',
        )
    if moved / way < -MOVED:
        return Finding(name, 'failed', told, 'its sign is not that of the joint states: correct its driver')
    return Finding(name, 'failed', told, 'is its controller active, the arm enabled and unlocked?')
