# SPDX-License-Identifier: Apache-2.0
"""How evenly commands leave for a forward controller: our control thread beside a bare timed loop.

    python bench/servo.py [--seconds 15] [--hz 100] [--no-priority]

The whole of an arm's env runs as in the env node: joint states at 100 Hz and two cameras at 30 Hz come over
ROS 2 from another process, chunk after chunk is executed, each row's pictures are decoded, and a command is
published each period. Beside it, in a process of its own and at the same time, a loop does nothing but sleep
until the next period and note the time. Both cores are kept busy by two more processes. Both loops ask for
the same priority (SCHED_FIFO); where the machine does not allow it, neither has it.

What is told: of each the 50th, 99th and 100th percentile of how far periods are from the wanted one, and the
ratio of the 99th percentiles. The exit code is 1 when it is above 2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

GOAL = 2.0
# The first seconds are everybody's start.
WARM_UP_S = 3.0
CAMERA_HZ, STATE_HZ = 30.0, 100.0
ROWS = 40


def main() -> int:
    """Run the comparison; the exit code is 1 when the goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--seconds', type=float, default=15.0, help='how long is measured')
    parser.add_argument('--hz', type=float, default=100.0, help='commands a second')
    parser.add_argument('--no-priority', action='store_true', help='neither loop asks for priority')
    parser.add_argument(
        '--role', choices=('ours', 'servo', 'bare', 'drivers', 'busy'), help=argparse.SUPPRESS
    )
    parser.add_argument('--contract', help=argparse.SUPPRESS)
    parser.add_argument('--socket', help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        run = {'ours': ours, 'servo': send, 'bare': bare, 'drivers': drivers, 'busy': busy}[arguments.role]
        run(arguments)
        return 0
    return compare(arguments)


def compare(arguments: argparse.Namespace) -> int:
    """Run both at the same time on loaded cores and print a table."""
    from openeta_ros.nodes.graph import graph_environment

    with tempfile.TemporaryDirectory() as folder, graph_environment() as environment:
        command = [sys.executable, __file__, *sys.argv[1:], '--contract', str(contract(Path(folder)))]
        started: list[subprocess.Popen[str]] = []

        def start(role: str, **options: Any) -> subprocess.Popen[str]:
            started.append(
                subprocess.Popen([*command, '--role', role], env=environment, text=True, **options)
            )
            return started[-1]

        try:
            start('drivers')
            for _ in range(os.cpu_count() or 1):
                start('busy')
            running = {role: start(role, stdout=subprocess.PIPE) for role in ('ours', 'bare')}
            answers = {role: json.loads(one.communicate()[0]) for role, one in running.items()}
        finally:
            for process in started:
                process.kill()
                process.wait()
    print(
        f'{arguments.hz:g} Hz for {arguments.seconds:g} s on {os.cpu_count()} busy cores; {priority(answers)}'
    )
    print(f'{"":6} periods   off by ms p50 / p99 / max')
    p99 = {}
    for role, answer in answers.items():
        off = 1e3 * np.abs(np.diff(answer['times']) - 1 / arguments.hz)
        p50, p99[role], largest = np.percentile(off, [50, 99, 100])
        print(f'{role:6} {len(off):7}   {p50:.3f} / {p99[role]:.3f} / {largest:.3f}')
    ratio = p99['ours'] / p99['bare']
    print(f'ratio of p99: {ratio:.2f} (at most {GOAL:g})')
    return int(ratio > GOAL)


def priority(answers: dict[str, Any]) -> str:
    """Return which priority the loops had."""
    told = {answer['priority'] for answer in answers.values()}
    return '; '.join(sorted(told)) or 'no priority asked for'


def contract(folder: Path) -> Path:
    """Write the contract of a light arm with forward controllers, and return its file."""
    import yaml

    from openeta_ros.embodiment import load

    data = yaml.safe_load(load('light_arm').path.read_text())
    arm = data['arms']['arm']
    arm['command'] = {'interface': 'forward_position', 'topic': 'controller/commands'}
    arm['gripper']['command'] = {'interface': 'forward_position', 'topic': 'gripper/commands'}
    arm['limits']['acceleration'] = [8.0] * 6
    # What a busy machine does to the streams is not what is measured here.
    data['safety'] = {'watchdog_s': 10.0, 'first_row_rad': 0.2}
    path = folder / 'contract.yaml'
    path.write_text(yaml.safe_dump(data))
    return path


def measured(arguments: argparse.Namespace, times: list[float]) -> list[float]:
    """Return the times that count."""
    return [one for one in times if one > times[0] + WARM_UP_S][: int(arguments.seconds * arguments.hz)]


def ours(arguments: argparse.Namespace) -> None:
    """Drive the arm; print when commands left."""
    from openeta_ros.embodiment import load
    from openeta_ros.envs import EnvFacade, EnvSpec
    from openeta_ros.nodes import servo

    folder = Path(arguments.contract).parent
    servo.END_S = 20.0  # busy as the machine is, its times are waited for
    servo.RemoteFollower.COMMAND = [sys.executable, __file__, *sys.argv[1:], '--role', 'servo', '--socket']
    embodiment = load(arguments.contract)
    options = {'servo_hz': arguments.hz, 'success': 'topic'}
    spec = EnvSpec('arm', 'reach', embodiment, 1_000_000, options=options)
    with EnvFacade.from_spec(spec) as env:
        env.reset(0)
        rows = np.repeat(embodiment.home_qpos[None], ROWS, axis=0)
        rows[:, 0] += 0.2 * np.sin(np.linspace(0, 2 * np.pi, ROWS)) ** 3
        end_s = time.monotonic() + WARM_UP_S + arguments.seconds + 1.0
        while time.monotonic() < end_s:
            env.chunk_step(rows)
    times, told = json.loads((folder / 'times.json').read_text())
    print(json.dumps({'times': measured(arguments, times), 'priority': told}), flush=True)
    os._exit(0)


def send(arguments: argparse.Namespace) -> None:
    """Be the process that commands, and note when."""
    from openeta_ros.nodes import robot_commands, servo

    times: list[float] = []
    prepared = robot_commands.CommandSender.prepared

    def timed(self: Any, command: Any) -> Any:
        send = prepared(self, command)
        if command.channel.gripper:
            return send
        return lambda: (times.append(time.monotonic()), send())

    robot_commands.CommandSender.prepared = timed  # type: ignore[method-assign]
    told: list[str] = ['']
    if arguments.no_priority:
        servo.raise_priority = lambda: ''
    else:
        raised = servo.raise_priority
        servo.raise_priority = lambda: told.__setitem__(0, raised()) or told[0]
    exit_at_once, os._exit = os._exit, lambda code: None
    sys.argv = [sys.argv[0], arguments.socket]
    servo.main()
    (Path(arguments.contract).parent / 'times.json').write_text(json.dumps([times, told[0]]))
    exit_at_once(0)


def bare(arguments: argparse.Namespace) -> None:
    """Sleep until the next period, again and again; print when that was."""
    from openeta_ros.envs.arm_servo import raise_priority

    told = '' if arguments.no_priority else raise_priority()
    times: list[float] = []
    due_s, period_s = time.monotonic(), 1 / arguments.hz
    while len(times) < (arguments.seconds + WARM_UP_S) * arguments.hz + 1:
        times.append(time.monotonic())
        due_s += period_s
        time.sleep(max(due_s - time.monotonic(), 0.0))
    print(json.dumps({'times': measured(arguments, times), 'priority': told}), flush=True)


def drivers(arguments: argparse.Namespace) -> None:
    """Publish what the arm's drivers do, and take its commands and its scene's resets."""
    import rclpy
    from geometry_msgs.msg import PoseStamped  # noqa: F401 (its library is loaded before the rates are kept)
    from rclpy.node import Node
    from sensor_msgs.msg import Image, JointState
    from std_msgs.msg import Bool, Float64MultiArray

    from openeta_msgs.srv import Reset
    from openeta_ros.embodiment import load
    from openeta_ros.nodes.messages import ros_types
    from openeta_ros.observation import image_message, joint_state_message

    rclpy.init()
    node = Node('drivers')
    embodiment = load(arguments.contract)
    arm = embodiment.arms['arm']
    values = dict(zip(arm.joints, arm.home, strict=False)) | {'finger_left': 0.04}
    states = node.create_publisher(JointState, 'joint_states', 10)
    cameras = {name: node.create_publisher(Image, one.topic, 5) for name, one in embodiment.cameras.items()}
    picture = np.random.default_rng(0).integers(0, 255, (240, 320, 3), np.uint8)
    success = node.create_publisher(Bool, 'scene/success', 10)

    def take(message: Any) -> None:
        values.update(zip(arm.joints, message.data, strict=False))

    def tell() -> None:
        stamp = node.get_clock().now().nanoseconds
        states.publish(joint_state_message(values, {}, stamp, types=ros_types()))

    def film() -> None:
        stamp = node.get_clock().now().nanoseconds
        for name, publisher in cameras.items():
            publisher.publish(image_message(picture, stamp, frame_id=name, types=ros_types()))

    node.create_subscription(Float64MultiArray, 'controller/commands', take, 10)
    node.create_subscription(Float64MultiArray, 'gripper/commands', lambda message: None, 10)
    node.create_service(Reset, 'scene/reset', lambda request, response: response)
    node.create_timer(1 / STATE_HZ, tell)
    node.create_timer(1 / CAMERA_HZ, film)
    success.publish(Bool(data=False))
    rclpy.spin(node)


def busy(arguments: argparse.Namespace) -> None:
    """Keep a core busy."""
    while True:
        pass


if __name__ == '__main__':
    sys.exit(main())
