# SPDX-License-Identifier: Apache-2.0
"""Bytes to messages: whoever wrote them, without copies, and refused when they are something else."""

from __future__ import annotations

import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from openeta_ros.observation import ObservationError, joint_state_message
from openeta_ros.observation.cdr import message_decoder
from openeta_ros.observation.cdr_common import CommonReader

JOINT_STATE = 'sensor_msgs/msg/JointState'


@pytest.mark.parametrize('joints', range(1, 9))
@pytest.mark.parametrize('moving', [True, False])
def test_what_rclpy_serialized_is_read_also_without_velocities(joints: int, moving: bool) -> None:
    serialization = pytest.importorskip('rclpy.serialization')
    from sensor_msgs.msg import JointState

    names = [f'joint{"x" * index}' for index in range(joints)]
    values = [0.5 * index for index in range(joints)]
    sent = JointState(name=names, position=values, velocity=values if moving else [])
    message = message_decoder()(serialization.serialize_message(sent), JOINT_STATE)
    assert message.name == names
    np.testing.assert_array_equal(message.position, values)
    np.testing.assert_array_equal(message.velocity, values if moving else [])


def test_arrays_are_views_of_the_bytes() -> None:
    types = get_typestore(Stores.ROS2_JAZZY)
    image = types.types['sensor_msgs/msg/Image']
    header = types.types['std_msgs/msg/Header'](types.types['builtin_interfaces/msg/Time'](1, 2), 'front')
    data = np.arange(12, dtype=np.uint8)
    wire = bytes(types.serialize_cdr(image(header, 2, 2, 'rgb8', 0, 6, data), 'sensor_msgs/msg/Image'))
    received = message_decoder()(wire, 'sensor_msgs/msg/Image').data
    np.testing.assert_array_equal(received, data)
    assert np.shares_memory(received, np.frombuffer(wire, np.uint8))


def test_cut_lengthened_and_other_bytes_are_refused() -> None:
    types = get_typestore(Stores.ROS2_JAZZY)
    message = joint_state_message({'elbow': 1.0}, {'elbow': 2.0}, 5)
    wire = bytes(types.serialize_cdr(message, JOINT_STATE))
    decode = message_decoder()
    decode(wire, JOINT_STATE)
    wrong = [wire[:end] for end in range(len(wire) - 8)] + [wire + bytes(64), b'\x09' + wire[1:]]
    for data in wrong:
        with pytest.raises(ObservationError):
            decode(data, JOINT_STATE)
    with pytest.raises(ObservationError, match='no_msgs'):
        decode(wire, 'no_msgs/msg/Nothing')


def common_messages() -> list[object]:
    """Return pictures and joint states with names of every length, with and without numbers."""
    types = get_typestore(Stores.ROS2_JAZZY).types
    headers = [
        types['std_msgs/msg/Header'](types['builtin_interfaces/msg/Time'](sec, 7), 'x' * length)
        for length, sec in enumerate((0, 1_700_000_000, -5, 2**31 - 1, 3, 4, 5, 6))
    ]
    messages: list[object] = []
    for index, header in enumerate(headers):
        data = np.arange(3 * index, dtype=np.uint8)
        text = 'rgb8é'[:index]
        messages.append(types['sensor_msgs/msg/Image'](header, index, 1, text, index % 2, 3, data))
        messages.append(types['sensor_msgs/msg/CompressedImage'](header, text, data))
        names, numbers = ['j' * k for k in range(index)], np.arange(index) / 3
        for velocity, effort in ((numbers, numbers), (np.zeros(0), numbers), (np.zeros(0), np.zeros(0))):
            messages.append(types[JOINT_STATE](header, names, numbers, velocity, effort))
    return messages


def fields(message: object) -> object:
    """Return a message as plain Python, to compare."""
    if isinstance(message, np.ndarray):
        return message.tolist()
    names = getattr(message, '_fields', None) or getattr(message, '__dataclass_fields__', None)
    if not names:
        return message
    return {name: fields(getattr(message, name)) for name in names if not name.startswith('__')}


def test_common_messages_are_read_as_rosbags_reads_them_and_what_is_cut_is_left_to_it() -> None:
    types = get_typestore(Stores.ROS2_JAZZY)
    decode, common = message_decoder(types), CommonReader()
    for message in common_messages():
        name = message.__msgtype__  # type: ignore[attr-defined]
        wire = bytes(types.serialize_cdr(message, name))
        for _ in range(2):  # the second time with names that are known
            assert fields(common.read(wire, name)) == fields(decode(wire, name))
        for end in range(len(wire)):
            read = common.read(wire[:end], name)
            assert read is None or fields(read) == fields(decode(wire[:end], name))
        assert common.read(types.serialize_cdr(message, name, little_endian=False), name) is None
        assert common.read(wire + bytes(64), name) is None
    assert common.read(wire, 'std_msgs/msg/String') is None
