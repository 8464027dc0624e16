# SPDX-License-Identifier: Apache-2.0
"""For tests of streams and bags: a small contract, messages for it, and bags of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rosbags.interfaces import Qos
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from openeta_ros.embodiment import Embodiment, load
from openeta_ros.observation import image_message, joint_state_message

MS = 1_000_000
S = 1_000 * MS
T0 = 1_700_000_000 * S
FRONT, JOINTS = '/camera/front/image_raw', '/joint_states'
TYPES = get_typestore(Stores.ROS2_JAZZY)

CONTRACT = """
embodiment: two_joints
rate_hz: 20
description: {file: robot.urdf}
arms:
  arm:
    joints: [shoulder, elbow]
    gripper: {joint: finger, open: 0.0, closed: 0.8}
    base_frame: base
    tool_frame: tool
    home: [0.0, 0.0, 1.0]
    limits: {position: [[-1, 1], [-1, 1]], velocity: [1, 1]}
cameras:
  front: {topic: camera/front/image_raw}
state:
  - {topic: joint_states, max_age_s: 0.1}
endpose: {source: none}
align: {clock: front, max_age_s: 0.1}
"""

# topic, message, time of recording, in ns
Message = tuple[str, Any, int]


def contract(folder: Path, *changes: tuple[str, str]) -> Embodiment:
    """Return the contract with texts of it replaced."""
    text = CONTRACT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / 'two_joints.yaml'
    path.write_text(text)
    return load(path)


def picture(value: int, size: tuple[int, int] = (4, 6)) -> np.ndarray:
    """Return a picture of one colour."""
    return np.full((*size, 3), value % 256, np.uint8)


def image(stamp: int, value: int = 0) -> Any:
    """Return an Image of one colour."""
    return image_message(picture(value), stamp)


def joints(stamp: int, shoulder: float = 0.0, elbow: float = 0.0, finger: float = 0.0) -> Any:
    """Return a JointState of all joints."""
    return joint_state_message({'finger': finger, 'elbow': elbow, 'shoulder': shoulder}, {}, stamp)


def named(stamp: int, names: Sequence[str], positions: Sequence[float]) -> Any:
    """Return a JointState as it is given, right or not."""
    message = joint_state_message({}, {}, stamp)
    message.name = list(names)
    message.position = np.array(positions, dtype=np.float64)
    return message


def make(name: str, **fields: Any) -> Any:
    """Return a message of a type."""
    return TYPES.types[name](**fields)


def header(stamp: int, frame: str = '') -> Any:
    """Return a Header."""
    time = make('builtin_interfaces/msg/Time', sec=stamp // S, nanosec=stamp % S)
    return make('std_msgs/msg/Header', stamp=time, frame_id=frame)


def pose(stamp: int, position: Sequence[float], xyzw: Sequence[float], frame: str = 'base') -> Any:
    """Return a PoseStamped."""
    geometry = make(
        'geometry_msgs/msg/Pose',
        position=make('geometry_msgs/msg/Point', **dict(zip('xyz', position, strict=True))),
        orientation=make('geometry_msgs/msg/Quaternion', **dict(zip('xyzw', xyzw, strict=True))),
    )
    return make('geometry_msgs/msg/PoseStamped', header=header(stamp, frame), pose=geometry)


def transforms(stamp: int, *entries: tuple[str, str, Sequence[float], Sequence[float]]) -> Any:
    """Return a TFMessage of (parent, child, xyz, xyzw)."""
    made = [
        make(
            'geometry_msgs/msg/TransformStamped',
            header=header(stamp, parent),
            child_frame_id=child,
            transform=make(
                'geometry_msgs/msg/Transform',
                translation=make('geometry_msgs/msg/Vector3', **dict(zip('xyz', xyz, strict=True))),
                rotation=make('geometry_msgs/msg/Quaternion', **dict(zip('xyzw', xyzw, strict=True))),
            ),
        )
        for parent, child, xyz, xyzw in entries
    ]
    return make('tf2_msgs/msg/TFMessage', transforms=made)


def recording(count: int, period: int = 50 * MS, start: int = T0) -> list[Message]:
    """Return `count` pictures, each with joints 2 ms before it; the k-th has colour k and elbow k / 100."""
    messages: list[Message] = []
    for k in range(count):
        stamp = start + k * period
        messages.append((JOINTS, joints(stamp - 2 * MS, elbow=k / 100), stamp - 2 * MS))
        messages.append((FRONT, image(stamp, k), stamp))
    return messages


def bag(
    folder: Path,
    messages: Iterable[Message],
    *,
    storage: str = 'mcap',
    compression: CompressionMode = CompressionMode.NONE,
    version: Any = 9,
    qos: Sequence[Qos] = (),
) -> Path:
    """Write a bag of messages in the given order and return its folder."""
    plugin = StoragePlugin.MCAP if storage == 'mcap' else StoragePlugin.SQLITE3
    writer = Writer(folder, version=version, storage_plugin=plugin)
    if compression is not CompressionMode.NONE:
        writer.set_compression(compression, CompressionFormat.ZSTD)
    connections: dict[str, Any] = {}
    with writer:
        for topic, message, log_ns in messages:
            name = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(
                    topic, name, typestore=TYPES, offered_qos_profiles=list(qos)
                )
            writer.write(connections[topic], log_ns, TYPES.serialize_cdr(message, name))
    return folder
