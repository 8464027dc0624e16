# SPDX-License-Identifier: Apache-2.0
"""Bytes of a ROS 2 message to an object with its fields, without copying what it carries."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

from openeta_ros.observation.cdr_common import CommonReader
from openeta_ros.observation.errors import ObservationError

Decode = Callable[['bytes | memoryview', str], Any]

# rclpy's serialize_message pads behind empty sequences of doubles (a JointState without velocities), which
# a message on the wire does not have; rosbags' own decoder takes three bytes at most.
LARGEST_PADDING = 32


def message_decoder(types: Any = None, names: Iterable[str] = ()) -> Decode:
    """Return a function of bytes and a type's name, such as 'sensor_msgs/msg/Image', that gives the message.

    Arrays of numbers are views of the bytes.

    Args:
        types: rosbags' Typestore with the types; None: those of ROS 2 Jazzy.
        names: types whose readers are made now; it takes a tenth of a second, which the first message of a
            type otherwise waits.

    Raises of it:
        ObservationError: the bytes are not of that type, or the type is not known.
    """
    from rosbags.serde import SerdeError
    from rosbags.typesys import Stores, get_typestore

    store = types or get_typestore(Stores.ROS2_JAZZY)
    definitions = {name: store.get_msgdef(name) for name in names}
    common = CommonReader() if types is None else None

    def decode(data: bytes | memoryview, name: str) -> Any:
        if common is not None and (read_at_once := common.read(data, name)) is not None:
            return read_at_once
        view = memoryview(data)
        if len(view) < 4 or view[0] != 0 or view[1] > 1:
            raise ObservationError(f'these {len(view)} bytes are no message in CDR')
        try:
            definition = definitions.get(name) or store.get_msgdef(name)
            read = definition.deserialize_cdr_le if view[1] else definition.deserialize_cdr_be
            message, end = read(view[4:], 0, definition.cls, store)
        except (SerdeError, struct.error, KeyError, IndexError, ValueError) as error:
            raise ObservationError(f'these {len(view)} bytes are no {name}: {error}') from None
        if len(view) - 4 - end > LARGEST_PADDING:
            raise ObservationError(f'a {name} ends after {end + 4} of these {len(view)} bytes')
        return message

    return decode
