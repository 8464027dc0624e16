# SPDX-License-Identifier: Apache-2.0
"""Three cameras at 30 Hz from another process into observations: our bridge beside the usual way.

    python bench/bridge.py [--seconds 3] [--rounds 3] [--encodings rgb8,bgr8,...|all] [--joints 30]

A publishing process sends three 640x480 pictures, 30 times a second, and joint states with them; one
receiving process makes an observation of each set. Ours is the bridge of the policy node. The usual way is
rclpy's messages, cv_bridge (PyPI's port; OpenCV by hand for what it does not know) for each picture, and
malloc as it comes; it keeps what came by stamp and makes an observation of what is complete, with the same
arrays as ours. Both have the same Fast DDS profile. Rounds take turns, so that what else the machine does
meets both alike; what counts are the ratios within one run. rgb8 has all of the rounds, each other encoding a
third of them.

What is told: observations made (of so many sent), pictures lost, processor time of the receiver as a share of
one core, and time from the set's stamp until its observation is there. All three pictures have one stamp and
are published one after the other, each taking its time; so the time from when the last one's turn came, which
is its stamp where a camera stamps each picture itself, is told too.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)
sys.path.append(str(ROOT / '.venv' / 'bench'))

HEIGHT, WIDTH, CAMERAS, RATE_HZ = 480, 640, ('front', 'left', 'right'), 30.0
JPEG = 'jpeg'
# Bytes of a pixel.
ENCODINGS = {'rgb8': 3, 'bgr8': 3, 'rgba8': 4, 'bgra8': 4, 'mono8': 1, 'mono16': 2, 'bayer_rggb8': 1}
YUV = {'yuv422_yuy2': 2, 'nv12': 1.5}
BY_HAND = ('mono16', *YUV)
# One of each kind; `all` takes half as long again.
USUAL = ('rgb8', 'bgr8', 'mono16', 'bayer_rggb8', 'nv12', JPEG)
# Ours has to make do with at most this share of the usual way's processor time.
GOAL = {'rgb8': 0.5}


def main() -> int:
    """Run the comparison; the exit code is 1 when a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--seconds', type=float, default=3.0, help='how long each run lasts')
    parser.add_argument('--rounds', type=int, default=3, help='runs of each way with rgb8')
    parser.add_argument('--encodings', default=','.join(USUAL), help='which ones; all')
    parser.add_argument(
        '--joints', type=float, default=0.0, help='joint states at their own rate (ours alone)'
    )
    parser.add_argument('--role', choices=('publish', 'ours', 'usual'), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        run = {'publish': publish, 'ours': receive_ours, 'usual': receive_usual}[arguments.role]
        print(json.dumps(run(arguments)))
        return 0
    return compare(arguments)


def compare(arguments: argparse.Namespace) -> int:
    """Run every encoding both ways and print a table."""
    usual_is_there = importlib.util.find_spec('cv_bridge') is not None
    if not usual_is_there:
        print('cv_bridge is not there (see environment/requirements-bench.txt): ours alone')
    print(
        f'{"":12} {"":6} observations   pictures lost   processor   stamp to observation p50 / p99 ms'
        '   from the last picture p50'
    )
    missed = []
    everything = ','.join([*ENCODINGS, *YUV, JPEG])
    for encoding in arguments.encodings.replace('all', everything).split(','):
        ways = ['ours'] + ['usual'] * (usual_is_there and not arguments.joints)
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        rounds = arguments.rounds if encoding == 'rgb8' else max(1, arguments.rounds // 3)
        for _ in range(rounds):
            for way in ways:
                runs[way].append(run_once(way, encoding, arguments))
        for way, results in runs.items():
            middle = {key: statistics.median(result[key] for result in results) for key in results[0]}
            print(
                f'{encoding:12} {way:6} {middle["observations"]:5.0f} of {middle["sent"]:3.0f} '
                f'{middle["lost"]:15.0f} {100 * middle["processor"]:10.1f} % '
                f'{middle["p50_ms"]:17.2f} / {middle["p99_ms"]:5.2f} {middle["last_ms"]:23.2f}'
            )
        if 'usual' in runs:
            shares = [
                statistics.median(result['processor'] for result in runs[way]) for way in ('ours', 'usual')
            ]
            ratio, goal = shares[0] / shares[1], GOAL.get(encoding, 1.0)
            verdict = '' if ratio <= goal else '   MISSED'
            missed += [encoding] * (ratio > goal)
            print(f'{encoding:12} ours takes {100 * ratio:.0f} % of that (goal {100 * goal:.0f} %){verdict}')
    return 1 if missed else 0


def run_once(way: str, encoding: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Run a publisher and a receiver and return what the receiver measured."""
    from openeta_ros.nodes.graph import MALLOC, graph_environment

    with graph_environment() as environment:
        plain = {name: value for name, value in environment.items() if name not in MALLOC}
        shared = [f'--seconds={arguments.seconds}', f'--encodings={encoding}', f'--joints={arguments.joints}']
        command = [sys.executable, __file__, *shared, '--role']
        receiver = subprocess.Popen([*command, way], env=plain, stdout=subprocess.PIPE, text=True)
        publisher = subprocess.Popen(
            [*command, 'publish'], env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            published = json.loads(publisher.communicate(timeout=120.0)[0])
            received = json.loads(receiver.communicate(timeout=60.0)[0])
        finally:
            for process in (publisher, receiver):
                process.kill()
                process.wait()
    latencies, last = received.pop('latencies_ms'), published.pop('last_ms')
    p50, p99 = np.percentile(list(latencies.values()), (50, 99))
    return {
        **received,
        **published,
        'observations': len(latencies),
        'lost': published['sent'] * len(CAMERAS) - received['pictures'],
        'p50_ms': float(p50),
        'p99_ms': float(p99),
        'last_ms': statistics.median(took - last[stamp] for stamp, took in latencies.items()),
    }


def publish(arguments: argparse.Namespace) -> dict[str, Any]:
    """Publish until the time is over; the end is a picture of another size on /end."""
    import rclpy
    from rclpy.qos import QoSProfile, ReliabilityPolicy
    from sensor_msgs.msg import CompressedImage, Image, JointState
    from std_msgs.msg import Empty

    rclpy.init()
    node = rclpy.create_node('cameras')
    quality = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
    kind = CompressedImage if arguments.encodings == JPEG else Image
    publishers = [node.create_publisher(kind, f'/{name}/image', quality) for name in CAMERAS]
    joints = node.create_publisher(JointState, '/joint_states', quality)
    end = node.create_publisher(Empty, '/end', 1)
    pictures = [picture_message(arguments.encodings, index) for index in range(len(CAMERAS))]
    state = JointState(name=embodiment().wire_joints)
    state.position = [0.01 * index for index in range(len(state.name))]
    while not all(publisher.get_subscription_count() for publisher in [*publishers, joints, end]):
        time.sleep(0.05)
    time.sleep(1.0)  # both sides have seen each other

    last_ms: dict[int, float] = {}

    def tick(*messages: tuple[Any, Any]) -> None:
        now = node.get_clock().now()
        for publisher, message in messages:
            message.header.stamp = now.to_msg()
            last_ms[now.nanoseconds] = (time.time_ns() - now.nanoseconds) / 1e6
            publisher.publish(message)

    everything = list(zip(publishers, pictures, strict=True))
    if not arguments.joints:
        everything = [(joints, state), *everything]
    due = [[time.perf_counter(), 1 / RATE_HZ, everything, 0]]
    if arguments.joints:
        due.append([due[0][0], 1 / arguments.joints, [(joints, state)], 0])
    begin = time.perf_counter()
    while time.perf_counter() - begin < arguments.seconds:
        due.sort(key=lambda entry: entry[0])
        time.sleep(max(0.0, due[0][0] - time.perf_counter()))
        tick(*due[0][2])
        due[0][0] += due[0][1]
        due[0][3] += 1
    time.sleep(0.1)
    tick((joints, state))
    time.sleep(0.4)
    end.publish(Empty())
    time.sleep(0.5)
    sent = next(entry[3] for entry in due if entry[2] is everything)
    return {'sent': sent, 'last_ms': last_ms}


def picture_message(encoding: str, seed: int) -> Any:
    """Return a picture of blocks of colour, as a message."""
    import cv2
    from sensor_msgs.msg import CompressedImage, Image

    from openeta_ros.nodes.messages import octets

    random = np.random.default_rng(seed)
    rgb = np.kron(random.integers(0, 256, (15, 20, 3), np.uint8), np.ones((32, 32, 1), np.uint8))
    if encoding == JPEG:
        return CompressedImage(format='jpeg', data=octets(cv2.imencode('.jpg', rgb)[1]))
    pixel = {**ENCODINGS, **YUV}[encoding]
    count = round(HEIGHT * WIDTH * pixel)
    data = rgb if encoding in ('rgb8', 'bgr8') else random.integers(0, 256, count, np.uint8)
    step = WIDTH if encoding == 'nv12' else round(WIDTH * pixel)
    return Image(height=HEIGHT, width=WIDTH, encoding=encoding, step=step, data=octets(data))


def embodiment(encoding: str = 'rgb8') -> Any:
    """Return the light arm with three cameras."""
    import yaml

    from openeta_ros.embodiment import load

    data = yaml.safe_load(load('light_arm').path.read_text())
    transport = 'compressed' if encoding == JPEG else 'raw'
    data['cameras'] = {
        name: {'topic': f'/{name}/image', 'transport': transport, 'size': [HEIGHT, WIDTH]} for name in CAMERAS
    }
    data['state'] = [{'topic': '/joint_states'}]
    data['align'] = {'clock': 'front', 'rule': 'hold'}
    with tempfile.NamedTemporaryFile('w', suffix='.yaml') as file:
        yaml.safe_dump(data, file)
        file.flush()
        return load(file.name)


class Meter:
    """Measures a receiver from its first observation on."""

    def __init__(self) -> None:
        self.latencies_ms: dict[int, float] = {}
        self.pictures = 0
        self._begin: tuple[float, float] | None = None

    def observed(self, stamp_ns: int) -> None:
        """Note an observation."""
        if self._begin is None:
            self._begin = (time.perf_counter(), time.process_time())
        self.latencies_ms[stamp_ns] = (time.time_ns() - stamp_ns) / 1e6
        self._last = (time.perf_counter(), time.process_time())

    def result(self) -> dict[str, Any]:
        """Return what was measured: latencies by stamp."""
        assert self._begin is not None
        wall, used = (last - first for last, first in zip(self._last, self._begin, strict=True))
        return {
            'latencies_ms': self.latencies_ms,
            'pictures': self.pictures,
            'processor': used / wall,
        }


def receive_ours(arguments: argparse.Namespace) -> dict[str, Any]:
    """Receive with the bridge, in the way that the nodes run it."""
    from openeta_ros.nodes import runtime

    runtime.keep_large_blocks()
    import rclpy

    from openeta_ros.embodiment import Kinematics
    from openeta_ros.nodes.bridge import HISTORY
    from openeta_ros.nodes.streams import Bridge

    rclpy.init()
    node = rclpy.create_node('receiver')
    meter, robot = Meter(), embodiment(arguments.encodings)
    bridge = Bridge(
        node,
        robot,
        Kinematics(robot),
        history=HISTORY,
        on_observation=lambda observation: meter.observed(observation.stamp_ns),
    )
    spin_until_the_end(node, runtime.make_executor())
    meter.pictures = sum(one.messages for one in bridge.health()[0] if one.stream.startswith('camera'))
    return meter.result()


def receive_usual(arguments: argparse.Namespace) -> dict[str, Any]:
    """Receive as most nodes do: messages, cv_bridge, what belongs together by stamp."""
    import rclpy
    from cv_bridge import CvBridge
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.qos import QoSProfile, ReliabilityPolicy
    from sensor_msgs.msg import CompressedImage, Image, JointState

    from openeta_ros.embodiment import Kinematics

    rclpy.init()
    node = rclpy.create_node('receiver')
    meter, converter, robot = Meter(), CvBridge(), embodiment()
    kinematics, joints = Kinematics(robot), robot.wire_joints
    gripper = robot.arms['arm'].gripper
    by_stamp: dict[int, dict[str, Any]] = {}
    compressed = arguments.encodings == JPEG

    if compressed:
        convert = converter.compressed_imgmsg_to_cv2
    else:
        convert = by_hand if arguments.encodings in BY_HAND else converter.imgmsg_to_cv2

    def picture(camera: str) -> Callable[[Any], None]:
        def take(message: Any) -> None:
            meter.pictures += 1
            add(message, {f'frames_{camera}': convert(message, 'rgb8')})

        return take

    def joint_state(message: Any) -> None:
        by_name = dict(zip(message.name, message.position, strict=True))
        qpos = np.array([by_name[name] for name in joints])
        qpos[-1] = gripper.to_openness(qpos[-1])
        add(message, {'qpos': qpos, 'endpose': np.append(kinematics.forward('arm', qpos[:-1]), qpos[-1])})

    def add(message: Any, arrays: dict[str, Any]) -> None:
        stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        observation = by_stamp.setdefault(stamp, {})
        observation |= arrays
        if len(observation) == len(CAMERAS) + 2:
            meter.observed(stamp)
            for old in [other for other in by_stamp if other <= stamp]:
                del by_stamp[old]

    quality = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_EFFORT)
    kind = CompressedImage if compressed else Image
    for camera in CAMERAS:
        node.create_subscription(kind, f'/{camera}/image', picture(camera), quality)
    node.create_subscription(JointState, '/joint_states', joint_state, quality)
    spin_until_the_end(node, SingleThreadedExecutor())
    return meter.result()


def by_hand(message: Any, wanted: str) -> np.ndarray:
    """Convert what cv_bridge's port knows no way for (`BY_HAND`), as one does it with OpenCV."""
    import cv2

    if message.encoding == 'mono16':
        values = np.frombuffer(message.data, np.uint16).reshape(message.height, message.width)
        return cv2.cvtColor(cv2.convertScaleAbs(values, alpha=255 / 65535), cv2.COLOR_GRAY2RGB)
    values = np.frombuffer(message.data, np.uint8)
    if message.encoding == 'nv12':
        return cv2.cvtColor(values.reshape(-1, message.width), cv2.COLOR_YUV2RGB_NV12)
    return cv2.cvtColor(values.reshape(message.height, message.width, 2), cv2.COLOR_YUV2RGB_YUY2)


def spin_until_the_end(node: Any, executor: Any) -> None:
    """Spin until the publisher says that it is done."""
    from std_msgs.msg import Empty

    ended: list[Any] = []
    node.create_subscription(Empty, '/end', ended.append, 1)
    executor.add_node(node)
    while not ended:
        executor.spin_once(timeout_sec=0.1)


if __name__ == '__main__':
    os.environ.setdefault('PYTHONPATH', str(ROOT))
    sys.exit(main())
