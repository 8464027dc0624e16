# SPDX-License-Identifier: Apache-2.0
"""Arrays to sensor messages: written once for rclpy's message classes and for a bag writer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class MessageTypes:
    """The message classes to fill, and how they want their numbers.

    `octets` and `doubles` turn a NumPy array into what a uint8[] and a float64[] field takes at no more than
    one copy.
    """

    time: Callable[..., Any]
    header: Callable[..., Any]
    image: Callable[..., Any]
    joint_state: Callable[..., Any]
    octets: Callable[[npt.NDArray[np.uint8]], Any]
    doubles: Callable[[npt.NDArray[np.float64]], Any]


@cache
def bag_types() -> MessageTypes:
    """Return the classes of rosbags, which reads and writes messages without a ROS on the machine."""
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS2_JAZZY).types
    return MessageTypes(
        time=types['builtin_interfaces/msg/Time'],
        header=types['std_msgs/msg/Header'],
        image=types['sensor_msgs/msg/Image'],
        joint_state=types['sensor_msgs/msg/JointState'],
        octets=lambda array: array.reshape(-1),
        doubles=lambda array: array,
    )


def image_message(
    picture: npt.NDArray[np.uint8], stamp_ns: int, *, frame_id: str = '', types: MessageTypes | None = None
) -> Any:
    """Return a sensor_msgs Image (rgb8, no padding) of an RGB picture (H, W, 3) uint8.

    `types` says whose class; None means rosbags', which `decode_image` reads just as well.
    """
    types = types or bag_types()
    height, width = picture.shape[:2]
    return types.image(
        header=_header(stamp_ns, frame_id, types),
        height=height,
        width=width,
        encoding='rgb8',
        is_bigendian=0,
        step=3 * width,
        data=types.octets(np.ascontiguousarray(picture)),
    )


def joint_state_message(
    positions: Mapping[str, float],
    velocities: Mapping[str, float],
    stamp_ns: int,
    *,
    types: MessageTypes | None = None,
) -> Any:
    """Return a sensor_msgs JointState of positions (rad or m) and velocities by joint name.

    `types` as for `image_message`. Velocities must hold every joint of `positions`, or be empty.
    """
    types = types or bag_types()
    names = list(positions)
    speeds = [velocities[name] for name in names] if velocities else []
    return types.joint_state(
        header=_header(stamp_ns, '', types),
        name=names,
        position=types.doubles(np.array([positions[name] for name in names], dtype=np.float64)),
        velocity=types.doubles(np.array(speeds, dtype=np.float64)),
        effort=types.doubles(np.array([], dtype=np.float64)),
    )


def stamp_ns(message: Any) -> int:
    """Return a message's header stamp in nanoseconds of ROS time."""
    stamp = message.header.stamp
    return int(stamp.sec) * NS_PER_S + int(stamp.nanosec)


def _header(stamp: int, frame_id: str, types: MessageTypes) -> Any:
    sec, nanosec = divmod(stamp, NS_PER_S)
    return types.header(stamp=types.time(sec=sec, nanosec=nanosec), frame_id=frame_id)
