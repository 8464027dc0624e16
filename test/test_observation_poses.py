# SPDX-License-Identifier: Apache-2.0
"""Tool poses from topics and tf: scalar first, of length 1, in the frame of the contract, continuous."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streams import MS, T0, contract, image, joints, make, pose, transforms

from openeta_ros.embodiment import EmbodimentError
from openeta_ros.observation import Assembler, MissingStream

XYZW = (0.1, 0.2, 0.3, 0.927362)
TOPIC = ('endpose: {source: none}', 'endpose: {source: {topic: tool_pose}}')


def seen_with(assembler: Assembler, topic: str, message: Any, stamp: int) -> np.ndarray:
    assembler.add(topic, message, stamp)
    assembler.add('joint_states', joints(stamp, finger=0.2), stamp)
    assembler.add('camera/front/image_raw', image(stamp), stamp)
    return assembler.at(stamp)['endpose']


@pytest.mark.parametrize('order', ['xyzw', 'wxyz'])
def test_a_pose_has_named_numbers_so_it_is_scalar_first_whatever_the_order_of_bare_ones(
    tmp_path: Path, order: str
) -> None:
    changed = ('endpose: {source: none}', f'endpose: {{source: {{topic: tool_pose, quaternion: {order}}}}}')
    assembler = Assembler(contract(tmp_path, changed), None)
    endpose = seen_with(assembler, 'tool_pose', pose(T0, (0.1, 0.2, 0.3), XYZW), T0)
    np.testing.assert_allclose(endpose, [0.1, 0.2, 0.3, 0.927362, 0.1, 0.2, 0.3, 0.75], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(endpose[3:7]), 1)


@pytest.mark.parametrize(('order', 'numbers'), [('xyzw', XYZW), ('wxyz', (0.927362, 0.1, 0.2, 0.3))])
def test_bare_numbers_are_read_in_the_order_of_the_contract(
    tmp_path: Path, order: str, numbers: tuple[float, ...]
) -> None:
    changed = ('endpose: {source: none}', f'endpose: {{source: {{topic: tool_pose, quaternion: {order}}}}}')
    assembler = Assembler(contract(tmp_path, changed), None)
    layout = make('std_msgs/msg/MultiArrayLayout', dim=[], data_offset=0)
    message = make('std_msgs/msg/Float64MultiArray', layout=layout, data=np.array([0.1, 0.2, 0.3, *numbers]))
    endpose = seen_with(assembler, 'tool_pose', message, T0)
    np.testing.assert_allclose(endpose[:7], [0.1, 0.2, 0.3, 0.927362, 0.1, 0.2, 0.3], atol=1e-6)


def test_signs_continue_along_an_episode(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path, TOPIC), None)
    quaternions = []
    for k in range(40):  # two full turns about z, with a sign that the driver changes as it likes
        half, sign = k * np.pi / 20, (-1) ** (k // 3)
        message = pose(T0 + k * 50 * MS, (0, 0, 0), (0, 0, sign * np.sin(half), sign * np.cos(half)))
        quaternions.append(seen_with(assembler, 'tool_pose', message, T0 + k * 50 * MS)[3:7])
    dots = np.sum(np.array(quaternions)[1:] * np.array(quaternions)[:-1], axis=1)
    assert (dots > 0.9).all()


@pytest.mark.parametrize(
    ('message', 'reason'),
    [
        (pose(T0, (0, 0, 0), (0, 0, 0, 1), frame='world'), "in frame 'world', not 'base'"),
        (pose(T0, (0, 0, 0), (0, 0, 0, 0)), 'a quaternion of zeros'),
        (pose(T0, (0, float('nan'), 0), (0, 0, 0, 1)), 'not finite'),
    ],
)
def test_a_pose_that_cannot_be_right_is_refused_by_name(tmp_path: Path, message: Any, reason: str) -> None:
    assembler = Assembler(contract(tmp_path, TOPIC), None)
    with pytest.raises(MissingStream, match=r'pose of arm \(topic tool_pose\)'):
        seen_with(assembler, 'tool_pose', message, T0)
    assert any(reason in text for text in assembler.rejected)


def test_poses_in_a_frame_that_the_contract_names_are_taken(tmp_path: Path) -> None:
    changed = ('endpose: {source: none}', 'endpose: {source: {topic: tool_pose, frame: world}}')
    assembler = Assembler(contract(tmp_path, changed), None)
    assert seen_with(assembler, 'tool_pose', pose(T0, (1, 2, 3), (0, 0, 0, 1), '/world'), T0)[2] == 3


def test_two_arms_need_a_topic_each(tmp_path: Path) -> None:
    changed = ('endpose: {source: none}', 'endpose: {source: {topic: {left: a, right: b}}}')
    with pytest.raises(EmbodimentError, match='names left, right; needed is each arm: arm'):
        contract(tmp_path, changed)


def test_tf_is_followed_from_base_to_tool_through_static_and_moving_frames(tmp_path: Path) -> None:
    changes = (
        ('endpose: {source: none}', 'endpose: {source: tf}'),
        ('    tool_frame: tool\n', '    tool_frame: tool\n    tool_offset: {xyz: [0, 0, 0.1]}\n'),
    )
    assembler = Assembler(contract(tmp_path, *changes), None)
    half = np.sqrt(0.5)
    static = transforms(
        0, ('world', 'base', (5, 0, 0), (0, 0, half, half)), ('hand', 'tool', (0, 0, 0.2), (0, 0, 0, 1))
    )
    assembler.add('/tf_static', static)
    # In the base: 1 m ahead; the hand's z looks along the base's x.
    moving = transforms(
        T0, ('base', 'hand', (1, 0, 0), (0, half, 0, half)), ('world', 'other', (9, 9, 9), (0, 0, 0, 1))
    )
    endpose = seen_with(assembler, '/tf', moving, T0)
    np.testing.assert_allclose(endpose[:7], [1.3, 0, 0, half, 0, half, 0], atol=1e-12)


def test_tf_that_does_not_connect_base_and_tool_is_named(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path, ('endpose: {source: none}', 'endpose: {source: tf}')), None)
    with pytest.raises(MissingStream, match=r'transform base to tool \(topic /tf\)'):
        seen_with(assembler, '/tf', transforms(T0, ('base', 'hand', (0, 0, 0), (0, 0, 0, 1))), T0)


def test_between_two_poses_the_turn_is_on_the_arc(tmp_path: Path) -> None:
    changes = (TOPIC, ('align: {clock: front,', 'align: {clock: front, rule: interpolate,'))
    assembler = Assembler(contract(tmp_path, *changes), None)
    half = np.sqrt(0.5)
    assembler.add('tool_pose', pose(T0 - 50 * MS, (0, 0, 0), (0, 0, 0, 1)))
    assembler.add('tool_pose', pose(T0 + 50 * MS, (1, 0, 0), (0, 0, -half, -half)))
    for stamp, elbow in ((T0 - 20 * MS, 1.0), (T0 + 60 * MS, 5.0)):
        assembler.add('joint_states', joints(stamp, elbow=elbow))
    for stamp in (T0, T0 + 60 * MS):
        assembler.add('camera/front/image_raw', image(stamp))
    assembler.add('tool_pose', pose(T0 + 60 * MS, (1, 0, 0), (0, 0, 0, 1)))
    seen = assembler.at(T0)
    np.testing.assert_allclose(seen['endpose'][:7], [0.5, 0, 0, np.cos(np.pi / 8), 0, 0, np.sin(np.pi / 8)])
    np.testing.assert_allclose(seen['qpos'][1], 2.0)
