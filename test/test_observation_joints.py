# SPDX-License-Identifier: Apache-2.0
"""Joints are found by name in every message; what is missing in one is missing, not filled in."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import streams
from streams import MS, T0, contract, image, joints, named

from openeta_ros.embodiment import Kinematics, load
from openeta_ros.observation import Assembler, MissingStream, assemble, joint_state_message
from openeta_ros.observation.continuity import Continuity

UR = ['shoulder_pan', 'shoulder_lift', 'elbow', 'wrist_1', 'wrist_2', 'wrist_3']
WITHOUT_GRIPPER = (
    ('    joints: [shoulder, elbow]\n', f'    joints: [{", ".join(UR)}]\n'),
    ('    gripper: {joint: finger, open: 0.0, closed: 0.8}\n', ''),
    ('home: [0.0, 0.0, 1.0]', 'home: [0, 0, 0, 0, 0, 0]'),
    ('limits: {position: [[-1, 1], [-1, 1]], velocity: [1, 1]}', 'limits: {velocity: [1, 1, 1, 1, 1, 1]}'),
)


def at(assembler: Assembler, stamp: int) -> np.ndarray:
    assembler.add('camera/front/image_raw', image(stamp))
    return assembler.at(stamp)['qpos']


def test_any_order_and_extra_joints_give_the_same_row_and_a_missing_or_double_one_gives_none(
    tmp_path: Path,
) -> None:
    assembler = Assembler(contract(tmp_path, *WITHOUT_GRIPPER), None)
    values = dict(zip(UR, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), strict=True))
    first = ['elbow', 'shoulder_lift', 'shoulder_pan', 'wrist_1', 'wrist_2', 'wrist_3']
    messages = [first, first[::-1], [*first, 'tool'], first[1:], [*first, 'elbow']]
    for k, names in enumerate(messages):
        stamp = T0 + k * 50 * MS
        assembler.add('joint_states', named(stamp, names, [values.get(name, 9.0) for name in names]))
        if k < 3:
            np.testing.assert_array_equal(at(assembler, stamp), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
        else:  # the elbow of 50 ms ago is young enough, and is not held all the same
            with pytest.raises(MissingStream, match=r'joint elbow .*no position at this stamp'):
                at(assembler, stamp)
    rejected = {'joint states (topic joint_states): without elbow': 1}
    assert assembler.rejected == {**rejected, 'joint states (topic joint_states): elbow twice': 1}


def test_empty_velocities_are_right_and_empty_names_are_refused(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), None)
    assembler.add('joint_states', joints(T0, 0.5, 0.6))
    np.testing.assert_array_equal(at(assembler, T0), [0.5, 0.6, 1.0])
    assembler.add('joint_states', named(T0 + 50 * MS, [], [1.0, 2.0, 3.0]))
    with pytest.raises(MissingStream):
        at(assembler, T0 + 50 * MS)
    assert assembler.rejected == {'joint states (topic joint_states): no names': 1}


def test_messages_without_names_are_read_by_the_names_of_the_contract(tmp_path: Path) -> None:
    state = '{topic: joint_states, max_age_s: 0.1}'
    named_there = ('- ' + state, '- {topic: joint_states, joints: [elbow, finger, shoulder]}')
    assembler = Assembler(contract(tmp_path, named_there), None)
    assembler.add('joint_states', named(T0, [], [1.0, 0.8, 3.0]))
    np.testing.assert_allclose(at(assembler, T0), [3.0, 1.0, 0.0])


def test_a_prefix_is_for_names_that_a_driver_sends(tmp_path: Path) -> None:
    state = '- {topic: joint_states, max_age_s: 0.1}'
    both = (state, '- {topic: joint_states, prefix: x_, joints: [elbow, finger, shoulder]}')
    assembler = Assembler(contract(tmp_path, both), None)
    for stamp, names in ((T0, []), (T0 + 50 * MS, ['elbow', 'finger', 'shoulder'])):
        assembler.add('joint_states', named(stamp, names, [1.0, 0.8, 3.0]))
    np.testing.assert_allclose(at(assembler, T0), [3.0, 1.0, 0.0])
    assert {'elbow', 'x_elbow'} <= set(assembler._buffers.streams_of)


def test_degrees_and_encoder_counts_become_radians_and_metres(tmp_path: Path) -> None:
    changes = (
        '- {topic: joint_states, max_age_s: 0.1}',
        '- {topic: joint_states, unit: deg, scales: {finger: {scale: 0.001, offset: -0.1}}}',
    )
    assembler = Assembler(contract(tmp_path, changes), None)
    assembler.add('joint_states', joints(T0, 90.0, -45.0, 500.0))
    np.testing.assert_allclose(at(assembler, T0), [math.pi / 2, -math.pi / 4, 0.5])


def test_arm_and_gripper_on_topics_of_their_own_have_each_their_age(tmp_path: Path) -> None:
    changes = (
        '- {topic: joint_states, max_age_s: 0.1}',
        '- {topic: arm, max_age_s: 0.02}\n  - {topic: hand, max_age_s: 0.5, prefix: f}',
    )
    assembler = Assembler(contract(tmp_path, changes), None)
    assembler.add('hand', joint_state_message({'inger': 0.8}, {}, T0 - 400 * MS))
    assembler.add('arm', joint_state_message({'shoulder': 1.0, 'elbow': 2.0, 'wheel': 9.0}, {}, T0 - 15 * MS))
    assembler.add('camera/front/image_raw', image(T0))
    seen = assembler.latest()
    assert seen is not None
    np.testing.assert_array_equal(seen['qpos'], [1.0, 2.0, 0.0])
    assembler.add('camera/front/image_raw', image(T0 + 10 * MS))
    with pytest.raises(MissingStream, match=r'joint shoulder .*nothing within 0.02 s before'):
        assembler.paired(T0 + 10 * MS)


def test_a_position_that_is_not_finite_makes_no_row_until_the_next_one(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), None)
    for k, elbow in enumerate((0.1, math.nan, 0.3)):
        stamp = T0 + k * 50 * MS
        assembler.add('joint_states', joints(stamp, elbow=elbow))
        if math.isnan(elbow):
            with pytest.raises(MissingStream, match='joint elbow'):
                at(assembler, stamp)
        else:
            assert at(assembler, stamp)[1] == elbow
    begun = [condition for condition in assembler.conditions if condition.kind == 'rejected']
    assert [(one.since_ns, one.until_ns, one.count) for one in begun] == [(T0 + 50 * MS, T0 + 100 * MS, 1)]


def test_a_kind_of_message_that_keeps_coming_lacks_nothing(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), None)
    for k in range(12):
        stamp = T0 + k * 10 * MS
        if k % 2:
            assembler.add('joint_states', joint_state_message({'finger': k / 100}, {}, stamp))
        else:
            assembler.add('joint_states', joints(stamp, elbow=k / 100))
    assembler.add('camera/front/image_raw', image(stamp))
    seen = assembler.latest()
    assert seen is not None and seen['qpos'][1] == 0.10


def test_a_gripper_is_its_openness_and_its_mimics_are_no_part_of_the_row() -> None:
    arm = load('light_arm')
    positions = {**dict.fromkeys(arm.wire_joints, 0.1), 'finger_left': 0.01, 'finger_right': 0.03}
    pictures = {name: streams.picture(1, (240, 320)) for name in arm.cameras}
    seen = assemble(arm, Kinematics(arm), pictures, positions, 5)
    assert seen['qpos'].shape == (7,) and seen['qpos'][6] == 0.25 and seen['endpose'][7] == 0.25


def test_a_joint_without_end_turns_on_where_its_driver_begins_again() -> None:
    arm = load('light_arm')
    urdf = arm.description_file().read_text(encoding='utf-8')
    head, tail = urdf.split('<joint name="wrist_yaw" type="revolute"')
    kinematics = Kinematics(arm, f'{head}<joint name="wrist_yaw" type="continuous"{tail}')
    continuity = Continuity(arm, kinematics)
    rows = np.zeros((4, 7))
    rows[:, 5] = [3.0, -3.0, -2.0, 3.1]
    rows[:, 0] = [3.0, -3.0, -2.0, 3.1]  # has limits: stays as it is
    seen = np.stack([continuity.continued(row, None)[0] for row in rows])
    np.testing.assert_allclose(seen[:, 5], np.unwrap(rows[:, 5]))
    np.testing.assert_array_equal(seen[:, 0], rows[:, 0])


def test_a_description_with_prefixes_that_it_does_not_declare_is_read() -> None:
    arm = load('light_arm')
    urdf = arm.description_file().read_text(encoding='utf-8')
    odd = urdf.replace('<link name="base">', '<xacro:arg name="x"/><link name="base"><sensor:s x:y="1"/>', 1)
    home = arm.home_qpos[:6]
    np.testing.assert_array_equal(
        Kinematics(arm, odd).forward('arm', home), Kinematics(arm).forward('arm', home)
    )
