# SPDX-License-Identifier: Apache-2.0
"""A robot description comes over the graph where the contract says so: late, in a namespace, or never."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import contract, written
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile
from ros_graph import environment, node_process, spinning, wait_until
from std_msgs.msg import String

from openeta_msgs.srv import Describe
from openeta_ros.embodiment import EmbodimentError, Kinematics, load
from openeta_ros.nodes.description import load_contract
from openeta_ros.nodes.runtime import Process, Stopping

# As robot_state_publisher sends it.
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
ARM = load('light_arm')
# Published descriptions have tags of prefixes that nobody declared.
URDF = ARM.description_file().read_text(encoding='utf-8').replace('</robot>', '<gz:x a="1"/></robot>')
ROBOT = 'robot_state_publisher'


def file_of(folder: Path, **description: str) -> str:
    data = contract('light_arm')
    data['description'] = description
    del data['simulation']
    return str(written(data, folder).path)


def loaded(node: Node, process: Process, path: str, timeout_s: float = 120.0) -> Any:
    return load_contract(node, process, {'embodiment': path, 'description_timeout_s': timeout_s})


def same_arm(embodiment: Any) -> bool:
    home = ARM.home_qpos[:-1]
    return np.array_equal(Kinematics(embodiment).forward('arm', home), Kinematics(ARM).forward('arm', home))


@pytest.fixture
def robot() -> Iterator[Node]:
    with environment(), spinning(ROBOT, namespace='left') as (node, _):
        yield node


@pytest.mark.parametrize(
    ('topic', 'heard', 'quality'),
    [
        ('robot_description', '/left/robot_description', LATCHED),
        ('model', '/foo', QoSProfile(depth=1)),
        ('/model', '/model', LATCHED),
    ],
)
def test_a_topic_is_waited_for_wherever_it_is_and_however_it_is_offered(
    robot: Node, tmp_path: Path, topic: str, heard: str, quality: QoSProfile
) -> None:
    publisher = robot.create_publisher(String, heard, quality)
    ended = threading.Event()

    def publish() -> None:
        while not ended.wait(0.3):
            publisher.publish(String(data=''))  # a description that is not ready yet
            publisher.publish(String(data=URDF))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        remap = ['--ros-args', '-r', 'model:=/foo']
        with spinning('policy', namespace='left', arguments=remap) as (node, process):
            assert same_arm(loaded(node, process, file_of(tmp_path, topic=topic)))
    finally:
        ended.set()
        thread.join()


def test_a_parameter_is_that_of_robot_state_publisher_in_the_namespace(robot: Node, tmp_path: Path) -> None:
    robot.declare_parameter('robot_description', URDF)
    path = file_of(tmp_path, parameter='robot_description')
    with spinning('policy', namespace='left') as (node, process):
        assert same_arm(loaded(node, process, path))


def test_a_parameter_of_the_node_itself_comes_first(robot: Node, tmp_path: Path) -> None:
    robot.declare_parameter('robot_description', 'nonsense')
    path = file_of(tmp_path, parameter='robot_description')
    with spinning('policy', namespace='left') as (node, process):
        node.declare_parameter('robot_description', URDF)
        assert same_arm(loaded(node, process, path))


def test_what_did_not_come_is_told_with_what_there_is_instead(robot: Node, tmp_path: Path) -> None:
    robot.create_publisher(String, '/right/robot_description', LATCHED)
    robot.create_publisher(String, 'silent', LATCHED)
    robot.set_parameters([Parameter('use_sim_time', value=True)])
    with spinning('policy', namespace='left') as (node, process):
        wait_until(lambda: node.count_publishers('/right/robot_description'))
        wait_until(lambda: node.count_publishers('/left/silent'))
        wait_until(lambda: node.count_services(f'/left/{ROBOT}/get_parameters'))
        for description, told in (
            (
                {'topic': 'robot_description'},
                'nobody publishes /left/robot_description; the nearest there are: /right/robot_description',
            ),
            ({'topic': 'silent'}, 'nothing, or an empty text, came on /left/silent'),
            (
                {'parameter': 'model'},
                'model is not set here, and the node /left/robot_state_publisher does not have it',
            ),
        ):
            with pytest.raises(EmbodimentError) as refused:
                loaded(node, process, file_of(tmp_path, **description), 1.5)
            assert told in str(refused.value)
            assert 'waited 1.5 s for the robot description' in str(refused.value)
    with spinning('policy') as (node, process), pytest.raises(EmbodimentError, match='is not there'):
        loaded(node, process, file_of(tmp_path, parameter='model'), 0.5)


def test_a_wait_ends_when_the_process_does(robot: Node, tmp_path: Path) -> None:
    with spinning('policy', namespace='left') as (node, process):
        threading.Timer(0.3, process.end).start()
        with pytest.raises(Stopping):
            loaded(node, process, file_of(tmp_path, topic='robot_description'))


def test_the_policy_node_waits_while_it_is_configured_and_says_what_it_lacks(tmp_path: Path) -> None:
    path = file_of(tmp_path, topic='robot_description')
    parameters = {'embodiment': path, 'policy': 'examples/zero_policy', 'description_timeout_s': 1.0}
    with (
        environment(),
        node_process('policy', tmp_path / 'log', **parameters),
        spinning('robot') as (node, _),
    ):
        configure = node.create_client(ChangeState, 'policy/change_state')
        describe = node.create_client(Describe, 'policy/describe')
        assert configure.wait_for_service(60.0) and describe.wait_for_service(60.0)

        def call(client: Any, request: Any) -> Any:
            future = client.call_async(request)
            wait_until(future.done, 120.0)
            return future.result()

        change = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE))
        assert not call(configure, change).success
        failure = call(describe, Describe.Request()).failure
        assert 'nobody publishes /robot_description' in failure.message
        publisher = node.create_publisher(String, 'robot_description', LATCHED)
        publisher.publish(String(data=URDF))
        wait_until(lambda: call(configure, change).success, 120.0)


def test_the_bridge_node_ends_with_one_sentence_when_none_comes(tmp_path: Path) -> None:
    path, log = file_of(tmp_path, parameter='robot_description'), tmp_path / 'log'
    with environment(), node_process('bridge', log, embodiment=path, description_timeout_s=0.5) as process:
        assert process.wait(60.0) == 2
    told = log.read_text()
    assert 'the parameter robot_description is not set here' in told and 'Traceback' not in told
