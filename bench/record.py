# SPDX-License-Identifier: Apache-2.0
"""What recording costs and loses: three 640x480 cameras at 30 Hz and joints at 500 Hz, and kills.

    python bench/record.py [--seconds 20] [--kills 20] [--quality best_effort]

One process publishes, the recorder node records. Told are the messages that were sent and that are in the
file, what the recorder says it lost, and its processor time as a share of one core. Then some are killed
at random moments, and it is told what was lost: messages that came more than a second before the kill must
all be there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)

HEIGHT, WIDTH, CAMERAS, CAMERA_HZ, JOINT_HZ = 480, 640, ('front', 'left', 'right'), 30.0, 500.0
JOINTS = '/joint_states'
# What a kill may lose: what came so shortly before it.
KILL_S = 1.0
CONTRACT = """
embodiment: three_cameras
rate_hz: 20
description: {file: robot.urdf}
arms:
  arm:
    joints: [shoulder, elbow]
    base_frame: base
    tool_frame: tool
    home: [0.0, 0.0]
    limits: {position: [[-1, 1], [-1, 1]], velocity: [1, 1]}
cameras: {front: {topic: front/image}, left: {topic: left/image}, right: {topic: right/image}}
state: [{topic: joint_states}]
endpose: {source: none}
align: {clock: front}
"""


def main() -> int:
    """Measure and tell; the exit code is 1 when something is lost that must not be, or is not told."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--seconds', type=float, default=20.0, help='length of the recording')
    parser.add_argument('--kills', type=int, default=5, help='recordings that are killed')
    parser.add_argument('--quality', choices=('reliable', 'best_effort'), default='reliable')
    parser.add_argument('--compression', choices=('none', 'zstd'), default='none')
    parser.add_argument('--role', choices=('publish',), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        publish(arguments.quality, arguments.seconds)
        return 0
    with tempfile.TemporaryDirectory() as name:
        wrong = whole(arguments, Path(name))
        wrong += kills(arguments, Path(name))
    return int(wrong > 0)


def publish(quality: str, seconds: float) -> None:
    """Publish until stdin ends, or for some seconds after the recorder is there; print what was sent."""
    import array
    import threading

    import numpy as np
    import rclpy
    from rclpy.qos import QoSProfile, ReliabilityPolicy
    from sensor_msgs.msg import Image, JointState

    rclpy.init()
    node = rclpy.create_node('robot')
    reliability = ReliabilityPolicy[quality.upper()]
    cameras = [
        node.create_publisher(Image, f'/{name}/image', QoSProfile(depth=16, reliability=reliability))
        for name in CAMERAS
    ]
    joints = node.create_publisher(JointState, JOINTS, QoSProfile(depth=100, reliability=reliability))
    noise = np.random.default_rng(0).integers(0, 256, HEIGHT * WIDTH * 3, dtype=np.uint8)
    picture = Image(height=HEIGHT, width=WIDTH, encoding='rgb8', step=3 * WIDTH)
    picture.data = array.array('B', noise.tobytes())
    state = JointState(name=['shoulder', 'elbow'], position=[0.1, 0.2])
    while not all(one.get_subscription_count() for one in [*cameras, joints]):
        time.sleep(0.02)
    time.sleep(1.0)
    begin = time.monotonic()

    def at(rate_hz: float, job: Any) -> int:
        count = 0
        while count / rate_hz < seconds:
            time.sleep(max(0.0, begin + count / rate_hz - time.monotonic()))
            job()
            count += 1
        return count

    def picture_job() -> None:
        picture.header.stamp = node.get_clock().now().to_msg()
        for camera in cameras:
            camera.publish(picture)

    def joint_job() -> None:
        state.header.stamp = node.get_clock().now().to_msg()
        joints.publish(state)

    sent: dict[str, int] = {}
    other = threading.Thread(target=lambda: sent.update(joints=at(JOINT_HZ, joint_job)))
    other.start()
    count = at(CAMERA_HZ, picture_job)
    other.join()
    late_s = time.monotonic() - begin - seconds
    time.sleep(1.0)
    print(json.dumps({'pictures': count * len(CAMERAS), **sent, 'late_s': round(late_s, 2)}), flush=True)
    sys.stdin.read()


class Recorder:
    """The recorder node and a publisher, in a domain of their own."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, seconds: float) -> None:
        from openeta_ros.nodes.graph import NodeSpec, graph_environment

        (folder / 'contract.yaml').write_text(CONTRACT)
        self._environment = graph_environment()
        environment = self._environment.__enter__()
        values = {
            'embodiment': str(folder / 'contract.yaml'),
            'record': str(folder / 'recording'),
            'compression': arguments.compression,
        }
        self.node = subprocess.Popen(
            NodeSpec('recorder', values).command, env=environment, stdout=subprocess.PIPE, text=True
        )
        command = [sys.executable, __file__, '--role=publish', f'--quality={arguments.quality}']
        self.robot = subprocess.Popen(
            [*command, f'--seconds={seconds}'],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End both."""
        for process in (self.node, self.robot):
            process.kill()
            process.wait()
        self._environment.__exit__(None, None, None)

    def processor_s(self) -> dict[str, float]:
        """Return the processor time (s) of the node's threads so far, by name."""
        times: dict[str, float] = {}
        for folder in Path(f'/proc/{self.node.pid}/task').iterdir():
            name, _, rest = (folder / 'stat').read_text().partition('(')[2].rpartition(')')
            user, system = map(int, rest.split()[11:13])
            times[name] = times.get(name, 0.0) + (user + system) / os.sysconf('SC_CLK_TCK')
        return times


def whole(arguments: argparse.Namespace, folder: Path) -> int:
    """Record once in order; return how many messages are lost without being told."""
    run = Recorder(folder, arguments, arguments.seconds)
    try:
        while not (folder / 'recording.partial').exists():
            time.sleep(0.05)
        time.sleep(2.0)
        before, begin = run.processor_s(), time.monotonic()
        assert run.robot.stdout is not None
        sent = json.loads(run.robot.stdout.readline())
        after, lasted = run.processor_s(), time.monotonic() - begin
        run.node.send_signal(signal.SIGINT)
        told, _ = run.node.communicate(timeout=120.0)
    finally:
        run.close()
    account = custom(folder / 'recording')['account']
    kept = {name: topic['messages'] for name, topic in account['topics'].items()}
    lost = {name: sum(topic['lost'].values()) for name, topic in account['topics'].items()}
    written = sum(file.stat().st_size for file in (folder / 'recording').iterdir()) / 1e6
    pictures = sum(kept[f'/{name}/image'] for name in CAMERAS)
    print(
        f'{arguments.quality}, {arguments.compression}: sent {sent}; {written:.0f} MB; {told.splitlines()[0]}'
    )
    print(f'  in the file: {pictures} pictures, {kept[JOINTS]} joint states; told to be lost: {lost}')
    shares = {name: (after[name] - before.get(name, 0.0)) / lasted for name in after}
    print(f'  processor {100 * sum(shares.values()):.0f} % of a core')
    untold = sent['pictures'] + sent['joints'] - pictures - kept[JOINTS] - sum(lost.values())
    print(f'  lost without being told: {untold}')
    return abs(untold)


def kills(arguments: argparse.Namespace, folder: Path) -> int:
    """Kill recordings; return how many messages are lost that came long enough before."""
    from openeta_ros.episodes.bag import Bag
    from openeta_ros.episodes.repair import repair

    chance, wrong, lost_s = random.Random(0), 0, []
    for kill in range(arguments.kills):
        place = folder / f'kill{kill}'
        place.mkdir()
        run = Recorder(place, arguments, 3600.0)
        try:
            file = place / 'recording.partial/recording.mcap'
            while not file.exists() or file.stat().st_size < 1 << 20:
                time.sleep(0.02)
            time.sleep(chance.uniform(0.0, 3.0))
            killed_ns = time.time_ns()
            run.node.kill()
            run.node.wait()
        finally:
            run.close()
        repair(place / 'recording.partial', place / 'whole')
        with Bag(place / 'whole') as bag:
            stamps = [one.log_ns for one in bag.messages([JOINTS])]
        gaps = [after - before for before, after in itertools.pairwise(stamps)]
        lost_s.append((killed_ns - stamps[-1]) / 1e9)
        wrong += lost_s[-1] > KILL_S + 0.5
        print(
            f'  kill {kill}: {len(stamps)} joint states are kept, the last {lost_s[-1]:.3f} s before it, '
            f'the longest gap {max(gaps) / 1e6:.0f} ms'
        )
    if lost_s:
        print(f'{arguments.kills} kills: at most {max(lost_s):.3f} s are lost')
    return wrong


def custom(folder: Path) -> dict[str, Any]:
    """Return the custom data of a recording that are JSON."""
    from openeta_ros.episodes.bag import Bag

    with Bag(folder) as bag:
        return {name: json.loads(text) for name, text in bag.custom_data.items() if text.startswith('{')}


if __name__ == '__main__':
    sys.exit(main())
