# SPDX-License-Identifier: Apache-2.0
"""Pictures and joint states out of their bytes, without rosbags, whose types take a while to load.

Only what is plainly right is read here. All else is left to rosbags' reader, which says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_NUMBER = struct.Struct('<I')
_STAMP = struct.Struct('<iI')
_SIZE = struct.Struct('<II')
# Fast CDR's own serialiser pads behind the last field.
_LARGEST_PADDING = 3
# Lists of names that are remembered: as many as there are drivers, and a few.
_MOST_NAMES = 16


class Time(NamedTuple):
    """builtin_interfaces/Time."""

    sec: int
    nanosec: int


class Header(NamedTuple):
    """std_msgs/Header."""

    stamp: Time
    frame_id: str


class Image(NamedTuple):
    """sensor_msgs/Image; `data` is a view of the bytes."""

    header: Header
    height: int
    width: int
    encoding: str
    is_bigendian: int
    step: int
    data: npt.NDArray[np.uint8]


class CompressedImage(NamedTuple):
    """sensor_msgs/CompressedImage; `data` is a view of the bytes."""

    header: Header
    format: str
    data: npt.NDArray[np.uint8]


class JointState(NamedTuple):
    """sensor_msgs/JointState; the numbers are views of the bytes."""

    header: Header
    name: list[str]
    position: npt.NDArray[np.float64]
    velocity: npt.NDArray[np.float64]
    effort: npt.NDArray[np.float64]


class CommonReader:
    """Reads little-endian CDR of Image, CompressedImage and JointState."""

    def __init__(self) -> None:
        # Drivers name their joints alike in every message: the bytes of a list of names, and the names.
        self._names: dict[bytes, list[str]] = {}
        self._readers: dict[str, Callable[[memoryview], tuple[Any, int]]] = {
            'sensor_msgs/msg/Image': _image,
            'sensor_msgs/msg/CompressedImage': _compressed,
            'sensor_msgs/msg/JointState': self._joint_state,
        }

    def read(self, data: bytes | memoryview, message_type: str) -> Any | None:
        """Return the message; None when it is of another type, or not plainly right."""
        reader = self._readers.get(message_type)
        if reader is None or len(data) < 4 or data[0] != 0 or data[1] != 1:
            return None
        view = memoryview(data)[4:]
        try:
            message, end = reader(view)
        except (struct.error, IndexError, ValueError):
            return None
        return message if 0 <= len(view) - end <= _LARGEST_PADDING else None

    def _joint_state(self, view: memoryview) -> tuple[JointState, int]:
        header, at = _header(view)
        at = _aligned(at, 4)
        names: list[str] | None = None
        for known, listed in self._names.items():
            if view[at : at + len(known)] == known:
                names, at = list(listed), at + len(known)
                break
        if names is None:
            begin = at
            names = []
            count, at = _number(view, at)
            for _ in range(count):
                name, at = _string(view, _aligned(at, 4))
                names.append(name)
            if names:  # the bytes of none are what any list could begin with
                if len(self._names) >= _MOST_NAMES:
                    self._names.clear()
                self._names[bytes(view[begin:at])] = list(names)
        position, at = _doubles(view, at)
        velocity, at = _doubles(view, at)
        effort, at = _doubles(view, at)
        return JointState(header, names, position, velocity, effort), at


def _image(view: memoryview) -> tuple[Image, int]:
    header, at = _header(view)
    at = _aligned(at, 4)
    height, width = _SIZE.unpack_from(view, at)
    encoding, at = _string(view, at + 8)
    big_endian = view[at]
    step, at = _number(view, _aligned(at + 1, 4))
    data, at = _octets(view, at)
    return Image(header, height, width, encoding, big_endian, step, data), at


def _compressed(view: memoryview) -> tuple[CompressedImage, int]:
    header, at = _header(view)
    text, at = _string(view, _aligned(at, 4))
    data, at = _octets(view, _aligned(at, 4))
    return CompressedImage(header, text, data), at


def _header(view: memoryview) -> tuple[Header, int]:
    stamp = Time(*_STAMP.unpack_from(view, 0))
    frame, at = _string(view, _STAMP.size)
    return Header(stamp, frame), at


def _number(view: memoryview, at: int) -> tuple[int, int]:
    return _NUMBER.unpack_from(view, at)[0], at + 4


def _string(view: memoryview, at: int) -> tuple[str, int]:
    length, at = _number(view, at)
    end = at + length
    if not length or view[end - 1]:
        raise ValueError
    return str(view[at : end - 1], 'utf-8'), end


def _octets(view: memoryview, at: int) -> tuple[npt.NDArray[np.uint8], int]:
    count, at = _number(view, at)
    return np.frombuffer(view, np.uint8, count, at), at + count


def _doubles(view: memoryview, at: int) -> tuple[npt.NDArray[np.float64], int]:
    count, at = _number(view, _aligned(at, 4))
    if not count:
        return np.zeros(0), at
    at = _aligned(at, 8)
    return np.frombuffer(view, '<f8', count, at), at + 8 * count


def _aligned(at: int, size: int) -> int:
    return at + -at % size
