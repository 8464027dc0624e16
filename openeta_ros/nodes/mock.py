# SPDX-License-Identifier: Apache-2.0
"""The mock node: a robot's drivers and controllers without a robot.

It offers what the contract says that the robot has, and behaves as ros2_control does. Three threads: the
controllers tick on one at 100 Hz, pictures are drawn on the worker, messages come on the executor's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Any

import rclpy.node
from std_msgs.msg import Bool, String

from openeta_msgs.srv import Expert, Reset
from openeta_ros import embodiment as contracts
from openeta_ros.embodiment import Embodiment, EmbodimentError, Kinematics
from openeta_ros.embodiment.errors import Problem
from openeta_ros.envs.arm_servo import SWITCH_S, raise_priority
from openeta_ros.envs.mock_controllers import controllers_of
from openeta_ros.envs.mock_plant import BarePlant, Plant, ScenePlant
from openeta_ros.envs.mock_robot import MockRobot
from openeta_ros.nodes import messages, runtime
from openeta_ros.nodes.cameras import LATCHED
from openeta_ros.nodes.mock_controllers import serve_controllers
from openeta_ros.nodes.mock_streams import MockStreams

# As a controller_manager that is given no other rate.
TICK_S = 0.01
# Ticks that a busy machine let pass are not made up for one by one.
LONGEST_TICK_S = 0.1
DRAWING_NICE = -10


class MockNode(rclpy.node.Node):
    """See `parameters` for the parameters."""

    def __init__(self, process: runtime.Process) -> None:
        super().__init__('mock')
        self._process = process
        values = runtime.declare(self, 'mock')
        embodiment = contracts.load(values['embodiment'])
        _check(embodiment)
        live = embodiment.live_description
        if live is not None:
            embodiment = _described(embodiment, values['description'])
        kinematics = Kinematics(embodiment)
        controllers = controllers_of(embodiment, kinematics, allow_partial=values['partial_joints'])
        process.call(_prefer_drawing)
        self._plant: Plant = process.call(lambda: _plant(embodiment, kinematics, values))
        self._robot = MockRobot(self._plant, controllers)
        self._streams = MockStreams(self, embodiment, kinematics, self._robot, values['camera_hz'])
        self._success = self.create_publisher(Bool, 'scene/success', LATCHED)
        self._told_success: bool | None = None
        self.create_service(Reset, 'scene/reset', self._on_reset)
        self.create_service(Expert, 'scene/expert', self._on_expert)
        if live is not None and live.topic is not None and embodiment.described_text is not None:
            self._description = self.create_publisher(String, live.topic, LATCHED)
            self._description.publish(String(data=embodiment.described_text[0]))
        serve_controllers(self, embodiment, self._robot)
        self.get_logger().info(f'mock of {embodiment.name}: {self._plant.told}')
        for one in controllers:
            channel = one.channel
            topic = self.resolve_topic_name(channel.topic)
            self.get_logger().info(f'{channel.interface} on {topic}: {", ".join(channel.names)}')
        self._end = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name='controllers', daemon=True)
        self._ticker.start()

    def on_end(self) -> None:
        """Stop the controllers and free the plant. On the worker."""
        self._end.set()
        self._ticker.join(1.0)
        self._plant.close()

    def _tick(self) -> None:
        raise_priority()
        sys.setswitchinterval(SWITCH_S)
        due = last = time.monotonic()
        while not self._end.wait(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            period, last = min(max(now - last, TICK_S / 10), LONGEST_TICK_S), now
            due = max(due + TICK_S, now)
            stamp_ns = self.get_clock().now().nanoseconds
            self._robot.tick(stamp_ns, period)
            if self._process.stopping:
                return
            self._streams.publish(stamp_ns, self._process.submit)
            self._tell_success(self._plant.success())

    def _tell_success(self, success: bool) -> None:
        if success != self._told_success:
            self._told_success = success
            self._success.publish(Bool(data=success))

    def _on_reset(self, request: Any, response: Any) -> Any:
        with self._robot.lock:
            self._plant.reset(int(request.seed))
            self._told_success = None  # told at the next tick, whatever it was
        response.stamp = messages.time_message(self.get_clock().now().nanoseconds)
        return response

    def _on_expert(self, request: Any, response: Any) -> Any:
        try:
            with self._robot.lock:
                plan = self._plant.expert()
            response.actions = messages.array_message(plan())
        except Exception as error:
            response.failure = messages.failure_message(error)
            runtime.log_failure(self, 'no expert', error)
        return response


def _prefer_drawing() -> None:
    """Have this thread, and those that drawing starts, run before others where that is allowed.

    Cameras and controllers of a robot have computers of their own; here they share one with who uses them.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, DRAWING_NICE)


def _plant(embodiment: Embodiment, kinematics: Kinematics, values: dict[str, Any]) -> Plant:
    if not embodiment.simulation.gains:
        return BarePlant(embodiment)
    return ScenePlant(embodiment, kinematics, values['task'], values['seed'])


def _described(embodiment: Embodiment, file: str) -> Embodiment:
    """Return the contract with the description of a file, where it takes it from the graph."""
    if not file:
        raise _refused(
            embodiment, 'the description comes over the graph: give the mock a URDF to publish (description)'
        )
    return embodiment.described(contracts.resolve_uri(file).read_text(encoding='utf-8'), file)


def _check(embodiment: Embodiment) -> None:
    deep = [name for name, camera in embodiment.cameras.items() if camera.depth is not None]
    if deep:
        raise _refused(embodiment, f'cameras.{deep[0]}.depth: the mock has no depth; leave it out')


def _refused(embodiment: Embodiment, text: str) -> EmbodimentError:
    return EmbodimentError(embodiment.path, [Problem(None, text)])


def main() -> None:
    """Run the node."""
    runtime.main(MockNode)


if __name__ == '__main__':
    main()
