# SPDX-License-Identifier: Apache-2.0
"""Live topics become observations: whatever quality is offered, whoever comes first, the same arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from contracts import contract, written
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from ros_graph import environment, spinning, wait_until
from sensor_msgs.msg import CompressedImage, Image, JointState

from openeta_ros.embodiment import Embodiment, Kinematics, load
from openeta_ros.nodes.bridge import Bridge
from openeta_ros.nodes.messages import ros_types
from openeta_ros.observation import MissingStream, assemble, image_message, joint_state_message

MS = 1_000_000
# Longer than anything takes that is to come.
PATIENCE_S = 60.0
# A deadline that no test lives to see: what is told before it is told for another reason.
NEVER_S = 3600.0
DRIVER = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
KEPT = QoSProfile(
    depth=5, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)


class Robot:
    """Drivers of the contract's streams, in a node of their own."""

    def __init__(self, node: Node, embodiment: Embodiment, quality: QoSProfile, leave_out: str = '') -> None:
        self._sizes = {name: camera.size or (240, 320) for name, camera in embodiment.cameras.items()}
        self.cameras = {
            name: node.create_publisher(Image, camera.topic, quality)
            for name, camera in embodiment.cameras.items()
            if name != leave_out
        }
        self.joints = node.create_publisher(JointState, embodiment.state[0].topic, quality)
        self._random = np.random.default_rng(0)
        self._names = embodiment.wire_joints

    def publish(self, stamp: int) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """Publish random pictures and positions and return them."""
        pictures = {
            name: self._random.integers(0, 256, (*self._sizes[name], 3), np.uint8) for name in self.cameras
        }
        positions = dict(zip(self._names, self._random.normal(size=len(self._names)).tolist(), strict=True))
        self.joints.publish(joint_state_message(positions, {}, stamp, types=ros_types()))
        for name, publisher in self.cameras.items():
            publisher.publish(image_message(pictures[name], stamp, types=ros_types()))
        return pictures, positions


Nodes = tuple[Node, Node]


def come(bridge: Bridge, **messages: int) -> None:
    """Wait until so many messages have come of streams, by a word of their names."""

    def have() -> bool:
        counts = {one.stream: one.messages for one in bridge.health()[0]}
        return all(
            sum(count for stream, count in counts.items() if word in stream) >= wanted
            for word, wanted in messages.items()
        )

    wait_until(have)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with environment(), spinning('robot') as (robot, _), spinning('policy') as (policy, _):
        yield robot, policy


@pytest.fixture(scope='module')
def arm() -> Embodiment:
    return load('light_arm')


@pytest.fixture(scope='module')
def kinematics(arm: Embodiment) -> Kinematics:
    return Kinematics(arm)


def test_best_effort_drivers_are_heard_and_the_arrays_are_those_of_assemble(
    nodes: Nodes, arm: Embodiment, kinematics: Kinematics
) -> None:
    robot = Robot(nodes[0], arm, DRIVER)
    bridge = Bridge(nodes[1], arm, kinematics, history=8)
    publishers = [*robot.cameras.values(), robot.joints]
    wait_until(lambda: all(publisher.get_subscription_count() for publisher in publishers))
    for attempt in range(10):
        stamps = [(3 * attempt + index) * 50 * MS for index in (1, 2, 3)]
        sent = {stamp: robot.publish(stamp) for stamp in stamps}
        with contextlib.suppress(MissingStream):  # one was lost, as it may be
            heard = {stamp: bridge.wait_for(stamp, 10.0)[1] for stamp in stamps}
            break
    else:
        pytest.fail('not three moments on end came')
    for stamp, (pictures, positions) in sent.items():
        seen = heard[stamp]
        expected = assemble(arm, kinematics, pictures, positions, stamp)
        assert seen.stamp_ns == stamp and seen.keys() == expected.keys()
        assert all(np.array_equal(seen[name], expected[name]) for name in expected)
    bridge.close()


def test_colours_are_converted_by_one_thread_which_costs_least(
    nodes: Nodes, arm: Embodiment, kinematics: Kinematics
) -> None:
    cv2.setNumThreads(2)
    Bridge(nodes[1], arm, kinematics, history=8).close()
    assert cv2.getNumThreads() == 1


def test_what_was_published_before_we_came_is_not_lost_where_it_is_kept(
    nodes: Nodes, arm: Embodiment, kinematics: Kinematics
) -> None:
    robot = Robot(nodes[0], arm, KEPT)
    pictures, _ = robot.publish(50 * MS)
    bridge = Bridge(nodes[1], arm, kinematics, history=8)
    streams, _ = bridge.wait_for(50 * MS, PATIENCE_S)
    assert all(np.array_equal(streams.pictures[name], pictures[name]) for name in pictures)
    newest, _ = bridge.wait_for(0, PATIENCE_S)
    assert newest.stamp_ns == 50 * MS
    bridge.close()


def test_a_topic_that_nobody_publishes_is_named_with_those_there_are(
    nodes: Nodes, arm: Embodiment, kinematics: Kinematics
) -> None:
    robot = Robot(nodes[0], arm, KEPT, leave_out='top')
    robot.publish(50 * MS)
    bridge = Bridge(nodes[1], arm, kinematics, history=8)
    come(bridge, front=1, joint=1)
    with pytest.raises(MissingStream) as missing:
        bridge.wait_for(50 * MS, 1.0)
    assert missing.value.streams == (
        'camera top (topic camera/top/image_raw): nobody publishes /camera/top/image_raw; '
        'the nearest there are: /camera/front/image_raw',
    )
    bridge.close()


def test_a_picture_that_does_not_come_is_named_and_the_old_one_is_not_taken(
    nodes: Nodes, arm: Embodiment, kinematics: Kinematics
) -> None:
    robot = Robot(nodes[0], arm, KEPT)
    robot.publish(50 * MS)
    bridge = Bridge(nodes[1], arm, kinematics, history=8)
    bridge.wait_for(50 * MS, PATIENCE_S)
    robot.cameras.pop('top')
    robot.publish(100 * MS)
    come(bridge, front=2, joint=2)
    with pytest.raises(MissingStream, match=r'camera top \(topic camera/top/image_raw\)$'):
        bridge.wait_for(100 * MS, 0.5)
    bridge.close()


def frame(stamp: int, grey: int) -> Image:
    return image_message(np.full((240, 320, 3), grey, np.uint8), stamp, types=ros_types())


class Publishing:
    """Publishes the joint states, and pictures of one camera through a publisher of its own."""

    def __init__(self, node: Node, arm: Embodiment, quality: QoSProfile) -> None:
        self.node = node
        self.robot = Robot(node, arm, KEPT, leave_out='front')
        self.front = node.create_publisher(Image, arm.cameras['front'].topic, quality)

    def publish(self, stamp: int) -> None:
        self.front.publish(frame(stamp, stamp // MS % 250))
        self.robot.publish(stamp)


def test_frames_of_a_best_effort_and_then_of_a_reliable_publisher_arrive_once_each(
    nodes: Nodes, arm: Embodiment, kinematics: Kinematics
) -> None:
    seen: list[int] = []
    bridge = Bridge(
        nodes[1],
        arm,
        kinematics,
        history=8,
        on_observation=lambda observation: seen.append(observation.stamp_ns),
    )
    topic = arm.cameras['front'].topic
    publishing = Publishing(nodes[0], arm, DRIVER)
    wait_until(publishing.front.get_subscription_count)
    sent: list[int] = []

    def publish(count: int) -> None:
        for _ in range(count):
            sent.append((len(sent) + 1) * 50 * MS)
            publishing.publish(sent[-1])
            wait_until(lambda: seen and seen[-1] >= sent[-1])

    def qualities() -> list[ReliabilityPolicy]:
        found = nodes[0].get_subscriptions_info_by_topic(topic)
        return [info.qos_profile.reliability for info in found]

    publish(10)
    first = publishing.front
    publishing.front = nodes[0].create_publisher(Image, topic, KEPT)
    wait_until(lambda: publishing.front.get_subscription_count() and nodes[1].count_publishers(topic) == 2)
    publish(10)
    nodes[0].destroy_publisher(first)  # what is left would be served reliably: a new subscription takes over
    while qualities() != [ReliabilityPolicy.RELIABLE]:
        publish(1)
        assert len(sent) < 5000
    publish(10)
    assert seen == sent
    bridge.close()


def test_a_reliable_stream_goes_on_when_a_best_effort_publisher_joins(
    nodes: Nodes, arm: Embodiment, kinematics: Kinematics
) -> None:
    publishing = Publishing(nodes[0], arm, KEPT)
    publishing.publish(50 * MS)
    bridge = Bridge(nodes[1], arm, kinematics, history=8)
    bridge.wait_for(50 * MS, PATIENCE_S)
    publishing.front = nodes[0].create_publisher(Image, arm.cameras['front'].topic, DRIVER)
    wait_until(publishing.front.get_subscription_count)
    publishing.publish(100 * MS)
    bridge.wait_for(100 * MS, PATIENCE_S)
    bridge.close()


def test_a_quality_that_is_forced_and_not_offered_is_named_before_the_deadline(
    nodes: Nodes, arm: Embodiment, kinematics: Kinematics
) -> None:
    publishing = Publishing(nodes[0], arm, DRIVER)
    bridge = Bridge(nodes[1], arm, kinematics, history=8, reliability='reliable')
    wait_until(publishing.robot.joints.get_subscription_count)
    publishing.publish(50 * MS)
    wait_until(lambda: 'robot' in nodes[1].get_node_names())
    with pytest.raises(MissingStream) as missing:
        bridge.wait_for(50 * MS, NEVER_S)
    assert (
        'camera front (topic camera/front/image_raw): /camera/front/image_raw cannot be received: '
        'RELIABILITY BEST_EFFORT is offered, RELIABLE asked for (by /robot)'
    ) in str(missing.value)
    bridge.close()


def test_a_topic_of_another_type_is_named_before_the_deadline(
    nodes: Nodes, arm: Embodiment, kinematics: Kinematics
) -> None:
    robot = Robot(nodes[0], arm, KEPT, leave_out='front')
    nodes[0].create_publisher(CompressedImage, arm.cameras['front'].topic, KEPT)
    bridge = Bridge(nodes[1], arm, kinematics, history=8)
    robot.publish(50 * MS)
    wait_until(lambda: 'robot' in nodes[1].get_node_names())
    with pytest.raises(MissingStream) as missing:
        bridge.wait_for(50 * MS, NEVER_S)
    assert (
        '/camera/front/image_raw is published as sensor_msgs/msg/CompressedImage (/robot), '
        'and needed is sensor_msgs/msg/Image'
    ) in str(missing.value)
    bridge.close()


def test_near_misses_are_named_the_nearest_first(
    nodes: Nodes, arm: Embodiment, kinematics: Kinematics
) -> None:
    topics = {'/left/camera/front/image_raw', '/camera/front/image_rect', '/camera/wrist/image_raw'}
    for topic in topics:
        nodes[0].create_publisher(Image, topic, KEPT)
    nodes[0].create_publisher(CompressedImage, '/camera/front/image_raw/compressed', KEPT)
    topics.add('/camera/front/image_raw/compressed')
    bridge = Bridge(nodes[1], arm, kinematics, history=8)
    wait_until(lambda: topics <= {name for name, _ in nodes[1].get_topic_names_and_types()})
    trouble = bridge.trouble('camera front (topic camera/front/image_raw)')
    assert trouble is not None
    assert trouble.startswith('nobody publishes /camera/front/image_raw; the nearest there are: ')
    named = trouble.split(': ')[1].split(', ')
    assert named[0] in ('/camera/front/image_rect', '/left/camera/front/image_raw')
    assert '/camera/front/image_raw/compressed (sensor_msgs/msg/CompressedImage)' in named
    bridge.close()


@pytest.mark.parametrize(
    ('written_topic', 'heard'),
    [('joint_states', '/left_arm/joint_states'), ('/joint_states', '/joint_states'), ('positions', '/foo')],
)
def test_namespace_and_remaps_say_where_a_topic_is(
    written_topic: str, heard: str, kinematics: Kinematics, tmp_path: Path
) -> None:
    data = contract('light_arm')
    data['state'] = [{'topic': written_topic}]
    arm = written(data, tmp_path)
    remap = ['--ros-args', '-r', 'positions:=/foo']
    with (
        environment(),
        spinning('robot') as (other, _),
        spinning('policy', namespace='left_arm', arguments=remap) as (node, _),
    ):
        publisher = other.create_publisher(JointState, heard, KEPT)
        bridge = Bridge(node, arm, kinematics, history=8)
        wait_until(publisher.get_subscription_count)
        assert bridge.subscriptions[-1].resolved == heard
        bridge.close()
