# SPDX-License-Identifier: Apache-2.0
"""What a simulated camera's driver tells beside its pictures: its calibration, and where it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from geometry_msgs.msg import Quaternion, Transform, TransformStamped, Vector3
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CameraInfo
from std_msgs.msg import Header

from openeta_ros.embodiment import Embodiment
from openeta_ros.envs.backend import CameraPose, picture_size
from openeta_ros.nodes.messages import time_message

LATCHED = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)


@dataclass(frozen=True)
class Pinhole:
    """An ideal camera: the size of its pictures, and its focal length and principal point in pixels.

    The middle of the first pixel is (0, 0), as image_geometry and OpenCV have it.
    """

    width: int
    height: int
    focal: float
    cx: float
    cy: float


def pinhole(pose: CameraPose, size: tuple[int, int], rotate_deg: int) -> Pinhole:
    """Return the camera that publishes pictures of a scene's camera.

    Args:
        pose: of the scene's camera; its opening angle is along the height of the upright picture.
        size: (H, W) of the upright picture.
        rotate_deg: the turn, counter-clockwise, that makes the published picture upright.
    """
    focal = 0.5 * size[0] / np.tan(np.radians(pose.fovy_deg) / 2)
    height, width = size if rotate_deg % 180 == 0 else size[::-1]
    return Pinhole(width, height, float(focal), (width - 1) / 2, (height - 1) / 2)


def info_message(camera: Pinhole, stamp_ns: int, frame_id: str) -> CameraInfo:
    """Return a camera's calibration as a message: no distortion, no rectification."""
    f, cx, cy = camera.focal, camera.cx, camera.cy
    return CameraInfo(
        header=Header(stamp=time_message(stamp_ns), frame_id=frame_id),
        width=camera.width,
        height=camera.height,
        distortion_model='plumb_bob',
        d=[0.0] * 5,
        k=[f, 0.0, cx, 0.0, f, cy, 0.0, 0.0, 1.0],
        r=[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        p=[f, 0.0, cx, 0.0, 0.0, f, cy, 0.0, 0.0, 0.0, 1.0, 0.0],
    )


def info_topic(image_topic: str) -> str:
    """Return where a camera's calibration is published: beside its pictures, as image_transport has it."""
    folder, slash, _ = image_topic.rpartition('/')
    return f'{folder}{slash}camera_info'


def optical_axes(pose: CameraPose, rotate_deg: int) -> np.ndarray:
    """Return the rotation (3, 3) of a camera's optical frame in the world.

    Columns: x to the right of the published picture, y down, z where it looks (REP 103).
    """
    z = _unit(np.subtract(pose.look_at_m, pose.position_m))
    x = _unit(np.cross(z, pose.up))
    upright = np.column_stack([x, np.cross(z, x), z])
    turn = np.radians(rotate_deg)
    # The camera is mounted turned: what is right in its picture is, upright, that much counter-clockwise.
    around = [[np.cos(turn), np.sin(turn), 0.0], [-np.sin(turn), np.cos(turn), 0.0], [0.0, 0.0, 1.0]]
    return upright @ np.array(around)


class CameraInfos:
    """Publishes `camera_info` of the cameras whose place in the scene is known; and that place on
    `/tf_static`, where tf2_msgs is there.

    The optical frame of a camera has the camera's name; its parent is the base frame of the first arm, which
    stands in the origin of the scene.
    """

    def __init__(self, node: Node, embodiment: Embodiment, poses: Mapping[str, CameraPose]) -> None:
        self._cameras = {
            name: pinhole(poses[name], picture_size(camera), camera.rotate)
            for name, camera in embodiment.cameras.items()
            if name in poses
        }
        self._publishers = {
            name: node.create_publisher(CameraInfo, info_topic(embodiment.cameras[name].topic), LATCHED)
            for name in self._cameras
        }
        # Kept, since what it published is gone with it.
        self._places = _publish_places(node, embodiment, {name: poses[name] for name in self._cameras})

    def publish(self, stamp_ns: int) -> None:
        """Publish the calibrations under a stamp."""
        for name, publisher in self._publishers.items():
            publisher.publish(info_message(self._cameras[name], stamp_ns, name))


def _publish_places(node: Node, embodiment: Embodiment, poses: Mapping[str, CameraPose]) -> Publisher | None:
    try:
        from tf2_msgs.msg import TFMessage
    except ImportError:
        node.get_logger().info('tf2_msgs is not installed: the places of the cameras are not on /tf_static')
        return None
    parent = next(iter(embodiment.arms.values())).base_frame
    transforms = [
        _transform(pose, embodiment.cameras[name].rotate, parent, name) for name, pose in poses.items()
    ]
    publisher = node.create_publisher(TFMessage, '/tf_static', LATCHED)
    publisher.publish(TFMessage(transforms=transforms))
    return publisher


def _transform(pose: CameraPose, rotate_deg: int, parent: str, child: str) -> TransformStamped:
    import pinocchio

    x, y, z, w = pinocchio.Quaternion(optical_axes(pose, rotate_deg)).coeffs().tolist()
    px, py, pz = pose.position_m
    return TransformStamped(
        header=Header(frame_id=parent),
        child_frame_id=child,
        transform=Transform(translation=Vector3(x=px, y=py, z=pz), rotation=Quaternion(x=x, y=y, z=z, w=w)),
    )


def _unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))
