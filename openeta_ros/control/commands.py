# SPDX-License-Identifier: Apache-2.0
"""From a path to what leaves for controllers, as plain data: whoever speaks to them makes messages of it.

Nothing that a controller would misunderstand can be made here: every number is finite, every joint that a
controller expects is there, in its order and under its name, and no mimic, which follows by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from openeta_ros.control.errors import ActionError
from openeta_ros.control.schedule import Points
from openeta_ros.embodiment import Arm, Embodiment, EmbodimentError, Kinematics
from openeta_ros.embodiment.errors import Problem

Array = npt.NDArray[np.float64]

# Interfaces that take a whole path at once; where to be, again and again; and one position at a time.
PATHS = ('joint_trajectory', 'follow_joint_trajectory')
SERVOS = ('forward_position', 'forward_velocity', 'pose')
GOALS = ('gripper_command', 'parallel_gripper_command')

# A velocity controller is told to make up for what the arm is away from its path, at this rate (1/s), with
# at most this share of a joint's largest velocity: velocities alone add up every error for ever.
VELOCITY_GAIN, VELOCITY_SHARE = 1.0, 0.1


@dataclass(frozen=True)
class Channel:
    """One topic or action that commands go to.

    `joints` are the contract's names in the controller's order, `names` what the controller calls them, `arm`
    the (first) arm that it belongs to, `gripper` whether it moves a gripper alone.
    """

    topic: str
    interface: str
    arm: str
    joints: tuple[str, ...]
    names: tuple[str, ...]
    gripper: bool = False
    frame: str = ''
    max_effort: float = 0.0


@dataclass(frozen=True)
class PathCommand:
    """A path for a trajectory controller (stamp 0): `times_s` (K,) from its start on, strictly rising, above
    zero; `positions` and `velocities` (K, J) of its joints, the last velocity zero."""

    channel: Channel
    times_s: Array
    positions: Array
    velocities: Array

    def __post_init__(self) -> None:
        for values in (self.positions, self.velocities):
            _check(self.channel, values, (len(self.times_s), len(self.channel.joints)))
        _check(self.channel, self.times_s, (len(self.times_s),))
        if not len(self.times_s) or self.times_s[0] <= 0 or (np.diff(self.times_s) <= 0).any():
            raise ActionError(
                'time', f'{self.channel.topic}: times {self.times_s} do not rise strictly from above zero'
            )
        if self.velocities[-1].any():
            raise ActionError('time', f'{self.channel.topic}: the path does not end at rest')


@dataclass(frozen=True)
class ValuesCommand:
    """Positions or velocities (J,) for a forward controller."""

    channel: Channel
    values: Array

    def __post_init__(self) -> None:
        _check(self.channel, self.values, (len(self.channel.joints),))


@dataclass(frozen=True)
class PoseCommand:
    """A pose (7,) `x y z qx qy qz qw` of the tool point: scalar last, as in the message."""

    channel: Channel
    values: Array

    def __post_init__(self) -> None:
        _check(self.channel, self.values, (7,))


@dataclass(frozen=True)
class GoalCommand:
    """A goal of a gripper's action: the position (1,) of its joint."""

    channel: Channel
    values: Array

    def __post_init__(self) -> None:
        _check(self.channel, self.values, (1,))


Command = PathCommand | ValuesCommand | PoseCommand | GoalCommand


def describe(command: Command) -> str:
    """Return a command in one line, for people."""
    channel = command.channel
    if isinstance(command, PathCommand):
        first, last = np.round(command.positions[0], 4), np.round(command.positions[-1], 4)
        times = f'{command.times_s[0]:.3f} to {command.times_s[-1]:.3f} s'
        what = f'{len(command.times_s)} points, {times}, from {first} to {last}'
    else:
        what = str(np.round(command.values, 4))
    return f'{channel.topic} ({channel.interface}) {", ".join(channel.names)}: {what}'


def channels(embodiment: Embodiment) -> tuple[Channel, ...]:
    """Return where the commands of a contract go. Arms that share a controller share a channel.

    Raises:
        EmbodimentError: an arm or a gripper cannot be commanded, all of them at once.
    """
    problems: list[Problem] = []
    found: dict[tuple[str, str], Channel] = {}
    for name, arm in embodiment.arms.items():
        for channel in _channels_of(name, arm, problems):
            key = channel.topic, channel.interface
            found[key] = _joined(found[key], channel, problems) if key in found else channel
    if problems:
        raise EmbodimentError(embodiment.path, problems)
    return tuple(found.values())


class Commands:
    """Makes commands for the channels of a contract.

    `servos`: whether arms (not grippers, which may step) are told where to be again and again;
    `stand_untold`: whether they stand still when they are told nothing.

    Args:
        joints: the names of the joints (J,) that paths and positions are of (`ChunkSchedule.joints`).
        kinematics: for poses. Not used by another thread meanwhile.

    Raises:
        EmbodimentError: as `channels`.
        ActionError: kind 'joint': a channel carries a joint that is not among `joints`.
    """

    def __init__(self, embodiment: Embodiment, kinematics: Kinematics, joints: Sequence[str]) -> None:
        self.channels = channels(embodiment)
        self._arms, self._kinematics = embodiment.arms, kinematics
        self._columns = {channel: _columns(channel, joints) for channel in self.channels}
        self._arm_columns = {
            name: np.array([joints.index(joint) for joint in arm.joints])
            for name, arm in embodiment.arms.items()
        }
        velocities = {
            joint: limit
            for arm in embodiment.arms.values()
            for joint, limit in zip(arm.joints, arm.limits.velocity, strict=True)
        }
        self._largest_velocity = np.array([velocities.get(joint, np.inf) for joint in joints])
        self._joints = tuple(joints)
        found = {channel.interface for channel in self.channels if not channel.gripper}
        self.servos = not found.isdisjoint(SERVOS)
        self.stand_untold = 'forward_velocity' not in found

    @staticmethod
    def repeats(command: Command) -> bool:
        """Whether a command is one of many that differ little."""
        return command.channel.interface in SERVOS

    def paths(self, points: Points) -> list[Command]:
        """Return the commands that send a whole path, for the controllers that take one."""
        return [
            PathCommand(channel, points.times_s, points.positions[:, columns], points.velocities[:, columns])
            for channel, columns in self._of(PATHS)
        ]

    def servo(self, positions: Array, velocities: Array, measured: Mapping[str, float]) -> list[Command]:
        """Return the commands of one moment, for the controllers that are told again and again.

        Args:
            positions, velocities: (J,) of the path now.
            measured: positions by joint; used where velocities are commanded.
        """
        commands: list[Command] = []
        for channel, columns in self._of(SERVOS):
            if channel.interface == 'forward_position':
                commands.append(ValuesCommand(channel, positions[columns]))
            elif channel.interface == 'forward_velocity':
                corrected = velocities + self._correction(positions, velocities, measured)
                commands.append(ValuesCommand(channel, corrected[columns]))
            else:
                pose = self._kinematics.forward(channel.arm, positions[self._arm_columns[channel.arm]])
                commands.append(PoseCommand(channel, pose[[0, 1, 2, 4, 5, 6, 3]]))
        return commands

    def standstill(self) -> list[Command]:
        """Return what ends motion that would go on by itself: zeros, for velocity controllers."""
        return [
            ValuesCommand(channel, np.zeros(len(columns)))
            for channel, columns in self._of(('forward_velocity',))
        ]

    def grippers(self, openness: Mapping[str, float]) -> list[Command]:
        """Return the goals that bring grippers with an action of their own to where they should be, by arm:
        0 closed .. 1 open."""
        commands: list[Command] = []
        for channel, _ in self._of(GOALS):
            gripper = self._arms[channel.arm].gripper
            assert gripper is not None  # a channel of its own is a gripper's
            if channel.arm in openness:
                commands.append(GoalCommand(channel, np.array([gripper.to_native(openness[channel.arm])])))
        return commands

    def _of(self, interfaces: Iterable[str]) -> list[tuple[Channel, npt.NDArray[np.intp]]]:
        return [item for item in self._columns.items() if item[0].interface in interfaces]

    def _correction(self, positions: Array, velocities: Array, measured: Mapping[str, float]) -> Array:
        """Return velocities (J,) that bring the arm back to its path; together within the limit."""
        away = np.array(
            [
                positions[index] - measured.get(joint, positions[index])
                for index, joint in enumerate(self._joints)
            ]
        )
        largest = self._largest_velocity
        bounded = np.clip(VELOCITY_GAIN * away, -VELOCITY_SHARE * largest, VELOCITY_SHARE * largest)
        return np.asarray(np.clip(velocities + bounded, -largest, largest) - velocities)


def _channels_of(name: str, arm: Arm, problems: list[Problem]) -> list[Channel]:
    command, gripper = arm.command, arm.gripper
    if command is None:
        text = 'is missing: this arm is for simulators only; say how a real one is commanded'
        problems.append(Problem(None, f'arms.{name}.command {text}'))
        return []
    joints = arm.command_joints
    if command.interface == 'pose':
        joints = arm.joints
        if gripper is not None and gripper.command is None:
            text = 'is missing: poses of its arm cannot carry it'
            problems.append(Problem(None, f'arms.{name}.gripper.command {text}'))
    names = tuple(joint.removeprefix(command.prefix) for joint in joints)
    frame = command.frame or arm.base_frame
    found = [Channel(command.topic, command.interface, name, joints, names, frame=frame)]
    if gripper is not None and gripper.command is not None:
        own = gripper.command.usable()
        if own is None:
            problems.append(
                Problem(
                    None,
                    f'arms.{name}.gripper.command: {gripper.command.interface} is an action of control_msgs, '
                    'which is not installed (apt install ros-$ROS_DISTRO-control-msgs); install it, or give '
                    'another command as otherwise',
                )
            )
            return found
        joint = (gripper.joint,)
        label = (gripper.joint.removeprefix(command.prefix),)
        found.append(
            Channel(own.topic, own.interface, name, joint, label, gripper=True, max_effort=own.max_effort)
        )
    return found


def _joined(one: Channel, other: Channel, problems: list[Problem]) -> Channel:
    """Return the channel of two arms that one controller moves."""
    if one.interface not in ('joint_trajectory', 'forward_position', 'forward_velocity'):
        problems.append(
            Problem(
                None,
                f"arms.{other.arm}: {other.topic} is {one.arm}'s too, and {one.interface} is for one alone",
            )
        )
        return one
    joints, names = one.joints + other.joints, one.names + other.names
    return Channel(one.topic, one.interface, one.arm, joints, names, one.gripper and other.gripper)


def _columns(channel: Channel, joints: Sequence[str]) -> npt.NDArray[np.intp]:
    for joint in channel.joints:
        if joint not in joints:
            raise ActionError(
                'joint',
                f'{channel.topic} carries {joint}, and there is no value for it: only {", ".join(joints)}',
                joint=joint,
            )
    return np.array([joints.index(joint) for joint in channel.joints], dtype=np.intp)


def _check(channel: Channel, values: Array, shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise ActionError(
            'shape', f'{channel.topic} takes numbers of shape {shape}; these have {values.shape}'
        )
    if not np.isfinite(values).all():
        column = int(np.argwhere(~np.isfinite(values))[0][-1])
        joint = channel.joints[column] if shape[-1] == len(channel.joints) else ''
        raise ActionError(
            'not_finite',
            f'{channel.topic}: {joint or "a number"} is not finite; nothing is sent',
            joint=joint or None,
        )
