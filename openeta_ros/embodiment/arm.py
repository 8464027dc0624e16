# SPDX-License-Identifier: Apache-2.0
"""The arms of a contract: joints, grippers, limits, and how commands reach them."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Literal

from pydantic import Field, Tag

from openeta_ros.embodiment.section import (
    Number,
    Positive,
    Quaternion,
    Section,
    Text,
    TextOrValues,
    Topic,
    Vector,
)

POSE_SIZE = 7  # x y z qw qx qy qz
ROTATION_TOLERANCE_RAD = 1e-3


class GripperCommand(Section):
    """How commands reach a gripper that does not take them with its arm's joints.

    `topic` is the name of an action where the interface is one. `max_effort` (N or N m) is sent with the
    actions that have it; 0 lets the driver choose. `otherwise` is used in the place of an action where
    control_msgs is not installed, which PyPI does not have.
    """

    interface: Literal[
        'joint_trajectory',
        'forward_position',
        'gripper_command',
        'parallel_gripper_command',
        'follow_joint_trajectory',
    ]
    topic: Topic
    max_effort: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)] = 0.0
    otherwise: GripperCommand | None = None

    @property
    def is_action(self) -> bool:
        """Whether the interface is an action of control_msgs."""
        return self.interface in ('gripper_command', 'parallel_gripper_command', 'follow_joint_trajectory')

    def usable(self) -> GripperCommand | None:
        """Return the first that can be used here: this one, what stands for it, or None."""
        if not self.is_action or importlib.util.find_spec('control_msgs') is not None:
            return self
        return self.otherwise.usable() if self.otherwise else None


class Gripper(Section):
    """One gripper: 1 is open and 0 is closed on the wire, whatever the joint's own values are.

    `mimics` are the joints that follow, each with its ratio. `command` None: the joint is commanded together
    with its arm's, as the last of them.
    """

    joint: Text
    open: Number
    closed: Number
    unit: Literal['m', 'rad'] | None = None
    mimics: dict[Text, Number] = {}
    command: GripperCommand | None = None

    def to_native(self, openness: float) -> float:
        """Return the joint's value for an openness (1 = open). Not clipped."""
        return self.closed + openness * (self.open - self.closed)

    def to_openness(self, value: float) -> float:
        """Return the openness (1 = open) of a joint value. Not clipped: a finger may be pushed too far."""
        return (value - self.closed) / (self.open - self.closed)


class Limits(Section):
    """Per arm joint: position (low, high), velocity, acceleration, jerk; in rad (m), per s, per s^2, per s^3.

    None means that it is not checked. A limit of jerk needs one of acceleration.
    """

    position: Annotated[
        Annotated[Literal['from_description'], Tag('<text>')]
        | Annotated[tuple[tuple[Number, Number], ...], Tag('<values>')],
        TextOrValues,
    ] = 'from_description'
    velocity: tuple[Positive, ...]
    acceleration: tuple[Positive, ...] | None = None
    jerk: tuple[Positive, ...] | None = None


class ToolOffset(Section):
    """The tool point in the tool frame: metres, and a quaternion with its scalar first."""

    xyz: Vector = (0.0, 0.0, 0.0)
    wxyz: Quaternion = (1.0, 0.0, 0.0, 0.0)


class InverseKinematics(Section):
    """How near a solution must come, and what a row of tool poses asks of an arm.

    An arm of fewer than six joints reaches hardly any pose exactly: with a `rotation_tolerance_rad` above the
    default it brings the tool point where it should be, and turns the tool as far as it can.
    """

    position_tolerance_m: Positive = 1e-4
    rotation_tolerance_rad: Positive = ROTATION_TOLERANCE_RAD


class Command(Section):
    """How commands reach a real arm.

    `topic` belongs to a controller: trajectory_msgs/JointTrajectory, std_msgs/Float64MultiArray of positions
    or velocities, or geometry_msgs/PoseStamped in `frame` (default: the arm's base frame). `joints` is the
    controller's own order where messages carry no names (default: the arm's, then its gripper's when that
    has no command of its own). `prefix` is taken off joint names before they are sent.
    """

    interface: Literal['joint_trajectory', 'forward_position', 'forward_velocity', 'pose']
    topic: Topic
    joints: tuple[Text, ...] | None = None
    prefix: str = ''
    frame: Text | None = None


class Arm(Section):
    """One arm: joints in wire order, then its gripper."""

    joints: tuple[Text, ...] = Field(min_length=1)
    gripper: Gripper | None = None
    base_frame: Text
    tool_frame: Text
    tool_offset: ToolOffset = ToolOffset()
    home: tuple[Number, ...]
    limits: Limits
    ik: InverseKinematics = InverseKinematics()
    command: Command | None = None

    @property
    def command_joints(self) -> tuple[str, ...]:
        """The joints that the arm's command carries, in its controller's order."""
        own = self.gripper is not None and self.gripper.command is None
        default = (*self.joints, *([self.gripper.joint] if self.gripper and own else []))
        return self.command.joints if self.command and self.command.joints else default

    @property
    def qpos_size(self) -> int:
        """How many numbers of `qpos` are this arm's."""
        return len(self.joints) + (self.gripper is not None)

    @property
    def ee_size(self) -> int:
        """How many numbers of `ee` and `endpose` are this arm's."""
        return POSE_SIZE + (self.gripper is not None)
