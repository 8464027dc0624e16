# SPDX-License-Identifier: Apache-2.0
"""How long `openeta demonstration` takes, beside decoding the same pictures with OpenCV and nothing else.

Three cameras of 640x480 at 30 Hz and joints at 250 Hz, six seconds, MCAP: the pictures once as JPEG, once as
rgb8 (for which OpenCV alone copies and swaps channels). Each runs in a process of its own. OpenCV alone has
the messages in memory and decodes one after the other in one thread; ours reads the bag, decodes in threads,
and writes the file. So both are told: the time that one waits, and that of all processors.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from openeta_ros.embodiment import load
from openeta_ros.episodes.bag import Bag, decoder
from openeta_ros.episodes.bag_demonstration import convert
from openeta_ros.episodes.machine import keep_large_blocks
from openeta_ros.observation import image_message, joint_state_message

CAMERAS, HEIGHT, WIDTH, CAMERA_HZ, JOINT_HZ = ('left', 'right', 'wrist'), 480, 640, 30, 250
START_NS = 1_700_000_000_000_000_000
COMPRESSED = 'sensor_msgs/msg/CompressedImage'
MOST_TIMES = 1.5


def picture(k: int, camera: int) -> np.ndarray:
    """Return a scene with edges, shading and noise, so that its JPEG is as large as a camera's."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    shade = (x * (camera + 1) + y + 4 * k) % 256
    rgb = np.stack([shade, (shade + y // 2) % 256, 255 - shade], axis=2).astype(np.uint8)
    cv2.circle(rgb, (50 + 3 * k % 500, 240), 60, (200, 40, 30), -1)
    noise = np.random.default_rng(k).integers(-9, 10, (HEIGHT, WIDTH, 1))
    return np.clip(rgb + noise, 0, 255).astype(np.uint8)


def write(folder: Path, kind: str, seconds: float) -> None:
    """Write the bag."""
    store, arm = get_typestore(Stores.ROS2_JAZZY), load('light_arm')
    events: list[tuple[int, str, Any]] = []
    for k in range(int(seconds * JOINT_HZ)):
        stamp = START_NS + k * 1_000_000_000 // JOINT_HZ
        positions = dict.fromkeys(arm.wire_joints, 0.01)
        events.append((stamp, '/joint_states', joint_state_message(positions, {}, stamp)))
    for k in range(int(seconds * CAMERA_HZ)):
        stamp = START_NS + k * 1_000_000_000 // CAMERA_HZ
        for number, name in enumerate(CAMERAS):
            message = image_message(picture(k, number), stamp)
            if kind == 'jpeg':
                rgb = message.data.reshape(HEIGHT, WIDTH, 3)
                data = cv2.imencode('.jpg', rgb[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 90])[1].reshape(-1)
                message = store.types[COMPRESSED](header=message.header, format='jpeg', data=data)
            events.append((stamp, f'/{name}', message))
    writer, connections = Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP), {}
    with writer:
        for stamp, topic, message in sorted(events, key=lambda event: event[0]):
            name = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, name, typestore=store)
            writer.write(connections[topic], stamp, store.serialize_cdr(message, name))


def contract(folder: Path, kind: str) -> Path:
    """Write the contract of the bag."""
    text = load('light_arm').path.read_text(encoding='utf-8')
    first, last = text.index('cameras:'), text.index('state:')
    transport = 'compressed' if kind == 'jpeg' else 'raw'
    cameras = ''.join(f'  {name}: {{topic: /{name}, transport: {transport}}}\n' for name in CAMERAS)
    text = (text[:first] + f'cameras:\n{cameras}' + text[last:]).replace(
        'clock: front', f'clock: {CAMERAS[0]}'
    )
    path = folder / 'bench.yaml'
    path.write_text(text, encoding='utf-8')
    return path


def ours(folder: Path) -> tuple[float, float]:
    """Convert the bag, every picture a row; return the seconds, by the clock and of the processors."""
    robot = load(folder / 'bench.yaml')
    (folder / 'demo.npz').unlink(missing_ok=True)
    begin, before = time.perf_counter(), time.process_time()
    with Bag(folder / 'bag') as bag:
        convert(bag, robot, folder / 'demo.npz', rate='clock')
    return time.perf_counter() - begin, time.process_time() - before


def opencv(folder: Path) -> tuple[float, float]:
    """Decode the pictures of the bag, which are in memory already; return the seconds, by the clock and of
    the processor."""
    decode = decoder()
    with Bag(folder / 'bag') as bag:
        messages = [decode(recorded) for recorded in bag.messages([f'/{name}' for name in CAMERAS])]
    begin, before = time.perf_counter(), time.process_time()
    for message in messages:
        if hasattr(message, 'format'):
            cv2.cvtColor(cv2.imdecode(message.data, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
        else:
            cv2.cvtColor(message.data.reshape(HEIGHT, WIDTH, 3), cv2.COLOR_BGR2RGB)
    return time.perf_counter() - begin, time.process_time() - before


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--seconds', type=float, default=6.0, help='length of the recording')
    parser.add_argument('--only', nargs=2, metavar=('WHAT', 'FOLDER'), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        keep_large_blocks()  # as the command does; for both alike
        what, folder = arguments.only
        seconds, processor = {'ours': ours, 'opencv': opencv}[what](Path(folder))
        # Not ru_maxrss: it begins with that of the process that started this one.
        status = Path('/proc/self/status').read_text(encoding='utf-8')
        peak = int(status.split('VmHWM:')[1].split()[0]) / 1024
        print(json.dumps({'seconds': seconds, 'processor': processor, 'peak_mib': peak}))
        return
    print(f'{len(CAMERAS)} cameras {WIDTH}x{HEIGHT} at {CAMERA_HZ} Hz, {arguments.seconds:g} s')
    for kind in ('jpeg', 'rgb8'):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write(folder / 'bag', kind, arguments.seconds)
            contract(folder, kind)
            runs = {what: [_run(what, folder) for _ in range(3)] for what in ('opencv', 'ours')}
        best = {what: min(run['seconds'] for run in runs[what]) for what in runs}
        used = {what: min(run['processor'] for run in runs[what]) for what in runs}
        print(
            f'{kind}: openeta demonstration {best["ours"]:.2f} s, OpenCV alone {best["opencv"]:.2f} s, '
            f'{best["ours"] / best["opencv"]:.2f} times (at most {MOST_TIMES} for jpeg); processor '
            f'{used["ours"]:.2f} s, {used["opencv"]:.2f} s, {used["ours"] / used["opencv"]:.2f} times; '
            f'peak {max(run["peak_mib"] for run in runs["ours"]):.0f} MiB'
        )


def _run(what: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, __file__, '--only', what, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


if __name__ == '__main__':
    main()
