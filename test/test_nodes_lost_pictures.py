# SPDX-License-Identifier: Apache-2.0
"""A picture that the env names is lost on its way: an arm's next one will do, a simulator's will not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arm_fakes import arm_contract, ramp
from rclpy.action import ActionServer
from rclpy.node import Node
from ros_graph import environment, spinning, wait_until
from sensor_msgs.msg import Image, JointState

from openeta_msgs.action import StepChunk
from openeta_msgs.msg import StepResult as StepResultMessage
from openeta_msgs.srv import Describe, Reset
from openeta_ros.embodiment import Embodiment
from openeta_ros.envs import EnvError
from openeta_ros.nodes import messages
from openeta_ros.nodes.arm_env import ArmEnv
from openeta_ros.nodes.held import HeldEnv
from openeta_ros.nodes.messages import ros_types
from openeta_ros.nodes.remote import GraphEnv
from openeta_ros.nodes.runtime import Process
from openeta_ros.observation import image_message, joint_state_message

MS = 1_000_000
S = 1_000 * MS
# Longer than a busy machine takes; longer than what is on its way may take until it counts as lost.
ROW_S, LATE_S = 60.0, 1.5


class Drivers:
    """An env node and the drivers beside it. Cameras send all but what is said to be lost, and reliably: so
    nothing else is.

    `named` are the stamps that the next reset or chunk names, `sent` those that it publishes, each but the
    clock camera's picture of `lost`; both are in ns. `late` is published a while after the answer.
    """

    def __init__(self, node: Node, embodiment: Embodiment, *, real_time: bool) -> None:
        self.named: Sequence[int] = ()
        self.sent: Sequence[int] = ()
        self.late: Sequence[int] = ()
        self.lost = 0
        self._embodiment, self._real_time = embodiment, real_time
        self._cameras = {
            name: node.create_publisher(Image, camera.topic, 10)
            for name, camera in embodiment.cameras.items()
        }
        self._joints = node.create_publisher(JointState, embodiment.state[0].topic, 10)
        node.create_service(Describe, 'env/describe', self._on_describe)
        node.create_service(Reset, 'env/reset', self._on_reset)
        ActionServer(node, StepChunk, 'env/step_chunk', self._on_chunk)

    def heard(self) -> bool:
        publishers = [*self._cameras.values(), self._joints]
        return all(publisher.get_subscription_count() for publisher in publishers)

    def publish(self, stamps: Sequence[int]) -> None:
        positions = dict.fromkeys(self._embodiment.wire_joints, 0.0)
        for stamp in stamps:
            self._joints.publish(joint_state_message(positions, {}, stamp, types=ros_types()))
            for name, publisher in self._cameras.items():
                if stamp != self.lost or name != self._embodiment.align.clock:
                    picture = np.zeros((60, 80, 3), np.uint8)
                    publisher.publish(image_message(picture, stamp, types=ros_types()))

    def _happen(self) -> None:
        self.publish(self.sent)
        if self.late:
            threading.Timer(LATE_S, self.publish, [self.late]).start()

    def _on_describe(self, request: Any, response: Any) -> Any:
        response.descriptor = json.dumps({'real_time': self._real_time})
        return response

    def _on_reset(self, request: Any, response: Any) -> Any:
        self._happen()
        response.stamp = messages.time_message(self.named[0])
        return response

    def _on_chunk(self, goal: Any) -> Any:
        self._happen()
        goal.succeed()
        rows = [
            StepResultMessage(stamp=messages.time_message(stamp), step=row)
            for row, stamp in enumerate(self.named, start=1)
        ]
        return StepChunk.Result(results=rows)


Nodes = tuple[Node, Node, Process]


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with environment(), spinning('drivers') as (drivers, _), spinning('tester') as (tester, process):
        yield drivers, tester, process


def made(kind: type[GraphEnv], nodes: Nodes, drivers: Drivers, embodiment: Embodiment, row_s: float) -> Any:
    """Return an env that hears the drivers."""
    more = {'note': print} if kind is ArmEnv else {}
    env = kind(nodes[1], nodes[2], 'env', embodiment, row_timeout_s=row_s, **more)
    wait_until(drivers.heard)
    ready = [env._reset.service_is_ready, env.peer._describe.service_is_ready]
    if isinstance(env, HeldEnv):
        ready.append(env._chunks.server_is_ready)
    wait_until(lambda: all(is_ready() for is_ready in ready))
    return env


def seen(env: Any, embodiment: Embodiment) -> list[int]:
    """Execute a chunk; return the stamps of what was seen after each row."""
    told: list[int] = []
    results = env.chunk_step(
        ramp(embodiment, 8), 'qpos', lambda result, sensors: told.append(sensors.stamp_ns)
    )
    assert told == [result.observation.stamp_ns for result in results]
    return told


@pytest.mark.parametrize('kind', [ArmEnv, HeldEnv])
def test_an_arms_lost_picture_does_not_end_the_episode_the_next_one_is_taken(
    kind: type[HeldEnv], nodes: Nodes, tmp_path: Path
) -> None:
    embodiment = arm_contract(tmp_path)
    drivers = Drivers(nodes[0], embodiment, real_time=True)
    env = made(kind, nodes, drivers, embodiment, ROW_S)
    drivers.named, drivers.sent = [50 * MS], [50 * MS]
    assert env.reset(0).stamp_ns == 50 * MS
    drivers.lost, drivers.named = 100 * MS, [100 * MS, 100 * MS, 150 * MS, 200 * MS]
    drivers.sent = [100 * MS, 150 * MS, 200 * MS, 250 * MS]
    assert seen(env, embodiment) == [150 * MS, 150 * MS, 150 * MS, 200 * MS]
    drivers.lost, drivers.named, drivers.sent = 300 * MS, [300 * MS], [300 * MS, 350 * MS, 400 * MS]
    assert env.reset(1).stamp_ns == 350 * MS


@pytest.mark.parametrize('kind', [ArmEnv, HeldEnv])
def test_a_picture_from_before_the_lost_one_is_never_taken_however_long_the_next_takes(
    kind: type[HeldEnv], nodes: Nodes, tmp_path: Path
) -> None:
    embodiment = arm_contract(tmp_path)
    drivers = Drivers(nodes[0], embodiment, real_time=True)
    env = made(kind, nodes, drivers, embodiment, ROW_S)
    drivers.named, drivers.sent = [50 * MS], [50 * MS]
    env.reset(0)
    drivers.lost, drivers.named, drivers.sent, drivers.late = 100 * MS, [100 * MS], [100 * MS], [150 * MS]
    assert seen(env, embodiment) == [150 * MS]


def test_pictures_of_before_time_went_back_are_not_taken_for_the_next_ones(
    nodes: Nodes, tmp_path: Path
) -> None:
    embodiment = arm_contract(tmp_path)
    drivers = Drivers(nodes[0], embodiment, real_time=True)
    env = made(ArmEnv, nodes, drivers, embodiment, ROW_S)
    drivers.publish([30 * S, 31 * S])
    env._bridge.wait_for(31 * S, ROW_S)
    drivers.named, drivers.sent = [100 * MS], []
    threading.Timer(0.3, drivers.publish, [[100 * MS, 150 * MS]]).start()
    assert env.reset(0).stamp_ns == 100 * MS


@pytest.mark.parametrize('kind', [GraphEnv, HeldEnv])
def test_a_simulators_lost_picture_is_an_error_no_other_is_taken_for_it(
    kind: type[GraphEnv], nodes: Nodes, tmp_path: Path
) -> None:
    embodiment = arm_contract(tmp_path)
    drivers = Drivers(nodes[0], embodiment, real_time=False)
    env = made(kind, nodes, drivers, embodiment, LATE_S)
    drivers.lost, drivers.named, drivers.sent = 100 * MS, [100 * MS], [50 * MS, 100 * MS, 150 * MS]
    begin = time.monotonic()
    with pytest.raises(EnvError, match='for an observation') as missing:
        env.reset(0)
    assert missing.value.kind == 'stream' and time.monotonic() - begin >= LATE_S
