# SPDX-License-Identifier: Apache-2.0
"""Recorded commands to the targets that were in force at a moment.

A controller holds its last target, so a command counts until the next one, however old it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from openeta_ros.observation.messages import NS_PER_S
from openeta_ros.observation.stream import Array, Rule, Stream

if TYPE_CHECKING:
    from openeta_ros.embodiment import Embodiment

COMMAND_TYPES = (
    'trajectory_msgs/msg/JointTrajectory',
    'std_msgs/msg/Float64MultiArray',
    'sensor_msgs/msg/JointState',
    'openeta_msgs/msg/ActionChunk',
)
# Where our own recordings have what the policy answered.
CHUNK_TOPIC = '/policy/action_chunk'
FOREVER = Rule('hold', 2**63 - 1)
# Commands kept for each joint: more than come between two rows, and while rows wait for their streams.
KEPT = 20_000


class _Command(NamedTuple):
    """A target of a joint, or points (ns after its stamp) on the way to it."""

    times: Array
    positions: Array

    def at(self, since_ns: int) -> float:
        return float(np.interp(since_ns, self.times, self.positions))


class Commands:
    """The commands of the contract's `action.source` topics, and of our own recordings.

    Attributes:
        rejected: how many messages could not be used, by topic and reason.
        counts: how many could be, by topic.
    """

    def __init__(self, embodiment: Embodiment) -> None:
        self.rejected: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._embodiment = embodiment
        self._joints = {topic.topic: topic.joints for topic in embodiment.action.topics}
        self._streams: dict[str, Stream[_Command]] = {}

    def add(self, topic: str, message: Any, stamp: int) -> None:
        """Take a message of any of `COMMAND_TYPES`, given at a stamp."""
        try:
            commands = self._read(topic, message)
        except _NotUsable as error:
            self.rejected[f'{topic}: {error}'] += 1
            return
        self.counts[topic] += 1
        for joint, command in commands.items():
            stream = self._streams.setdefault(joint, Stream())
            stream.add(stamp, command)
            stream.keep(KEPT)

    def before(self, moment: int) -> dict[str, float]:
        """Return the targets in force just before a moment, by joint name, in the joint's own unit (rad, m).

        What is given at the moment itself answers to what is seen then, and comes after it.
        """
        targets = {}
        for joint, stream in self._streams.items():
            found = stream.at(moment - 1, FOREVER)
            if found is not None:
                targets[joint] = found.sample.at(found.age_ns)
        return targets

    @property
    def joints(self) -> list[str]:
        """The joints that were commanded."""
        return list(self._streams)

    def clear(self) -> None:
        """Forget everything."""
        for stream in self._streams.values():
            stream.clear()

    def _read(self, topic: str, message: Any) -> dict[str, _Command]:
        if hasattr(message, 'points'):
            return self._of_trajectory(message)
        if hasattr(message, 'actions'):
            return self._of_chunk(message)
        if hasattr(message, 'position'):
            return _single(list(message.name), np.asarray(message.position, dtype=np.float64))
        numbers = np.asarray(message.data, dtype=np.float64)
        return _single(self._named(topic, len(numbers)), numbers)

    def _named(self, topic: str, count: int) -> Sequence[str]:
        """Return the joints of bare numbers: the contract's, all of the wire, or those of the arms."""
        arms = self._embodiment.arms.values()
        joints = self._joints.get(topic)
        choices = (
            [list(joints)]
            if joints is not None
            else [self._embodiment.wire_joints, [joint for arm in arms for joint in arm.joints]]
        )
        for choice in choices:
            if len(choice) == count:
                return choice
        raise _NotUsable(f'{count} numbers for {" or ".join(str(len(choice)) for choice in choices)} joints')

    def _of_trajectory(self, message: Any) -> dict[str, _Command]:
        names, points = list(message.joint_names), list(message.points)
        if not points or any(len(point.positions) != len(names) for point in points):
            raise _NotUsable('no points' if not points else 'not one position for each joint')
        times = np.array([_duration_ns(point.time_from_start) for point in points], dtype=np.float64)
        positions = np.array([point.positions for point in points], dtype=np.float64)
        if not np.isfinite(positions).all() or (np.diff(times) < 0).any():
            raise _NotUsable('a position that is not finite, or times that do not rise')
        return {name: _Command(times, positions[:, index]) for index, name in enumerate(names)}

    def _of_chunk(self, message: Any) -> dict[str, _Command]:
        """Rows of qpos, each in force for one period from the stamp of the observation that they answer."""
        try:
            rows = chunk_rows(message)
        except ValueError as error:
            raise _NotUsable(str(error)) from None
        if message.action_type != 'qpos' or rows.shape[1:] != (self._embodiment.qpos_size,):
            raise _NotUsable(f'{message.action_type} rows of {rows.shape[-1]} numbers')
        # A step function that is asked at the end of rows, so its steps are in their middles.
        period = NS_PER_S / (message.rate_hz or self._embodiment.rate_hz)  # 0: as the contract says
        begins = (np.arange(len(rows)) + 0.5) * period
        times = np.stack([begins, begins + period - 1], axis=1).reshape(-1)
        grippers = {arm.gripper.joint: arm.gripper for arm in self._embodiment.arms.values() if arm.gripper}
        commands = {}
        for index, joint in enumerate(self._embodiment.wire_joints):
            column = rows[:, index]
            if joint in grippers:
                column = np.array([grippers[joint].to_native(float(value)) for value in column])
            commands[joint] = _Command(times, column.repeat(2))
        return commands


class _NotUsable(ValueError):
    pass


def chunk_rows(message: Any) -> Array:
    """Return the rows (H, A) of an openeta_msgs/ActionChunk as float64.

    Raises:
        ValueError: they are no such array, or none.
    """
    array = message.actions
    try:
        rows = np.frombuffer(array.data.tobytes(), array.dtype).reshape(tuple(map(int, array.shape)))
        rows = np.atleast_2d(rows).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f'a chunk that is no array: {error}') from None
    if rows.ndim != 2 or rows.size == 0:
        raise ValueError(f'a chunk of shape {rows.shape}')
    return rows


def _single(names: Sequence[str], positions: Array) -> dict[str, _Command]:
    if len(names) != len(positions):
        raise _NotUsable(f'{len(positions)} positions for {len(names)} names')
    if not all(math.isfinite(position) for position in positions):
        raise _NotUsable('a position that is not finite')
    start = np.zeros(1)
    return {name: _Command(start, positions[index : index + 1]) for index, name in enumerate(names)}


def _duration_ns(duration: Any) -> int:
    return int(duration.sec) * NS_PER_S + int(duration.nanosec)
