# SPDX-License-Identifier: Apache-2.0
"""The mock node over real DDS: a robot's streams, its controllers, and the scene around it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builtin_interfaces.msg import Duration
from contracts import commanded_arm, contract
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from ros_graph import environment, node_process, spinning, wait_until
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool, Float64MultiArray, String
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from openeta_msgs.srv import Expert, Reset
from openeta_ros.nodes import messages

KEPT = QoSProfile(depth=50, durability=DurabilityPolicy.TRANSIENT_LOCAL)
JOINTS = ['shoulder_yaw', 'shoulder_pitch', 'elbow', 'wrist_roll', 'wrist_pitch', 'wrist_yaw']


class Listener:
    """A node that keeps what the mock says."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.states: list[JointState] = []
        self.success: list[bool] = []
        node.create_subscription(JointState, 'joint_states', self.states.append, KEPT)
        node.create_subscription(Bool, 'scene/success', lambda m: self.success.append(m.data), KEPT)
        self.arm = node.create_publisher(JointTrajectory, 'arm_controller/joint_trajectory', 10)
        self.gripper = node.create_publisher(Float64MultiArray, 'gripper/commands', 10)
        wait_until(lambda: self.arm.get_subscription_count() and self.gripper.get_subscription_count())
        wait_until(lambda: self.states)

    def position(self, joint: str) -> float:
        state = self.states[-1]
        return float(state.position[list(state.name).index(joint)])

    def until(self, condition: Callable[[], object], publish: Callable[[], None]) -> None:
        """Publish, again when it has no effect: what is taken best effort may be lost on a busy machine."""
        deadline = time.monotonic() + 120.0
        while not condition():
            assert time.monotonic() < deadline, 'it did not happen in time'
            publish()
            with contextlib.suppress(AssertionError):
                wait_until(condition, 3.0)

    def move(self, positions: list[float], seconds: float = 0.2, joints: list[str] = JOINTS) -> None:
        """Move the arm and wait until it is there."""
        message = trajectory(positions, seconds, joints)
        goal = list(zip(joints, positions, strict=True))
        self.until(
            lambda: all(abs(self.position(joint) - value) < 0.02 for joint, value in goal),
            lambda: self.arm.publish(message),
        )

    def call(self, kind: Any, name: str, request: Any) -> Any:
        client = self.node.create_client(kind, name)
        assert client.wait_for_service(60.0)
        future = client.call_async(request)
        wait_until(future.done)
        return future.result()

    def set_active(self, controller: str, active: bool) -> Any:
        return self.call(SetBool, f'{controller}/set_active', SetBool.Request(data=active))


def trajectory(positions: list[float], seconds: float = 0.2, joints: list[str] = JOINTS) -> JointTrajectory:
    whole, rest = divmod(seconds, 1.0)
    after = Duration(sec=int(whole), nanosec=int(rest * 1e9))
    point = JointTrajectoryPoint(positions=positions, time_from_start=after)
    return JointTrajectory(joint_names=joints, points=[point])


@pytest.fixture(scope='module')
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Listener, Path]]:
    folder = tmp_path_factory.mktemp('mock')
    path = str(commanded_arm(folder).path)
    with (
        environment(),
        node_process('mock', folder / 'log', embodiment=path, task='reach', camera_hz=20.0),
        spinning('tester') as (node, _),
    ):
        yield Listener(node), folder / 'log'


def test_joint_states_are_those_of_a_joint_state_broadcaster(mock: tuple[Listener, Path]) -> None:
    listener, _ = mock
    (info,) = listener.node.get_publishers_info_by_topic('joint_states')
    assert info.qos_profile.reliability == ReliabilityPolicy.RELIABLE
    assert info.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
    state = listener.states[-1]
    assert list(state.name) == sorted([*JOINTS, 'finger_left', 'finger_right'])
    assert state.header.frame_id == 'base_link'
    assert np.isnan(state.effort).all() and len(state.effort) == len(state.velocity) == 8
    here_ns = listener.node.get_clock().now().nanoseconds
    wait_until(lambda: messages.time_ns(listener.states[-1].header.stamp) > here_ns)
    count = len(listener.states)
    wait_until(lambda: len(listener.states) >= count + 100)
    periods = np.diff([messages.time_ns(one.header.stamp) for one in listener.states[count:]])
    # Every 10 ms; on a busy machine now and then only, but never more often.
    assert periods.mean() > 0.9e7 and periods.min() < 1.6e7


def test_pictures_come_with_their_calibration(mock: tuple[Listener, Path]) -> None:
    pictures: list[Image] = []
    mock[0].node.create_subscription(Image, 'camera/front/image_raw', pictures.append, 10)
    wait_until(lambda: len(pictures) >= 3)
    picture = pictures[-1]
    assert (picture.height, picture.width, picture.encoding) == (60, 80, 'rgb8')
    assert np.std(np.frombuffer(picture.data, np.uint8)) > 10
    assert messages.time_ns(picture.header.stamp) > messages.time_ns(pictures[0].header.stamp)
    assert mock[0].node.count_publishers('camera/front/camera_info') == 1


def test_a_trajectory_moves_the_arm_and_a_wrong_one_is_told_in_the_log(mock: tuple[Listener, Path]) -> None:
    listener, log = mock
    target = [0.2, 0.2, 1.6, 0.1, 1.2, 0.1]
    listener.move(target[::-1], joints=JOINTS[::-1])
    wrong = trajectory([0.0] * 5, joints=JOINTS[:5])
    listener.until(
        lambda: 'rejected: 5 joints are named' in log.read_text(), lambda: listener.arm.publish(wrong)
    )
    wait_until(lambda: abs(listener.position('shoulder_yaw') - 0.2) < 0.02)
    listener.move([0.0] * 6)


def test_a_wrong_length_deactivates_the_gripper_until_it_is_activated(mock: tuple[Listener, Path]) -> None:
    listener, log = mock

    def grip(*values: float) -> None:
        listener.gripper.publish(Float64MultiArray(data=list(values)))

    def at(value: float) -> bool:
        return abs(listener.position('finger_left') - value) < 0.002

    listener.until(lambda: at(0.02), lambda: grip(0.02))
    assert abs(listener.position('finger_right') - 0.02) < 0.004
    listener.until(lambda: 'the controller is deactivated' in log.read_text(), lambda: grip(0.0, 0.0))
    listener.until(
        lambda: 'gripper/commands: rejected: the controller is not active' in log.read_text(),
        lambda: grip(0.04),
    )
    assert at(0.02)
    assert listener.set_active('gripper', True).success
    listener.until(lambda: at(0.04), lambda: grip(0.04))


def test_a_deactivated_arm_holds(mock: tuple[Listener, Path]) -> None:
    listener, log = mock
    assert listener.set_active('arm_controller', False).success
    before = listener.position('shoulder_yaw')
    rejected = 'arm_controller/joint_trajectory: rejected: the controller is not active'
    listener.until(lambda: rejected in log.read_text(), lambda: listener.arm.publish(trajectory([1.0] * 6)))
    assert abs(listener.position('shoulder_yaw') - before) < 0.02
    assert listener.set_active('arm_controller', True).success


def test_the_expert_solves_the_scene_of_a_seed_and_success_is_told(mock: tuple[Listener, Path]) -> None:
    listener, _ = mock
    listener.move([0.0, 0.1, 1.7, 0.0, 1.341593, 0.0], 1.0)
    answer = listener.call(Reset, 'scene/reset', Reset.Request(seed=3))
    assert not answer.failure.kind and messages.time_ns(answer.stamp) > 0
    wait_until(lambda: listener.success and not listener.success[-1])
    rows = messages.array_of(listener.call(Expert, 'scene/expert', Expert.Request()).actions)
    assert rows is not None and rows.shape[1] == 7
    goal = trajectory(rows[-1, :6].tolist(), 1.0)
    listener.until(lambda: listener.success[-1], lambda: listener.arm.publish(goal))
    listener.call(Reset, 'scene/reset', Reset.Request(seed=4))
    wait_until(lambda: not listener.success[-1])


def test_a_contract_without_a_simulation_has_joints_that_move_and_pictures_that_say_so(
    tmp_path: Path,
) -> None:
    data = contract('light_arm')
    description = commanded_arm(tmp_path).description_file()
    cameras = {'hand': {'topic': 'hand/jpeg', 'transport': 'compressed', 'rotate': 90, 'size': [60, 80]}}
    source = {'topic': {'arm': 'tool'}}
    robot = commanded_arm(
        tmp_path,
        simulation={},
        cameras=cameras,
        align={**data['align'], 'clock': 'hand'},
        description={'topic': 'robot_description'},
        endpose={'source': source},
    )
    parameters = {'embodiment': str(robot.path), 'description': str(description)}
    with (
        environment(),
        node_process('mock', tmp_path / 'log', **parameters),
        spinning('tester') as (node, _),
    ):
        from geometry_msgs.msg import PoseStamped

        listener = Listener(node)
        pictures: list[CompressedImage] = []
        poses: list[PoseStamped] = []
        texts: list[str] = []
        node.create_subscription(CompressedImage, 'hand/jpeg', pictures.append, 10)
        node.create_subscription(PoseStamped, 'tool', poses.append, 10)
        node.create_subscription(String, 'robot_description', lambda m: texts.append(m.data), KEPT)
        listener.move([0.1] * 6)
        wait_until(lambda: pictures and poses and texts)
        answer = listener.call(Expert, 'scene/expert', Expert.Request())
        assert answer.failure.kind == 'no_expert'
        assert poses[-1].header.frame_id == 'base' and '<robot' in texts[0]
        from openeta_ros.observation import decode_image

        assert decode_image(pictures[-1]).shape == (80, 60, 3)
    assert 'synthetic pictures' in (tmp_path / 'log').read_text()


@pytest.mark.parametrize(
    ('changes', 'sentence'),
    [
        ({'embodiment': 'light_arm'}, 'arms.arm.command is missing'),
        ({'task': 'fold_laundry'}, "there is no task 'fold_laundry'"),
    ],
)
def test_what_it_cannot_play_is_told_in_one_sentence(
    changes: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    parameters = {'embodiment': str(commanded_arm(tmp_path).path), **changes}
    with environment(), node_process('mock', tmp_path / 'log', **parameters) as process:
        assert process.wait(60.0) == 2
    text = (tmp_path / 'log').read_text()
    assert sentence in text and 'Traceback' not in text


def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    parameters = {'embodiment': str(commanded_arm(tmp_path).path), 'task': 'reach'}
    with environment(), node_process('mock', tmp_path / 'log', **parameters) as process:
        wait_until(lambda: 'joint_trajectory on' in (tmp_path / 'log').read_text())
        time.sleep(0.2)
        process.terminate()
        assert process.wait(60.0) == 0
    assert 'Traceback' not in (tmp_path / 'log').read_text()
