# SPDX-License-Identifier: Apache-2.0
"""The shape of a contract: what one robot's streams and actions mean.

What concerns one value is said here, by types; what concerns several together is in `checks`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Discriminator, Field, PrivateAttr, Tag

from openeta_ros.embodiment.arm import Arm
from openeta_ros.embodiment.errors import EmbodimentError, Problem
from openeta_ros.embodiment.resources import resolve_uri
from openeta_ros.embodiment.section import (
    Name,
    Number,
    Offset,
    Pixels,
    Positive,
    Section,
    Text,
    TextOrValues,
    Topic,
    Vector,
    branch_or_list,
)

ActionType = Literal['qpos', 'ee']


class Description(Section):
    """Where the robot description comes from: exactly one of file, topic and parameter.

    A file is URDF, MJCF, or xacro with its `arguments`. `prefix` stands before every name of joint and frame
    in the contract but not in the description. `install` is the command that installs the file's package,
    for the message when it is missing. `otherwise` is used when the file is not there.
    """

    file: Text | None = None
    topic: Topic | None = None
    parameter: Text | None = None
    arguments: dict[Text, Text] = {}
    prefix: str = ''
    install: Text | None = None
    otherwise: Description | None = None


class Depth(Section):
    """The topic of a camera's depth, pixel for pixel that of its colour; `compressed` is compressedDepth."""

    topic: Topic
    transport: Literal['raw', 'compressed'] = 'raw'


class Mount(Section):
    """Where a camera stands in the base frame of the arm: a point that it looks at, what is up in its
    picture, and its opening angle along the height of the upright picture before any crop."""

    position_m: Vector
    look_at_m: Vector
    up: Vector = (0.0, 0.0, 1.0)
    fovy_deg: Annotated[float, Field(strict=True, gt=0, lt=180)]


class Camera(Section):
    """One camera. The picture is turned, then cropped, then resized to `size`; its depth with it.

    `rotate` is in degrees, counter-clockwise. `crop` is (top, left, height, width) in pixels of the turned
    picture. `size` is (height, width) as delivered; None delivers the picture as it comes. `resize` says what
    becomes of other proportions: stretched, or kept and padded around the middle. `mount` None: nobody knows
    where it stands.
    """

    topic: Topic
    transport: Literal['raw', 'compressed'] = 'raw'
    size: tuple[Pixels, Pixels] | None = None
    rotate: Literal[0, 90, 180, 270] = 0
    crop: tuple[Offset, Offset, Pixels, Pixels] | None = None
    resize: Literal['stretch', 'pad'] = 'stretch'
    depth: Depth | None = None
    mount: Mount | None = None


class Scale(Section):
    """How a driver's numbers become rad or m: scale * number + offset. For encoder counts and the like."""

    scale: Number
    offset: Number = 0.0


class State(Section):
    """One topic of joint states.

    `prefix` is put before every name of a message (two arms whose drivers name their joints alike). `joints`
    are the names where a driver sends none. `unit` deg: numbers are degrees, but for the joints (after the
    prefix) that `scales` has.
    """

    topic: Topic
    max_age_s: Positive = 0.1
    prefix: str = ''
    joints: tuple[Text, ...] | None = None
    unit: Literal['si', 'deg'] = 'si'
    scales: dict[Text, Scale] = {}


class PoseTopic(Section):
    """Topics of tool poses: one, or one for each arm by its name.

    `frame` is the frame that the poses are in, when it is not the arm's base frame. `quaternion` is the order
    of poses that come as seven bare numbers; where the four have names, the names count.
    """

    topic: Annotated[
        Annotated[Topic, Tag('<text>')] | Annotated[dict[Name, Topic], Tag('<values>')], TextOrValues
    ]
    quaternion: Literal['xyzw', 'wxyz'] = 'xyzw'
    frame: Text | None = None


class Endpose(Section):
    """Where tool poses come from: forward kinematics, tf, nowhere, or a topic."""

    source: Annotated[
        Annotated[Literal['fk', 'tf', 'none'], Tag('<text>')] | Annotated[PoseTopic, Tag('<values>')],
        TextOrValues,
    ] = 'fk'


class Align(Section):
    """How streams are paired: the clock is a camera, whose stamp is the observation's.

    `rule`: hold takes the newest sample at or before the stamp and not older than `max_age_s`; nearest the
    nearest within `tolerance_s`; interpolate is hold for pictures, and for joints and poses the value
    between the samples around the stamp, both within their largest age. `timeline`: stamps of the messages'
    headers, or the time of reception (in a bag, of recording; `log` is the same). Streams whose headers are
    further than `max_offset_s` from the clock's, both measured against the time of reception, are from a
    machine with another time, and are not paired.
    """

    clock: Name
    rule: Literal['hold', 'nearest', 'interpolate'] = 'hold'
    max_age_s: Positive = 0.1
    tolerance_s: Positive | None = None
    timeline: Literal['header', 'receive', 'log'] = 'header'
    max_offset_s: Positive = 1.0


class ActionTopic(Section):
    """A topic that recorded actions are on; `joints` are those of its numbers where the message has no names,
    all of the arms' in wire order by default."""

    topic: Topic
    joints: tuple[Text, ...] | None = None


class Action(Section):
    """What actions are, and where a bag's actions come from.

    `mode`: absolute targets, or offsets from the observation that the policy saw.
    """

    type: ActionType = 'qpos'
    mode: Literal['absolute', 'relative'] = 'absolute'
    source: Annotated[
        Annotated[Literal['next_state'], Tag('<text>')]
        | Annotated[ActionTopic, Tag('<values>')]
        | Annotated[tuple[ActionTopic, ...], Tag('<list>')],
        Discriminator(branch_or_list),
    ] = 'next_state'

    @property
    def topics(self) -> tuple[ActionTopic, ...]:
        """The topics that recorded actions are on; none when they are taken from the next state."""
        if isinstance(self.source, ActionTopic):
            return (self.source,)
        return () if isinstance(self.source, str) else self.source


class Workspace(Section):
    """The box that tool points stay in, in each arm's base frame, in metres."""

    min: Vector
    max: Vector


class Safety(Section):
    """What an action may do, and when motion stops.

    `workspace` is where tool points stay; `table_z_m` the height, in each arm's base frame, that neither the
    tool point nor a joint goes below. `max_step_rad` is the largest step of a joint from row to row,
    `first_row_rad` how far the first row of a chunk may lie from where the arm is (None: a step).
    `max_tracking_error_rad` is how far a joint may stay behind its command before motion stops (None: not
    watched). `watchdog_s` is how long anything may be silent, `camera_watchdog_s` how long cameras may (None:
    as all else).
    """

    on_limit: Literal['refuse', 'clamp'] = 'refuse'
    workspace: Workspace | None = None
    table_z_m: Number | None = None
    max_step_rad: Positive | None = None
    first_row_rad: Positive | None = None
    max_tracking_error_rad: Positive | None = None
    watchdog_s: Positive = 0.2
    camera_watchdog_s: Positive | None = None
    stop_topic: Topic | None = None


class Gain(Section):
    """The position controller of one simulated joint: stiffness, damping, and largest force (N or N m)."""

    kp: Positive
    kv: Positive
    force: Positive


class Simulation(Section):
    """What simulators load and how they drive it; `model` defaults to the description's file.

    `prefix` stands before the names of joints in the contract but not in the model.
    """

    model: Text | None = None
    prefix: str = ''
    gains: dict[Text, Gain] = {}


class Embodiment(Section):
    """One robot. Made by `load`, which reports everything wrong with a file at once."""

    name: Name = Field(alias='embodiment')
    rate_hz: Positive
    description: Description
    arms: dict[Name, Arm] = Field(min_length=1)
    cameras: dict[Name, Camera] = Field(min_length=1)
    state: tuple[State, ...] = Field(min_length=1)
    endpose: Endpose = Endpose()
    align: Align
    action: Action = Action()
    safety: Safety = Safety()
    simulation: Simulation = Simulation()
    _path: Path = PrivateAttr(default=Path())
    _described: tuple[str, str] | None = PrivateAttr(default=None)  # URDF, and where it is from

    @property
    def path(self) -> Path:
        """The contract's file."""
        return self._path

    @property
    def live_description(self) -> Description | None:
        """The description that comes over the graph, from a topic or a parameter; None where it is a file."""
        source: Description | None = self.description
        while source is not None and source.file is not None:
            try:
                resolve_uri(source.file, self.path.parent)
                return None
            except EmbodimentError:
                source = source.otherwise
        return source

    @property
    def described_text(self) -> tuple[str, str] | None:
        """The URDF that came over the graph, and where it is from; see `described`."""
        return self._described

    def described(self, urdf: str, origin: str) -> Embodiment:
        """Return this contract with the robot description that came for it: `origin` says where from."""
        copy = self.model_copy()
        copy._described = urdf, origin
        return copy

    @property
    def qpos_size(self) -> int:
        """D: the length of `qpos`, and of a `qpos` action."""
        return sum(arm.qpos_size for arm in self.arms.values())

    @property
    def ee_size(self) -> int:
        """E: the length of `endpose`, and of an `ee` action."""
        return sum(arm.ee_size for arm in self.arms.values())

    @property
    def wire_joints(self) -> list[str]:
        """Joint names in the order of `qpos`, each gripper's joint at its place."""
        joints: list[str] = []
        for arm in self.arms.values():
            joints += [*arm.joints, *([arm.gripper.joint] if arm.gripper else [])]
        return joints

    @property
    def home_qpos(self) -> npt.NDArray[np.float64]:
        """(D,) float64: where every episode starts; grippers as openness."""
        return np.concatenate([np.array(arm.home, dtype=np.float64) for arm in self.arms.values()])

    def action_size(self, action_type: str) -> int:
        """Return A, the length of one action of a type."""
        sizes = {'qpos': self.qpos_size, 'ee': self.ee_size}
        if action_type not in sizes:
            raise ValueError(f'action type {action_type!r} is unknown; it is one of {", ".join(sizes)}')
        return sizes[action_type]

    def slices(self, action_type: ActionType) -> dict[str, slice]:
        """Return each arm's place in `qpos`, or in `ee` and `endpose`; its gripper is the last of it."""
        places, start = {}, 0
        for name, arm in self.arms.items():
            size = arm.qpos_size if action_type == 'qpos' else arm.ee_size
            places[name] = slice(start, start + size)
            start += size
        return places

    def description_source(self) -> tuple[Description, Path]:
        """Return the first description whose file is there, and that file.

        Raises:
            EmbodimentError: the contract names no file, or none of those it names is installed.
        """
        source: Description | None = self.description
        missing: list[str] = []
        while source is not None and source.file is not None:
            try:
                return source, resolve_uri(source.file, self.path.parent)
            except EmbodimentError as error:
                missing.append(f'{source.install} (for {source.file})' if source.install else f'{error}')
            source = source.otherwise
        if missing:
            sentence = f'is not installed: {", or ".join(missing)}'
        else:
            live = self.description
            place = f'topic {live.topic}' if live.topic is not None else f'parameter {live.parameter}'
            sentence = (
                f'comes over the graph ({place}), and here a file is needed: name one as description.file'
            )
        raise EmbodimentError(self.path, [Problem(None, f'description: {sentence}')])

    def description_file(self) -> Path:
        """Return the URDF, xacro or MJCF file of the robot; raises EmbodimentError when there is none."""
        return self.description_source()[1]

    def model_file(self) -> Path:
        """Return the file that simulators load (MJCF or URDF)."""
        if self.simulation.model is None:
            return self.description_file()
        return resolve_uri(self.simulation.model, self.path.parent)

    def model_name(self, joint: str) -> str:
        """Return what the file that simulators load calls a joint of the contract."""
        own = self.simulation.model is not None
        return joint.removeprefix(self.simulation.prefix if own else self.description_source()[0].prefix)
