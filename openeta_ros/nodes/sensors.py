# SPDX-License-Identifier: Apache-2.0
"""What a robot's drivers publish, published for a simulated one."""

from __future__ import annotations

from collections.abc import Mapping

from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header

from openeta_ros.embodiment import Embodiment
from openeta_ros.envs import Sensors
from openeta_ros.envs.backend import CameraPose
from openeta_ros.nodes.cameras import CameraInfos
from openeta_ros.nodes.messages import ros_types, time_message
from openeta_ros.observation import Observation, image_message, joint_state_message

# Drivers offer their streams best effort, because the next picture comes anyway. A simulator in lock-step
# draws a picture once, and an evaluation ends when it is lost: so it is offered reliable, and kept for who
# has not been discovered yet. Best-effort subscribers match just as well.
STREAM = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=16,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


class SensorPublisher:
    """Publishes the contract's cameras (with `camera_info` where their place is known) and joint states,
    `endpose/<arm>` and `/clock`."""

    def __init__(self, node: Node, embodiment: Embodiment, camera_poses: Mapping[str, CameraPose]) -> None:
        self._embodiment = embodiment
        self._cameras = {
            name: node.create_publisher(Image, camera.topic, STREAM)
            for name, camera in embodiment.cameras.items()
        }
        self._infos = CameraInfos(node, embodiment, camera_poses)
        # A simulator knows all joints: they are published together, on the first of the contract's topics.
        self._joints = node.create_publisher(JointState, embodiment.state[0].topic, STREAM)
        self._poses: dict[str, Publisher] = {}
        if embodiment.endpose.source == 'fk':
            self._poses = {
                arm: node.create_publisher(PoseStamped, f'endpose/{arm}', STREAM) for arm in embodiment.arms
            }
        self._clock = node.create_publisher(Clock, '/clock', 10)

    def publish(self, sensors: Sensors, observation: Observation) -> None:
        """Publish one moment."""
        stamp = sensors.stamp_ns
        self._clock.publish(Clock(clock=time_message(stamp)))
        self._joints.publish(
            joint_state_message(sensors.positions, sensors.velocities, stamp, types=ros_types())
        )
        for name, publisher in self._cameras.items():
            publisher.publish(image_message(sensors.pictures[name], stamp, frame_id=name, types=ros_types()))
        self._infos.publish(stamp)
        places = self._embodiment.slices('ee')
        for arm, publisher in self._poses.items():
            x, y, z, qw, qx, qy, qz = map(float, observation['endpose'][places[arm]][:7])
            pose = Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(x=qx, y=qy, z=qz, w=qw))
            frame = self._embodiment.arms[arm].base_frame
            publisher.publish(
                PoseStamped(header=Header(stamp=time_message(stamp), frame_id=frame), pose=pose)
            )
