# SPDX-License-Identifier: Apache-2.0
"""An episode of an arm begins with pictures of its own scene, though some from before are on their way."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
from arm_fakes import arm_contract
from arm_graph import PATIENT
from rclpy.node import Node
from ros_graph import environment, node_process, spinning
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Float64MultiArray

from openeta_msgs.srv import Reset
from openeta_ros.embodiment import Embodiment
from openeta_ros.nodes.arm_env import ArmEnv
from openeta_ros.nodes.messages import time_message
from openeta_ros.nodes.peer import bring_up

PERIOD_S, PICTURES_EVERY = 0.01, 5
# Pictures that the drivers of cameras still have in hand when the scene changes.
IN_HAND = 2


class Drivers:
    """Drivers of an arm that stands at home, and cameras that show the number of the scene in every pixel.

    A context manager: they end with the block.
    """

    def __init__(self, node: Node, embodiment: Embodiment) -> None:
        self._node, self._embodiment = node, embodiment
        self.scene = 1
        self._in_hand: deque[list[Image]] = deque()
        self._joints = node.create_publisher(JointState, 'joint_states', 10)
        self._cameras = [
            node.create_publisher(Image, camera.topic, 5) for camera in embodiment.cameras.values()
        ]
        node.create_publisher(Bool, 'scene/success', 10)
        node.create_service(Reset, 'scene/reset', self._reset)
        for topic in ('arm_controller/commands', 'gripper_controller/commands'):
            node.create_subscription(Float64MultiArray, topic, lambda message: None, 10)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _reset(self, request: Any, response: Any) -> Any:
        self.scene += 1
        return response

    def _publish(self) -> None:
        arm = self._embodiment.arms['arm']
        names = [*arm.joints, 'finger_left']
        positions = [*arm.home[:-1], 0.04]
        ticks = 0
        while not self._end.wait(PERIOD_S):
            stamp = time_message(time.time_ns())
            state = JointState(name=names, position=positions)
            state.header.stamp = stamp
            self._joints.publish(state)
            ticks += 1
            if ticks % PICTURES_EVERY:
                continue
            self._in_hand.append([self._picture(stamp) for _ in self._cameras])
            if len(self._in_hand) > IN_HAND:
                for publisher, picture in zip(self._cameras, self._in_hand.popleft(), strict=True):
                    picture.header.stamp = stamp  # these drivers stamp what they send
                    publisher.publish(picture)

    def _picture(self, stamp: Any) -> Image:
        height, width = 60, 80  # as the contract delivers them
        picture = Image(height=height, width=width, encoding='rgb8', step=3 * width)
        picture.data.frombytes(bytes([self.scene]) * (3 * width * height))
        return picture


def test_no_episode_begins_with_a_picture_from_before_its_reset(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path, **PATIENT)
    path = str(embodiment.path)
    arm = {'env': 'arm', 'task': 'reach', 'embodiment': path, 'enabled': True, 'max_steps': 100}
    with (
        environment(),
        node_process('env', tmp_path / 'env.log', **arm),
        spinning('drivers') as (drivers_node, _),
        spinning('tester') as (node, process),
        Drivers(drivers_node, embodiment) as drivers,
    ):
        env = ArmEnv(node, process, 'env', embodiment, row_timeout_s=60.0, note=print)
        env.wait_until_found(time.monotonic() + 120.0)
        bring_up([env.peer], 120.0, print)
        for seed in range(6):
            before = drivers.scene
            seen = env.reset(seed)
            assert drivers.scene == before + 1
            for name in embodiment.cameras:
                assert np.unique(seen[f'frames_{name}']).tolist() == [before + 1], f'{name} of seed {seed}'
