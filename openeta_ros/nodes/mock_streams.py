# SPDX-License-Identifier: Apache-2.0
"""What the drivers of a mock robot publish: joint states, pictures, poses."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Header

from openeta_ros.embodiment import Embodiment, Kinematics
from openeta_ros.embodiment.schema import PoseTopic
from openeta_ros.envs.backend import Picture
from openeta_ros.envs.mock_robot import MockRobot, state_streams
from openeta_ros.nodes.cameras import CameraInfos
from openeta_ros.nodes.messages import octets, ros_types, time_message
from openeta_ros.observation import NS_PER_S, image_message

# joint_state_broadcaster's: who comes late still learns where the arm is.
STATES = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=10,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
CAMERA = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=5,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.VOLATILE,
)
# joint_state_broadcaster's default.
FRAME = 'base_link'
JPEG_QUALITY = 90


class MockStreams:
    """Publishes the joints at every tick, and the pictures of the cameras at a rate of their own."""

    def __init__(
        self, node: Node, embodiment: Embodiment, kinematics: Kinematics, robot: MockRobot, camera_hz: float
    ) -> None:
        self._embodiment, self._kinematics, self._robot = embodiment, kinematics, robot
        self._states = [
            (stream, [robot.plant.joints.index(name) for name in stream.joints], publisher)
            for stream in state_streams(embodiment, robot.plant.joints)
            for publisher in [node.create_publisher(JointState, stream.topic, STATES)]
        ]
        self._cameras = {
            name: node.create_publisher(
                Image if camera.transport == 'raw' else CompressedImage, camera.topic, CAMERA
            )
            for name, camera in embodiment.cameras.items()
        }
        self._infos = CameraInfos(node, embodiment, robot.plant.camera_poses)
        self._poses: dict[str, Publisher] = {}
        source = embodiment.endpose.source
        if isinstance(source, PoseTopic):
            topics = source.topic if isinstance(source.topic, dict) else {}
            self._poses = {
                arm: node.create_publisher(PoseStamped, topics.get(arm, str(source.topic)), CAMERA)
                for arm in embodiment.arms
            }
        self._frame_ns = round(NS_PER_S / camera_hz)
        self._next_ns = 0
        self._drawing: Any = None  # the future of the pictures that are being drawn

    def publish(self, stamp_ns: int, draw: Callable[[Callable[[], None]], Any]) -> None:
        """Publish what is measured now; `draw` has a job done on the thread that draws."""
        plant = self._robot.plant
        with self._robot.lock:
            positions, velocities = plant.positions(), plant.velocities()
        for stream, places, publisher in self._states:
            sent = JointState(header=Header(stamp=time_message(stamp_ns), frame_id=FRAME), name=stream.names)
            sent.position = array.array('d', stream.positions(positions[places]))
            sent.velocity = array.array('d', stream.velocities(velocities[places]))
            sent.effort = array.array('d', [np.nan] * len(places))
            publisher.publish(sent)
        if self._poses:
            self._publish_poses(dict(zip(plant.joints, positions, strict=True)), stamp_ns)
        if stamp_ns < self._next_ns or (self._drawing is not None and not self._drawing.done()):
            return
        if stamp_ns - self._next_ns > self._frame_ns:  # too slow for the rate: from here on again
            self._next_ns = stamp_ns
        self._next_ns += self._frame_ns
        with self._robot.lock:
            look = plant.look()
        self._drawing = draw(lambda: self._publish_pictures(look, stamp_ns))

    def _publish_pictures(self, look: Any, stamp_ns: int) -> None:
        for name, camera in self._embodiment.cameras.items():
            upright = self._robot.plant.picture(name, look)
            picture = np.ascontiguousarray(np.rot90(upright, -(camera.rotate // 90)))
            if camera.transport == 'raw':
                message = image_message(picture, stamp_ns, frame_id=name, types=ros_types())
            else:
                message = _jpeg(picture, stamp_ns, name)
            self._cameras[name].publish(message)
        self._infos.publish(stamp_ns)

    def _publish_poses(self, positions: dict[str, float], stamp_ns: int) -> None:
        for name, publisher in self._poses.items():
            arm = self._embodiment.arms[name]
            pose = self._kinematics.forward(name, [positions[joint] for joint in arm.joints])
            x, y, z, qw, qx, qy, qz = map(float, pose)
            publisher.publish(
                PoseStamped(
                    header=Header(stamp=time_message(stamp_ns), frame_id=arm.base_frame),
                    pose=Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(x=qx, y=qy, z=qz, w=qw)),
                )
            )


def _jpeg(picture: Picture, stamp_ns: int, frame_id: str) -> CompressedImage:
    done, data = cv2.imencode('.jpg', picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    assert done
    header = Header(stamp=time_message(stamp_ns), frame_id=frame_id)
    return CompressedImage(header=header, format='rgb8; jpeg compressed bgr8', data=octets(data))
