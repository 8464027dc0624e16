# SPDX-License-Identifier: Apache-2.0
"""`camera_info` and the cameras' places fit the pictures: what is at a place in the world is at its pixel."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

pytest.importorskip('rclpy')

from contracts import contract, written

from openeta_ros.embodiment import Embodiment
from openeta_ros.envs import EnvFacade, EnvSpec
from openeta_ros.envs.backend import picture_size
from openeta_ros.nodes.cameras import info_message, info_topic, optical_axes, pinhole


@pytest.fixture(params=[0, 90, 180, 270])
def turned(request: pytest.FixtureRequest, tmp_path) -> Embodiment:
    """A robot whose front camera is mounted turned and cropped, and not square."""
    data = contract('light_arm')
    data['cameras']['front'] |= {'rotate': request.param, 'crop': [20, 40, 200, 240], 'size': [100, 120]}
    return written(data, tmp_path)


def test_the_cube_is_at_its_pixel(turned: Embodiment) -> None:
    with EnvFacade.from_spec(EnvSpec('mujoco', 'push_cube', turned)) as env:
        env.reset(0)
        cube = env._world._backend.object_poses()['cube'][:3]
        for camera in ('front', 'top'):
            assert_at_its_pixel(env, turned, camera, cube)


def assert_at_its_pixel(env: EnvFacade, robot: Embodiment, camera: str, cube: np.ndarray) -> None:
    picture = env.sensors.pictures[camera].astype(float)
    pose, contract = env.camera_poses[camera], robot.cameras[camera]
    info = info_message(pinhole(pose, picture_size(contract), contract.rotate), 5, camera)
    assert picture.shape[:2] == (info.height, info.width)
    in_camera = optical_axes(pose, contract.rotate).T @ (cube - pose.position_m)
    column, row, depth = np.reshape(info.k, (3, 3)) @ in_camera
    red = (picture[..., 0] > 100) & (picture[..., 1:].max(axis=-1) < 60)
    # The cube is the largest red thing; the arm's rings are some more.
    _, _, boxes, middles = cv2.connectedComponentsWithStats(red.astype(np.uint8))
    seen = middles[1 + boxes[1:, cv2.CC_STAT_AREA].argmax()][::-1]
    assert seen == pytest.approx([row / depth, column / depth], abs=2.5)


def test_calibration_is_told_beside_the_pictures() -> None:
    assert info_topic('camera/front/image_raw') == 'camera/front/camera_info'
    assert info_topic('/front/image') == '/front/camera_info'
    assert info_topic('image') == 'camera_info'
