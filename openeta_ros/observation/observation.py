# SPDX-License-Identifier: Apache-2.0
"""The observation, and the one function that makes it: simulators, live topics and bags all end here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from openeta_ros.observation.errors import ImageError, ObservationError
from openeta_ros.observation.image import fit_depth, fit_picture
from openeta_ros.observation.stream import Array

if TYPE_CHECKING:
    from openeta_ros.embodiment import Arm, Camera, Embodiment, Kinematics
    from openeta_ros.observation.continuity import Continuity

NOTHING: Mapping[str, Array] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Observation(Mapping[str, Array]):
    """What a policy sees at one moment: a mapping of names to read-only arrays.

    Keys: `frames_<camera>` (H, W, 3) uint8 RGB for every camera of the contract; `qpos` (D,) float64, per arm
    its joints in wire order (rad or m) and then its gripper, 0 closed .. 1 open; `endpose` (E,) float64, per
    arm `x y z qw qx qy qz` of the tool point in the base frame (metres) and then its gripper, unless the
    contract says none; `depth_<camera>` (H, W) float32 metres for every camera whose depth it names.

    Attributes:
        arrays: the arrays by name.
        stamp_ns: ROS time of the clock stream.
    """

    arrays: Mapping[str, Array]
    stamp_ns: int

    def __post_init__(self) -> None:
        arrays = {name: _read_only(array) for name, array in self.arrays.items()}
        object.__setattr__(self, 'arrays', MappingProxyType(arrays))

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


def assemble(
    embodiment: Embodiment,
    kinematics: Kinematics | None,
    pictures: Mapping[str, Array],
    positions: Mapping[str, float],
    stamp_ns: int,
    *,
    depths: Mapping[str, Array] = NOTHING,
    poses: Mapping[str, Array] = NOTHING,
    continuity: Continuity | None = None,
) -> Observation:
    """Return the observation of one moment.

    Args:
        embodiment: the contract.
        kinematics: of the same contract; gives the endpose where the contract says fk.
        pictures: (H, W, 3) uint8 RGB by camera name, as the camera delivers them; others than the contract's
            are ignored.
        positions: measured joint positions by joint name, in the joint's own unit (rad or m); others than the
            contract's are ignored.
        stamp_ns: ROS time of the clock stream.
        depths: (H, W) float32 metres by camera name, for the cameras whose depth the contract names.
        poses: (7,) `x y z qw qx qy qz` of the tool point by arm, where the contract does not say fk.
        continuity: makes it continue the observation before.

    Raises:
        ObservationError: a camera, joint or pose of the contract is missing, or a position is not finite.
    """
    arrays: dict[str, Array] = {}
    for name, camera in embodiment.cameras.items():
        place = f'camera {name} (topic {camera.topic})'
        arrays[f'frames_{name}'] = fitted(camera, _of(pictures, name, f'{place} has no picture'), place)
        if camera.depth is not None:
            place = f'depth of camera {name} (topic {camera.depth.topic})'
            arrays[f'depth_{name}'] = fitted(camera, _of(depths, name, f'{place} has no picture'), place)
    return observed(embodiment, kinematics, arrays, positions, stamp_ns, poses=poses, continuity=continuity)


def fitted(camera: Camera, picture: Array, place: str) -> Array:
    """Return a picture (H, W, 3), or a depth (H, W), as the contract delivers it.

    Raises:
        ImageError: it cannot be; the text begins with `place`.
    """
    try:
        return fit_picture(picture, camera) if picture.ndim == 3 else fit_depth(picture, camera)
    except ImageError as error:
        raise type(error)(f'{place}: {error.reason}', error.stamp_ns) from None


def observed(
    embodiment: Embodiment,
    kinematics: Kinematics | None,
    frames: Mapping[str, Array],
    positions: Mapping[str, float],
    stamp_ns: int,
    *,
    poses: Mapping[str, Array] = NOTHING,
    continuity: Continuity | None = None,
) -> Observation:
    """Return the observation of one moment whose arrays `frames_<camera>` and `depth_<camera>` are made.

    The other arguments, and what it raises, are those of `assemble`.
    """
    source = embodiment.endpose.source
    qpos: list[float] = []
    numbers: list[float] = []
    for name, arm in embodiment.arms.items():
        joints = [_position(positions, joint) for joint in arm.joints]
        gripper = _openness(arm, positions)
        qpos += [*joints, *gripper]
        if source == 'fk':
            if kinematics is None:
                raise ObservationError(f'{embodiment.name}: endpose by fk needs a robot description')
            numbers += [*kinematics.forward(name, np.array(joints)), *gripper]
        elif source != 'none':
            numbers += [*_of(poses, name, f'arm {name} has no pose'), *gripper]
    row, endpose = np.array(qpos, dtype=np.float64), np.array(numbers, dtype=np.float64) if numbers else None
    if continuity is not None:
        row, endpose = continuity.continued(row, endpose)
    arrays = {**frames, 'qpos': row}
    if endpose is not None:
        arrays['endpose'] = endpose
    return Observation(arrays, stamp_ns)


def _of(arrays: Mapping[str, Array], name: str, lacking: str) -> Array:
    if name not in arrays:
        raise ObservationError(f'{lacking}; there are {sorted(arrays)}')
    return arrays[name]


def _position(positions: Mapping[str, float], joint: str) -> float:
    if joint not in positions:
        raise ObservationError(f'joint {joint} has no position; there are {sorted(positions)}')
    value = float(positions[joint])
    if not math.isfinite(value):
        raise ObservationError(f'the position of joint {joint} is {value}, not a finite number')
    return value


def _openness(arm: Arm, positions: Mapping[str, float]) -> list[float]:
    if arm.gripper is None:
        return []
    return [float(arm.gripper.to_openness(_position(positions, arm.gripper.joint)))]


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
