# SPDX-License-Identifier: Apache-2.0
"""The same messages, live and from a bag, give the same bytes: with jitter, drops and late ones in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from contracts import two_arms, written
from streams import MS, T0, TYPES, Message, S, bag, header, make, named, pose

from openeta_ros.embodiment import Embodiment, Kinematics, load
from openeta_ros.episodes import demonstration
from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.bag_demonstration import convert
from openeta_ros.observation import (
    Assembler,
    ImageError,
    MissingStream,
    Observation,
    image_message,
    joint_state_message,
    stamp_ns,
)

# Only a bridge that hangs is waited for so long: a busy machine takes its time to start one.
HANGS_S = 300.0


def played(arm: Embodiment, count: int = 60) -> list[Message]:
    """Return an arm's pictures at 20 Hz and joints at 100 Hz in the order of their coming: stamps jitter, one
    in ten is lost, and messages come up to 40 ms late, each topic's in order."""
    random = np.random.default_rng(3)
    messages: list[Message] = []
    topics = [(f'/{camera.topic}', 50 * MS) for camera in arm.cameras.values()] + [('/joint_states', 10 * MS)]
    for topic, period in topics:
        came = T0
        for k in range(count * 50 * MS // period):
            stamp = T0 + k * period + int(random.integers(0, period // 4))
            came = max(came + 1, stamp + int(random.integers(0, 40 * MS)))
            message: Any
            if topic == '/joint_states':
                values = 0.4 * np.sin(k / 40 + np.arange(len(arm.wire_joints)))
                message = joint_state_message(
                    dict(zip(arm.wire_joints, values.tolist(), strict=True)), {}, stamp
                )
            else:
                message = image_message(random.integers(0, 256, (48, 64, 3), np.uint8), stamp)
            if random.random() > 0.1:
                messages.append((topic, message, came))
    return sorted(messages, key=lambda message: message[2])


def recorded(arm: Embodiment, messages: list[Message], folder: Path) -> Mapping[str, Any]:
    """Return the arrays that the bag of the messages gives."""
    with Bag(bag(folder / 'recorded', messages)) as opened:
        account = convert(opened, arm, folder / 'demo.npz', rate='clock')
    assert account.rows and account.dropped
    return demonstration.load(folder / 'demo.npz').arrays


def clock_stamps(arm: Embodiment, messages: list[Message]) -> list[int]:
    """Return the stamps of the clock camera's pictures, as they came."""
    topic = f'/{arm.cameras[arm.align.clock].topic}'
    return [stamp_ns(message) for name, message, _ in messages if name == topic]


def same(arrays: Mapping[str, Any], seen: list[Any]) -> None:
    """Fail when the rows of the arrays are not the observations, byte by byte."""
    assert len(seen) == len(arrays['qpos'])
    for index, observation in enumerate(seen):
        for name, array in observation.items():
            assert array.dtype == arrays[name].dtype
            assert array.tobytes() == arrays[name][index].tobytes(), (index, name)


class Live:
    """Makes observations as the live bridge does: each as soon as all streams have come as far."""

    def __init__(self, arm: Embodiment, stamps: list[int]) -> None:
        self._assembler = Assembler(arm, Kinematics(arm), history=16)
        self._names = {f'/{name.lstrip("/")}': name for name in self._assembler.topics}
        self._waiting = list(stamps)
        self.seen: list[Observation] = []

    def add(self, topic: str, message: Any, came: int) -> None:
        """Take a message."""
        self._assembler.add(self._names[topic], message, came)
        while self._waiting and not self._assembler.waited_for(self._waiting[0]):
            self._make(self._waiting.pop(0))

    def finish(self) -> None:
        """Make the last ones, for which no stream comes any further."""
        while self._waiting:
            self._make(self._waiting.pop(0))

    def _make(self, stamp: int) -> None:
        with contextlib.suppress(MissingStream, ImageError):
            self.seen.append(
                self._assembler.assembled(self._assembler.decoded(self._assembler.paired(stamp)))
            )


def test_what_the_assembler_is_fed_live_gives_the_bytes_of_the_bag(tmp_path: Path) -> None:
    arm = load('light_arm')
    messages = played(arm)
    arrays = recorded(arm, messages, tmp_path)
    live = Live(arm, clock_stamps(arm, messages))
    for topic, message, came in messages:
        live.add(topic, message, came)
    live.finish()
    same(arrays, live.seen)


def test_the_live_bridge_gives_the_bytes_of_the_bag(tmp_path: Path) -> None:
    pytest.importorskip('rclpy')
    from rclpy.qos import QoSProfile
    from rclpy.serialization import deserialize_message
    from ros_graph import environment, spinning, wait_until
    from sensor_msgs.msg import Image, JointState

    from openeta_ros.nodes.streams import Bridge

    arm = load('light_arm')
    messages = played(arm, 20)
    arrays = recorded(arm, messages, tmp_path)
    kinds = {topic: JointState if topic == '/joint_states' else Image for topic, _, _ in messages}
    with environment(), spinning('robot') as (robot, _), spinning('policy') as (policy, _):
        publishers = {
            topic: robot.create_publisher(kind, topic, QoSProfile(depth=1000))
            for topic, kind in kinds.items()
        }
        bridge = Bridge(policy, arm, Kinematics(arm), history=64)

        def behind(sent: int) -> int:
            return sent - sum(one.messages for one in bridge.health()[0])

        wait_until(lambda: all(one.get_subscription_count() for one in publishers.values()))
        for count, (topic, message, _) in enumerate(messages):
            # So few are under way that none is lost, however busy the machine is, and enough for those of one
            # topic to overtake those of another.
            wait_until(lambda count=count: behind(count) < 8)
            data = bytes(TYPES.serialize_cdr(message, message.__msgtype__))
            publishers[topic].publish(deserialize_message(data, kinds[topic]))
        wait_until(lambda: behind(len(messages)) == 0)
        seen = []
        for stamp in clock_stamps(arm, messages):
            with contextlib.suppress(MissingStream):
                seen.append(bridge.wait_for(stamp, 0.0)[1])
        bridge.close()
    # Live, a moment at the very end waits for streams that come no further, and is not seen.
    assert len(seen) >= len(arrays['qpos']) - 2
    same({name: arrays[name][: len(seen)] for name in seen[0]}, seen)


def two_armed(folder: Path) -> Embodiment:
    """Return a contract of two arms with a camera that compresses, one with depth, and poses on topics."""
    data = yaml.safe_load(two_arms(folder).path.read_text(encoding='utf-8'))
    data['cameras'] = {
        'front': {'topic': 'front/compressed', 'transport': 'compressed', 'size': [24, 32], 'rotate': 180},
        'top': {'topic': 'top/image_raw', 'crop': [4, 4, 40, 50], 'depth': {'topic': 'top/depth'}},
    }
    sides = ('left', 'right')
    data['state'] = [{'topic': f'{side}/joint_states', 'prefix': f'{side}_', 'unit': 'deg'} for side in sides]
    data['endpose'] = {'source': {'topic': {side: f'{side}/pose' for side in sides}}}
    data['align'] = {'clock': 'front', 'rule': 'interpolate', 'max_age_s': 0.2}
    return written(data, folder)


def played_by_two(robot: Embodiment, count: int) -> list[Message]:
    """Return what two arms sent, in the order of its coming: late, lost, damaged, and long overtaken."""
    random = np.random.default_rng(5)

    def front(stamp: int) -> Any:
        pixels = random.integers(0, 256, (48, 64, 3), np.uint8)
        data = cv2.imencode('.jpg', pixels)[1].reshape(-1)
        return make('sensor_msgs/msg/CompressedImage', header=header(stamp), format='jpeg', data=data)

    def top(stamp: int) -> Any:
        return image_message(random.integers(0, 256, (48, 64, 3), np.uint8), stamp)

    def depth(stamp: int) -> Any:
        message = image_message(np.zeros((48, 64, 3), np.uint8), stamp)
        message.encoding, message.step = '16UC1', 128
        message.data = random.integers(0, 3, (48, 64), np.uint16).view(np.uint8).reshape(-1)
        return message

    def joint_state(side: str, stamp: int) -> Any:
        names = [name.removeprefix(f'{side}_') for name in robot.wire_joints if name.startswith(side)]
        values = random.uniform(-90, 90, len(names))
        order = random.permutation(len(names))
        return named(stamp, [names[k] for k in order], values[order])

    def tool(side: str, stamp: int) -> Any:
        return pose(stamp, random.normal(size=3), random.normal(size=4), f'{side}_base')

    streams: dict[str, tuple[int, Callable[[int], Any]]] = {
        '/front/compressed': (50, front),
        '/top/image_raw': (33, top),
        '/top/depth': (33, depth),
        '/left/joint_states': (10, partial(joint_state, 'left')),
        '/right/joint_states': (8, partial(joint_state, 'right')),
        '/left/pose': (20, partial(tool, 'left')),
        '/right/pose': (25, partial(tool, 'right')),
    }
    messages: list[Message] = []
    for topic, (period_ms, made) in streams.items():
        came = T0
        for k in range(count * 50 // period_ms):
            stamp = T0 + (k * period_ms + int(random.integers(0, 1 + period_ms // 4))) * MS
            came = max(came + 1, stamp + int(random.integers(0, 40 * MS)))
            if random.random() > 0.1:
                messages.append((topic, made(stamp), came))
    overtaken = joint_state('left', T0 + 100 * MS), T0 + 1300 * MS
    messages.append(('/left/joint_states', *overtaken))
    broken = front(T0 + 1010 * MS)
    broken.data = broken.data[:300]
    messages.append(('/front/compressed', broken, T0 + 1010 * MS))
    return sorted(messages, key=lambda message: message[2])


def began(robot: Embodiment, stamp: int) -> list[Message]:
    """Return one message of each stream, all at one moment and always the same but for it."""
    one: dict[str, Message] = {}
    for topic, message, _ in played_by_two(robot, 4):
        message.header.stamp = header(stamp).stamp
        one.setdefault(topic, (topic, message, stamp))
    return list(one.values())


def test_a_bridge_process_gives_the_bytes_of_the_bag_for_two_arms(tmp_path: Path) -> None:
    pytest.importorskip('rclpy')
    from rclpy.qos import QoSProfile
    from rclpy.serialization import deserialize_message
    from ros_graph import environment, node_process, spinning, wait_until

    from openeta_msgs.msg import Observation as ObservationMessage
    from openeta_ros.nodes.messages import arrays_of, time_ns
    from openeta_ros.nodes.subscription import message_class

    robot = two_armed(tmp_path)
    messages = played_by_two(robot, 40)
    first = T0 - 20 * S
    arrays = recorded(robot, [*began(robot, first), *messages], tmp_path)
    live = Live(robot, clock_stamps(robot, [*began(robot, first), *messages]))
    kinds = {topic: message_class(message.__msgtype__, topic) for topic, message, _ in messages}
    heard: list[tuple[int, dict[str, np.ndarray]]] = []

    def hear(message: ObservationMessage) -> None:
        heard.append((time_ns(message.header.stamp), arrays_of(message.arrays)))

    with (
        environment(),
        node_process('bridge', tmp_path / 'log', embodiment=str(robot.path)),
        spinning('robots') as (node, _),
    ):
        publishers = {
            topic: node.create_publisher(kind, topic, QoSProfile(depth=1000)) for topic, kind in kinds.items()
        }

        def publish(topic: str, message: Any) -> None:
            data = bytes(TYPES.serialize_cdr(message, message.__msgtype__))
            publishers[topic].publish(deserialize_message(data, kinds[topic]))

        node.create_subscription(ObservationMessage, 'bridge/observation', hear, QoSProfile(depth=1000))
        wait_until(lambda: all(one.get_subscription_count() for one in publishers.values()), HANGS_S)
        # It makes none before it knows that somebody listens: until then the first moment is begun anew.
        stamps = iter(range(first, T0, MS))

        def begun() -> bool:
            for topic, message, _ in began(robot, next(stamps)):
                publish(topic, message)
            return bool(heard)

        wait_until(begun, HANGS_S)
        for topic, message, came in began(robot, first):
            live.add(topic, message, came)
        seen: list[tuple[int, dict[str, np.ndarray]]] = []

        def all_seen() -> bool:
            seen[:] = [heard[0], *(one for one in heard if one[0] >= T0)]
            return len(seen) >= len(live.seen)

        for topic, message, came in messages:
            # Each observation is heard before more is sent, so that none is lost however busy the machine is.
            publish(topic, message)
            live.add(topic, message, came)
            wait_until(all_seen)
    # Live, a moment at the very end waits for streams that come no further, and is not seen.
    assert len(live.seen) == len(seen) >= len(arrays['qpos']) - 3
    times = [round((stamp - T0) / 1e9, 6) for stamp, _ in seen[1:]]
    assert times == np.round(arrays['times'][1 : len(seen)] - 20.0, 6).tolist()
    same({name: arrays[name][: len(seen)] for name in seen[0][1]}, [made for _, made in seen])
    assert np.isnan(arrays['depth_top']).any() and 'endpose' in seen[0][1]
