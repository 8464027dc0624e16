# SPDX-License-Identifier: Apache-2.0
"""What a contract says, and what is said about a wrong one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from contracts import QUICK_ARM, contract, described, small_pictures, two_arms, written

from openeta_ros.embodiment import EmbodimentError, Gripper, Kinematics, available, load, resolve_uri

WRONG = """\
embodiment: bad robot
rate_hz: 0
rate_hz: true
description: {file: a.urdf, topic: robot_description}
arms:
  arm:
    joints: [a, b, a]
    gripper: {joint: g, open: 0.5, closed: 0.5, mimics: {b: 1.0}}
    base_frame: base
    tool_offset: {wxyz: [2, 0, 0, 0]}
    home: [0, 0]
    limits:
      position: [[0, 1], [1, "x"], [2, 1]]
      velocity: [1, 2]
      acceleration: from_urdf
    colour: red
cameras:
  front: {topic: /front/image_raw, rotate: 45, size: [240, 0]}
  1: {topic: x}
state: []
endpose: {source: guess}
align: {clock: side, rule: nearest, max_age_s: .nan}
safety: {workspace: {min: [0, 0, 0], max: [1, -1, 1]}}
simulation: {gains: {z: {kp: 1, kv: 1, force: 1}}}
"""


def problems_of(text: str, folder: Path) -> list[tuple[int | None, str]]:
    path = folder / 'wrong.yaml'
    path.write_text(text, encoding='utf-8')
    with pytest.raises(EmbodimentError) as caught:
        load(path)
    assert str(path) in str(caught.value)
    return [tuple(problem) for problem in caught.value.problems]


def test_every_problem_is_told_at_once_with_its_line(tmp_path):
    found = [(line, message.split(':')[0]) for line, message in problems_of(WRONG, tmp_path)]
    assert found == [
        (1, 'embodiment'),
        (2, 'rate_hz'),
        (3, 'rate_hz'),
        (4, 'description'),
        (6, 'arms.arm.tool_frame'),
        (7, 'arms.arm.joints.2'),
        (8, 'arms.arm.gripper.open'),
        (8, 'arms.arm.gripper.mimics.b'),
        (10, 'arms.arm.tool_offset.wxyz'),
        (11, 'arms.arm.home'),
        (13, 'arms.arm.limits.position.1.1'),
        (13, 'arms.arm.limits.position.2'),
        (14, 'arms.arm.limits.velocity'),
        (15, 'arms.arm.limits.acceleration'),
        (16, 'arms.arm.colour'),
        (18, 'cameras.front.size.1'),
        (18, 'cameras.front.rotate'),
        (19, 'cameras.1'),
        (20, 'state'),
        (21, 'endpose.source'),
        (22, 'align.max_age_s'),
        (22, 'align.clock'),
        (22, 'align.rule'),
        (23, 'safety.workspace.min.1'),
        (24, 'simulation.gains.z'),
        (24, 'simulation.gains'),
    ]


def test_a_problem_names_the_value_and_what_is_expected(tmp_path):
    messages = dict(problems_of(WRONG, tmp_path)[::-1])
    assert (
        messages[14] == 'arms.arm.limits.velocity: has 2 values; 3 are expected, one for each of the joints'
    )
    assert messages[3] == 'rate_hz: given twice, first in line 2'


def test_each_mistake_alone_is_one_problem(tmp_path):
    data = contract('light_arm')
    data['rate_hz'] = -20
    data['safety'] = {'on_limit': 'ignore'}
    with pytest.raises(EmbodimentError) as caught:
        written(data, tmp_path)
    assert [problem.message for problem in caught.value.problems] == [
        'rate_hz: input should be greater than 0; found -20',
        "safety.on_limit: input should be 'refuse' or 'clamp'; found 'ignore'",
    ]


@pytest.mark.parametrize(
    ('change', 'sentence'),
    [
        ({'jerk': [100.0] * 6}, 'limits: acceleration is missing, and a limit of jerk needs it'),
        (
            {'command': 'joint_trajectory'},
            'limits: acceleration is missing, and an arm that is commanded needs it',
        ),
        (
            {'command': 'forward_position', 'acceleration': [8.0] * 6, 'order': ['elbow', 'finger_left']},
            'command.joints: must be these, in the order of the controller: shoulder_yaw, shoulder_pitch, '
            'elbow, wrist_roll, wrist_pitch, wrist_yaw, finger_left',
        ),
    ],
)
def test_what_an_arm_needs_to_be_commanded_is_told(tmp_path, change, sentence):
    data = contract('light_arm')
    arm, change = data['arms']['arm'], dict(change)
    interface, order = change.pop('command', None), change.pop('order', None)
    arm['limits'].update(change)
    if interface:
        arm['command'] = {'interface': interface, 'topic': '/commands'} | ({'joints': order} if order else {})
    with pytest.raises(EmbodimentError) as caught:
        written(data, tmp_path)
    assert [problem.message for problem in caught.value.problems] == [f'arms.arm.{sentence}']


def test_a_command_carries_the_joints_in_the_order_of_its_controller(tmp_path):
    data = contract('light_arm')
    arm = data['arms']['arm']
    arm['limits']['acceleration'] = [8.0] * 6
    arm['command'] = {'interface': 'forward_position', 'topic': '/commands'}
    wire = (*arm['joints'], 'finger_left')
    assert written(data, tmp_path).arms['arm'].command_joints == wire
    arm['command']['joints'] = sorted(wire)
    assert written(data, tmp_path).arms['arm'].command_joints == tuple(sorted(wire))
    del arm['command']['joints']
    arm['gripper']['command'] = {'interface': 'gripper_command', 'topic': '/gripper', 'max_effort': 20}
    assert written(data, tmp_path).arms['arm'].command_joints == tuple(arm['joints'])


@pytest.mark.parametrize(
    ('text', 'line', 'words'),
    [
        ('', 1, 'mapping'),
        ('- a\n- b\n', 1, 'mapping'),
        ('embodiment: x\narms: {a: [1,\n', 3, 'not YAML'),
        ('a: 1\n---\nb: 2\n', 2, 'not YAML'),
        ('embodiment: x\n\tarms: 1\n', 2, 'not YAML'),
        ('embodiment: 2020-13-01\n', None, 'month must be in 1..12'),
        ('rate_hz: !!int many\n', None, "not YAML: invalid literal for int() with base 10: 'many'"),
        ('embodiment: x\0\n', None, 'special characters are not allowed'),
        ('a: ' + '[' * 2000, None, 'nested too deeply'),
    ],
)
def test_a_file_that_is_no_contract_is_refused_with_the_line(tmp_path, text, line, words):
    (found, message), *more = problems_of(text, tmp_path)
    assert found == line
    assert words in message
    assert not more


def test_a_file_that_refers_to_itself_is_refused(tmp_path):
    assert problems_of('embodiment: x\narms: &a {arm: *a}\n', tmp_path)


def test_a_file_that_is_no_text_or_missing_is_refused(tmp_path):
    binary = tmp_path / 'binary.yaml'
    binary.write_bytes(b'\xff\xfe\x00')
    for path in (binary, tmp_path / 'missing.yaml'):
        with pytest.raises(EmbodimentError, match='cannot be read'):
            load(path)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(EmbodimentError, match='franka_genesis, light_arm'):
        load('franka_genisis')
    with pytest.raises(EmbodimentError, match='franka_genesis, light_arm'):
        load('n' * 300)


@pytest.mark.parametrize('name', available())
def test_every_shipped_contract_loads_and_fits_its_description(name):
    embodiment = load(name)
    assert embodiment.name == name
    assert len(embodiment.wire_joints) == embodiment.qpos_size == len(embodiment.home_qpos)
    described(embodiment)
    assert embodiment.model_file().is_file()
    grippers = len(embodiment.arms)
    assert Kinematics(embodiment).position_limits.shape == (embodiment.qpos_size - grippers, 2)


def test_the_quick_arm_of_the_tests_is_the_light_arm_but_for_the_size_of_its_pictures():
    assert contract(QUICK_ARM) == small_pictures(contract('light_arm'))


def test_two_arms_lie_one_after_the_other_on_the_wire(tmp_path):
    pair = two_arms(tmp_path)
    assert (pair.action_size('qpos'), pair.action_size('ee')) == (14, 16)
    assert pair.wire_joints[6] == 'left_finger_left'
    assert pair.wire_joints[13] == 'right_finger_left'
    assert pair.slices('qpos') == {'left': slice(0, 7), 'right': slice(7, 14)}
    assert pair.slices('ee') == {'left': slice(0, 8), 'right': slice(8, 16)}
    assert np.array_equal(pair.home_qpos[:7], load('light_arm').home_qpos)
    with pytest.raises(ValueError, match='qpos, ee'):
        pair.action_size('joints')


def test_a_gripper_is_open_at_one_whichever_way_its_joint_turns():
    panda = Gripper(joint='finger_joint1', open=0.04, closed=0.0)
    robotiq = Gripper(joint='finger_joint', open=0.0, closed=0.8)
    assert [panda.to_native(value) for value in (0, 0.25, 1)] == pytest.approx([0, 0.01, 0.04])
    assert [robotiq.to_native(value) for value in (0, 0.25, 1)] == pytest.approx([0.8, 0.6, 0])
    for gripper in (panda, robotiq):
        assert gripper.to_openness(gripper.to_native(0.3)) == pytest.approx(0.3)


def test_contracts_and_files_of_a_sourced_workspace_are_found(tmp_path, monkeypatch):
    share = tmp_path / 'share' / 'openeta_ros' / 'config' / 'embodiments'
    share.mkdir(parents=True)
    text = load('light_arm').path.read_text(encoding='utf-8')
    (share / 'mine.yaml').write_text(text, encoding='utf-8')
    (tmp_path / 'share' / 'my_arm').mkdir()
    (tmp_path / 'share' / 'my_arm' / 'arm.urdf').write_text('<robot/>', encoding='utf-8')
    monkeypatch.setenv('AMENT_PREFIX_PATH', f'/nowhere:{tmp_path}')
    assert 'mine' in available()
    assert load('mine').name == 'light_arm'
    assert resolve_uri('package://my_arm/arm.urdf') == (tmp_path / 'share' / 'my_arm' / 'arm.urdf').resolve()


def test_files_of_a_python_package_are_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / 'robot_models_of_a_test'
    package.mkdir()
    (package / '__init__.py').write_text('raise RuntimeError', encoding='utf-8')
    (package / 'arm.xml').write_text('<mujoco/>', encoding='utf-8')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve_uri('package://robot_models_of_a_test/arm.xml') == (package / 'arm.xml').resolve()
    assert package.name not in sys.modules


def test_plain_paths_start_at_the_contract_and_missing_files_say_where_they_were_sought(tmp_path):
    (tmp_path / 'arm.urdf').write_text('<robot/>', encoding='utf-8')
    assert resolve_uri('arm.urdf', tmp_path) == resolve_uri(f'file://{tmp_path}/arm.urdf')
    with pytest.raises(EmbodimentError, match=f'looked for {tmp_path}/leg.urdf'):
        resolve_uri('leg.urdf', tmp_path)
    with pytest.raises(EmbodimentError, match="install the package 'no_such_package'"):
        resolve_uri('package://no_such_package/arm.urdf')


def test_a_camera_may_be_padded_and_have_depth(tmp_path):
    data = contract('light_arm')
    name = data['align']['clock']
    data['cameras'][name] |= {'size': [224, 224], 'resize': 'pad', 'depth': {'topic': 'depth/image_raw'}}
    camera = written(data, tmp_path).cameras[name]
    assert camera.resize == 'pad'
    assert (camera.depth.topic, camera.depth.transport) == ('depth/image_raw', 'raw')
    plain = load('light_arm').cameras[name]
    assert (plain.resize, plain.depth) == ('stretch', None)


def test_mistakes_about_padding_and_depth_are_told(tmp_path):
    data = contract('light_arm')
    data['cameras'] = {
        'front': {'topic': 'a', 'resize': 'pad'},
        'side': {'topic': 'b', 'resize': 'letterbox', 'depth': {'transport': 'rvl'}},
    }
    data['align']['clock'] = 'front'
    with pytest.raises(EmbodimentError) as caught:
        written(data, tmp_path)
    assert sorted(problem.message for problem in caught.value.problems) == [
        'cameras.front.resize: pad needs size, the height and width to pad to',
        'cameras.side.depth.topic: is required and missing',
        "cameras.side.depth.transport: input should be 'raw' or 'compressed'; found 'rvl'",
        "cameras.side.resize: input should be 'stretch' or 'pad'; found 'letterbox'",
    ]
