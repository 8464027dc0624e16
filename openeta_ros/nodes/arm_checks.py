# SPDX-License-Identifier: Apache-2.0
"""The checklist for the first run on a new arm: does what is on the graph fit the contract?

It only listens, unless it is told to move (`arm_nudges`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from openeta_ros.control.commands import Channel, channels
from openeta_ros.embodiment import Embodiment, EmbodimentError, Kinematics, KinematicsError
from openeta_ros.embodiment.schema import State
from openeta_ros.nodes.description import load_contract
from openeta_ros.nodes.runtime import Process
from openeta_ros.nodes.streams import Bridge
from openeta_ros.nodes.subscription import StreamSubscription, on_executor
from openeta_ros.observation import MissingStream, Observation, ObservationError, StreamHealth, Streams
from openeta_ros.observation.cdr import message_decoder

JOINT_STATE = 'sensor_msgs/msg/JointState'
# Streams have this long to be discovered and to begin.
DISCOVERY_S = 5.0
DESCRIPTION_S = 10.0
# Of rate_hz: with fewer pictures than this a policy sees much of its motion late.
SLOWEST_CAMERA = 0.4
# Where a gripper may be beyond open and closed: a finger that is pushed.
OPENNESS_SLACK = 0.15
# Two ways to know where the tool is should agree as closely as this.
POSES_AGREE_M = 0.01
TYPES = {
    'joint_trajectory': 'trajectory_msgs/msg/JointTrajectory',
    'forward_position': 'std_msgs/msg/Float64MultiArray',
    'forward_velocity': 'std_msgs/msg/Float64MultiArray',
    'pose': 'geometry_msgs/msg/PoseStamped',
}


class Finding(NamedTuple):
    """One line of the checklist; `status` is 'ok', 'warning' or 'failed'."""

    name: str
    status: str
    found: str
    remedy: str = ''


class ArmChecks:
    """Looks at one robot. Not for use on the executor's thread; what `run` yields comes as it is found."""

    def __init__(self, node: Node, process: Process, contract: str, *, seconds: float) -> None:
        self.node = node
        self._process = process
        self._contract = contract
        self._seconds = seconds
        self.embodiment: Embodiment | None = None
        self.bridge: Bridge | None = None
        self.streams: Streams | None = None
        self.ready = False  # to be moved: joints are seen, controllers listen, nobody else commands

    def run(self) -> Iterator[Finding]:
        """Yield one finding after the other."""
        try:
            values = {'embodiment': self._contract, 'description_timeout_s': DESCRIPTION_S}
            self.embodiment = load_contract(self.node, self._process, values)
            kinematics = Kinematics(self.embodiment)
        except (EmbodimentError, KinematicsError) as error:
            yield Finding(
                'description', 'failed', str(error), 'correct the contract, or install what it names'
            )
            return
        yield Finding('contract', 'ok', str(self.embodiment.path))
        try:
            self.bridge = Bridge(self.node, self.embodiment, kinematics, history=8)
        except ObservationError as error:
            yield Finding('streams', 'failed', str(error), 'install that package, or change the contract')
            return
        names = JointNames(self.node, self.embodiment)
        healths = self._listened(self.bridge)
        names.close()
        streams_fine = True
        for health in healths:
            finding = self._stream(health)
            streams_fine &= finding.status != 'failed'
            yield finding
        for topic in dict.fromkeys(one.topic for one in self.bridge.subscriptions):
            yield from self._publishers(topic)
        named = names.finding()
        yield named
        try:
            self.streams, observation = self.bridge.wait_for(0, 2.0)
        except (MissingStream, ObservationError) as error:
            yield Finding('observation', 'failed', str(error), 'see the lines above')
            yield from self._commands()
            return
        joints = list(self._joints(self.streams, kinematics))
        yield from joints
        yield from self._pictures(observation)
        yield from self._tool(self.streams, kinematics)
        commands = list(self._commands())
        yield from commands
        yield self._stop()
        self.ready = streams_fine and all(one.status != 'failed' for one in [named, *joints, *commands])

    def _listened(self, bridge: Bridge) -> list[StreamHealth]:
        deadline = time.monotonic() + DISCOVERY_S
        while time.monotonic() < deadline and not all(one.messages for one in bridge.health()[0]):
            time.sleep(0.05)
        time.sleep(self._seconds)
        return bridge.health()[0]

    def _stream(self, health: StreamHealth) -> Finding:
        assert self.bridge is not None and self.embodiment is not None
        if not health.messages:
            why = self.bridge.trouble(health.stream) or 'it is published, but nothing came'
            return Finding(
                health.stream, 'failed', why, 'start its driver, or correct the topic in the contract'
            )
        rate = health.rate_hz or 0.0
        told = f'{rate:.1f} Hz'
        if health.jitter_ms is not None:
            told += f', jitter {health.jitter_ms:.1f} ms'
        if health.offset_s is not None:
            told += f', stamps {1e3 * health.offset_s:+.0f} ms from this clock'
        wrong = [
            one for one in self.bridge.health()[1] if one.stream == health.stream and one.until_ns is None
        ]
        if health.rejected:
            reasons = ', '.join(f'{count} x {reason}' for reason, count in health.rejected.items())
            return Finding(
                health.stream, 'failed', f'{told}; not usable: {reasons}', 'see docs/reference/observation.md'
            )
        if wrong:
            return Finding(
                health.stream, 'failed', f'{told}; {wrong[0].text}', 'synchronise clocks (chrony, PTP)'
            )
        ages = {state.topic: state.max_age_s for state in self.embodiment.state}
        longest = next((age for topic, age in ages.items() if f'(topic {topic}' in health.stream), None)
        if longest is not None and rate * longest < 1:
            remedy = f'have it published at more than {1 / longest:g} Hz, or raise max_age_s'
            return Finding(
                health.stream, 'failed', f'{told}: older than max_age_s {longest:g} s at times', remedy
            )
        if longest is None and 'camera' in health.stream and rate < SLOWEST_CAMERA * self.embodiment.rate_hz:
            remedy = (
                f'a policy sees the newest picture; a row is executed every {1 / self.embodiment.rate_hz:g} s'
            )
            return Finding(
                health.stream, 'warning', f'{told}, and rate_hz is {self.embodiment.rate_hz:g}', remedy
            )
        return Finding(health.stream, 'ok', told)

    def _publishers(self, topic: str) -> Iterator[Finding]:
        found = self.node.get_publishers_info_by_topic(topic)
        if not found:
            return
        qualities = sorted(
            {
                f'{info.qos_profile.reliability.name}, {info.qos_profile.durability.name}'.lower()
                for info in found
            }
        )
        told = f'{found[0].topic_type}, {" and ".join(qualities)}'
        if len(found) > 1:
            names = ', '.join(sorted(f'{one.node_namespace.rstrip("/")}/{one.node_name}' for one in found))
            yield Finding(
                f'topic {topic}', 'warning', f'{told}; {len(found)} publishers: {names}', 'keep one of them'
            )
        else:
            yield Finding(f'topic {topic}', 'ok', told)

    def _joints(self, streams: Streams, kinematics: Kinematics) -> Iterator[Finding]:
        assert self.embodiment is not None
        arm_joints = [joint for arm in self.embodiment.arms.values() for joint in arm.joints]
        beyond = [
            f'{joint} is {streams.positions[joint]:.4g}, its limits are {low:.4g} to {high:.4g}'
            for joint, (low, high) in zip(arm_joints, kinematics.position_limits, strict=True)
            if not low <= streams.positions[joint] <= high
        ]
        remedy = 'is the unit right (state.unit, scales)? move it inside by hand, or correct the limits'
        if beyond:
            yield Finding('positions', 'failed', '; '.join(beyond), remedy)
        else:
            yield Finding('positions', 'ok', 'inside the limits')
        for name, arm in self.embodiment.arms.items():
            if arm.gripper is None:
                continue
            value = streams.positions[arm.gripper.joint]
            openness = arm.gripper.to_openness(value)
            told = f'{arm.gripper.joint} is {value:.4g}: {100 * openness:.0f} % open'
            if -OPENNESS_SLACK <= openness <= 1 + OPENNESS_SLACK:
                yield Finding(f'gripper {name}', 'ok', told)
            else:
                yield Finding(f'gripper {name}', 'failed', told, 'correct gripper.open and gripper.closed')

    def _pictures(self, observation: Observation) -> Iterator[Finding]:
        assert self.embodiment is not None
        for name in self.embodiment.cameras:
            picture = observation[f'frames_{name}']
            size = 'x'.join(map(str, picture.shape))
            if np.std(picture) < 1:
                yield Finding(
                    f'picture {name}', 'warning', f'{size}, all of one colour', 'take off the lens cap'
                )
            else:
                yield Finding(f'picture {name}', 'ok', f'{size}, mean {picture.mean():.0f} of 255')

    def _tool(self, streams: Streams, kinematics: Kinematics) -> Iterator[Finding]:
        assert self.embodiment is not None
        for name, arm in self.embodiment.arms.items():
            pose = kinematics.forward(name, [streams.positions[joint] for joint in arm.joints])
            told = (
                f'x {pose[0]:.3f}, y {pose[1]:.3f}, z {pose[2]:.3f} m in {arm.base_frame}: is the tool there?'
            )
            box = self.embodiment.safety.workspace
            away = streams.poses.get(name)
            if away is not None and np.linalg.norm(away[:3] - pose[:3]) > POSES_AGREE_M:
                told += f' Its topic says {np.round(away[:3], 3).tolist()}'
                yield Finding(f'tool {name}', 'failed', told, 'correct tool_frame, tool_offset or base_frame')
            elif box is not None and not all(
                low <= value <= high for low, value, high in zip(box.min, pose, box.max, strict=False)
            ):
                yield Finding(
                    f'tool {name}', 'warning', f'{told} outside safety.workspace', 'move it inside by hand'
                )
            else:
                yield Finding(f'tool {name}', 'ok', told)

    def _commands(self) -> Iterator[Finding]:
        assert self.embodiment is not None
        try:
            found = channels(self.embodiment)
        except EmbodimentError as error:
            yield Finding('commands', 'failed', str(error), 'give the arm a command')
            return
        for channel in found:
            yield self._channel(channel)

    def _channel(self, channel: Channel) -> Finding:
        name = f'command {channel.topic}'
        topic = self.node.resolve_topic_name(channel.topic)
        if channel.interface not in TYPES:
            servers = self.node.count_publishers(f'{topic}/_action/status')
            if servers == 1:
                return Finding(name, 'ok', f'{channel.interface}: its action server is there')
            return Finding(
                name, 'failed', f'{channel.interface}: {servers} action servers', 'start (one) controller'
            )
        others = self.node.get_publishers_info_by_topic(topic)
        if others:
            who = ', '.join(f'{one.node_namespace.rstrip("/")}/{one.node_name}' for one in others)
            return Finding(name, 'failed', f'{who} commands it already', 'end what else commands this arm')
        listeners = self.node.get_subscriptions_info_by_topic(topic)
        wrong = [one.topic_type for one in listeners if one.topic_type != TYPES[channel.interface]]
        if wrong:
            return Finding(
                name,
                'failed',
                f'takes {wrong[0]}, not {TYPES[channel.interface]}',
                'correct command.interface',
            )
        if not listeners:
            return Finding(
                name, 'failed', 'nobody listens', 'load and activate its controller, or correct the topic'
            )
        told = f'{channel.interface} for {", ".join(channel.names)}'
        if len(listeners) > 1:
            who = ', '.join(f'{one.node_namespace.rstrip("/")}/{one.node_name}' for one in listeners)
            return Finding(name, 'warning', f'{told}; {len(listeners)} listen: {who}', 'one of them should')
        return Finding(name, 'ok', told)

    def _stop(self) -> Finding:
        assert self.embodiment is not None
        topic = self.embodiment.safety.stop_topic
        if topic is None:
            return Finding('stop topic', 'warning', 'the contract has none', 'give it safety.stop_topic')
        count = self.node.count_publishers(self.node.resolve_topic_name(topic))
        if not count:
            remedy = 'have a stop button publish it; the emergency stop of the arm itself is what counts'
            return Finding('stop topic', 'warning', f'nobody publishes {topic}', remedy)
        return Finding('stop topic', 'ok', f'{topic}, {count} publishers')


class JointNames:
    """The names in the messages of joint states, with the contract's prefixes."""

    def __init__(self, node: Node, embodiment: Embodiment) -> None:
        self._node, self._embodiment = node, embodiment
        self._decode = message_decoder(names=[JOINT_STATE])
        self._seen: dict[str, set[str]] = {state.topic: set() for state in embodiment.state}
        self._subscriptions = [
            StreamSubscription(
                node,
                state.topic,
                [JOINT_STATE],
                partial(self._take, state),
                reliability='auto',
                wake=lambda: None,
            )
            for state in embodiment.state
        ]
        self._timer = node.create_timer(0.05, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def finding(self) -> Finding:
        """Return what was seen beside what the contract wants."""
        seen = set().union(*self._seen.values())
        missing = [joint for joint in self._embodiment.wire_joints if joint not in seen]
        extra = sorted(seen - set(self._embodiment.wire_joints))
        beside = f'; beside them {", ".join(extra)}' if extra else ''
        if missing:
            told = f'{", ".join(missing)} did not come{beside}'
            return Finding('joint names', 'failed', told, "correct arms.<name>.joints, or the state's prefix")
        return Finding('joint names', 'ok', f'{", ".join(self._embodiment.wire_joints)}{beside}')

    def close(self) -> None:
        """Listen no more."""
        on_executor(self._node, self._close)

    def _close(self) -> None:
        self._node.destroy_timer(self._timer)
        for subscription in self._subscriptions:
            subscription.close()

    def _look(self) -> None:
        for subscription in self._subscriptions:
            subscription.look()

    def _take(self, state: State, name: str, data: bytes) -> None:
        names = self._decode(data, name).name or list(state.joints or ())
        self._seen[state.topic] |= {state.prefix + one for one in names}
