# SPDX-License-Identifier: Apache-2.0
"""Tool poses from pose messages and from tf: (7,) float64 `x y z qw qx qy qz`, metres, unit quaternion."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from openeta_ros.observation.stream import Array, Between, Found, Rule, Stream

if TYPE_CHECKING:
    from openeta_ros.embodiment import Arm
    from openeta_ros.embodiment.schema import PoseTopic

IDENTITY = np.array([0.0, 0, 0, 1, 0, 0, 0])
POSE_TYPES = (
    'geometry_msgs/msg/PoseStamped',
    'geometry_msgs/msg/TransformStamped',
    'geometry_msgs/msg/Pose',
    'std_msgs/msg/Float64MultiArray',
)


class PoseError(ValueError):
    """A message holds no pose that can be used; the text says why, without stamp, to count by."""


def read_pose(message: Any, source: PoseTopic, base_frame: str) -> Array:
    """Return the pose of a PoseStamped, TransformStamped, Pose, or of seven numbers.

    Raises:
        PoseError: it is in another frame than the contract says, not finite, or has no orientation.
    """
    frame = getattr(getattr(message, 'header', None), 'frame_id', '')
    wanted = source.frame or base_frame
    if frame.lstrip('/') not in ('', wanted.lstrip('/')):
        raise PoseError(
            f'in frame {frame!r}, not {wanted!r} (endpose.source.frame names the frame of the poses)'
        )
    if hasattr(message, 'transform'):
        return _pose(message.transform.translation, message.transform.rotation)
    if hasattr(message, 'data'):
        return _of_numbers(np.asarray(message.data, dtype=np.float64), source.quaternion)
    pose = getattr(message, 'pose', message)
    return _pose(pose.position, pose.orientation)


def between(first: Array, second: Array, share: float) -> Array:
    """Return the pose between two: the position on the line, the orientation on the shortest arc."""
    start, end = first[3:], second[3:]
    cosine = float(start @ end)
    end, cosine = (-end, -cosine) if cosine < 0 else (end, cosine)
    if cosine > 0.9995:  # so near that the arc is a line, and its sine divides badly
        mixed = start + share * (end - start)
    else:
        angle = np.arccos(cosine)
        mixed = (np.sin((1 - share) * angle) * start + np.sin(share * angle) * end) / np.sin(angle)
    return np.concatenate([first[:3] + share * (second[:3] - first[:3]), mixed / np.linalg.norm(mixed)])


class TransformTree:
    """The transforms of /tf and /tf_static."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self._moving: dict[str, Stream[Array]] = {}
        self._static: dict[str, Array] = {}

    def add(self, transform: Any, stamp: int | None) -> None:
        """Take one TransformStamped; without stamp it is static.

        Raises:
            PoseError: it is not finite, or has no orientation.
        """
        parent, child = transform.header.frame_id.lstrip('/'), transform.child_frame_id.lstrip('/')
        pose = _pose(transform.transform.translation, transform.transform.rotation)
        self._parents[child] = parent
        if stamp is None:
            self._static[child] = pose
        else:
            self._moving.setdefault(child, Stream()).add(stamp, pose)

    def moving(self) -> Iterator[Stream[Array]]:
        """Yield the stream of every transform that is not static."""
        yield from self._moving.values()

    def reached(self, arm: Arm, stamp: int) -> bool:
        """Whether everything that moves between base and tool has come as far as a stamp."""
        path = self._path(arm)
        return path is not None and all(
            self._moving[frame].reached(stamp) for half in path for frame in half if frame not in self._static
        )

    def at(self, arm: Arm, stamp: int, rule: Rule) -> Found[Array] | None:
        """Return the tool point of an arm in its base frame, or None when there is nothing for the stamp."""
        path = self._path(arm)
        if path is None:
            return None
        halves, age = [], 0
        for half in path:
            pose = IDENTITY
            for frame in half:
                found = (
                    Found(self._static[frame], 0)
                    if frame in self._static
                    else self._moving[frame].at(stamp, rule, between)
                )
                if found is None:
                    return None
                pose, age = composed(found.sample, pose), max(age, found.age_ns)
            halves.append(pose)
        offset = np.array([*arm.tool_offset.xyz, *arm.tool_offset.wxyz], dtype=np.float64)
        return Found(composed(composed(inverted(halves[0]), halves[1]), normalised(offset)), age)

    def _path(self, arm: Arm) -> tuple[list[str], list[str]] | None:
        """Return the frames from the base and from the tool up to where both meet."""
        base, tool = (self._ancestors(frame.lstrip('/')) for frame in (arm.base_frame, arm.tool_frame))
        meeting = next((frame for frame in base if frame in tool), None)
        if meeting is None:
            return None
        return base[: base.index(meeting)], tool[: tool.index(meeting)]

    def _ancestors(self, frame: str) -> list[str]:
        frames = [frame]
        while (parent := self._parents.get(frames[-1])) is not None and parent not in frames:
            frames.append(parent)
        return frames


def composed(outer: Array, inner: Array) -> Array:
    """Return the pose `inner`, given in `outer`, in the frame that `outer` is in."""
    return np.concatenate([outer[:3] + _turned(outer[3:], inner[:3]), _product(outer[3:], inner[3:])])


def inverted(pose: Array) -> Array:
    """Return the inverse of a pose."""
    quaternion = pose[3:] * (1, -1, -1, -1)
    return np.concatenate([-_turned(quaternion, pose[:3]), quaternion])


def normalised(pose: Array) -> Array:
    """Return a pose with a quaternion of length 1.

    Raises:
        PoseError: it is not finite, or its quaternion is zero.
    """
    if not np.isfinite(pose).all():
        raise PoseError('not finite')
    length = np.linalg.norm(pose[3:])
    if length < 1e-6:
        raise PoseError('a quaternion of zeros')
    return np.concatenate([pose[:3], pose[3:] / length])


BETWEEN: Between[Array] = between


def _pose(position: Any, turn: Any) -> Array:
    numbers = (position.x, position.y, position.z, turn.w, turn.x, turn.y, turn.z)
    return normalised(np.array(numbers, dtype=np.float64))


def _of_numbers(numbers: Array, order: str) -> Array:
    if numbers.shape != (7,):
        raise PoseError(f'{numbers.size} numbers; a pose is 7')
    return normalised(numbers if order == 'wxyz' else numbers[[0, 1, 2, 6, 3, 4, 5]])


def _turned(quaternion: Array, vector: Array) -> Array:
    w, axis = quaternion[0], quaternion[1:]
    cross = 2 * np.cross(axis, vector)
    return np.asarray(vector + w * cross + np.cross(axis, cross))


def _product(first: Array, second: Array) -> Array:
    w, v = first[0], first[1:]
    u, a = second[0], second[1:]
    return np.concatenate([[w * u - v @ a], w * a + u * v + np.cross(v, a)])
