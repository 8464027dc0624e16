# SPDX-License-Identifier: Apache-2.0
"""Messages of a bag are decoded as those of a live topic are."""

from __future__ import annotations

import pytest

from openeta_ros.episodes.bag import BagError, Recorded, decoder


def test_a_joint_state_without_velocities_as_a_recorder_in_python_writes_it_is_read() -> None:
    serialization = pytest.importorskip('rclpy.serialization')
    from sensor_msgs.msg import JointState

    data = bytes(serialization.serialize_message(JointState(name=['a', 'b'], position=[1.0, 2.0])))
    message = decoder()(Recorded('joint_states', 'sensor_msgs/msg/JointState', 0, data))
    assert list(message.position) == [1.0, 2.0] and len(message.velocity) == 0


def test_bytes_of_another_type_are_refused_by_topic() -> None:
    with pytest.raises(BagError, match='joint_states'):
        decoder()(Recorded('joint_states', 'sensor_msgs/msg/JointState', 0, b'\0\1\0\0\7'))
