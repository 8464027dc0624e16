# SPDX-License-Identifier: Apache-2.0
"""Where tools are, and the joints that bring them somewhere."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from contracts import contract, two_arms, written

from openeta_ros.embodiment import Embodiment, Kinematics, KinematicsError, load

ROBOTS = ('franka_genesis', 'light_arm')
# A wrist that turns without end, and a slide: what neither shipped robot has.
TURNING = """\
<robot name="turning">
  <link name="base"/><link name="slide"/><link name="turn"/><link name="tool"/>
  <joint name="lift" type="prismatic"><parent link="base"/><child link="slide"/><axis xyz="0 0 1"/>
    <limit lower="0" upper="0.5" effort="1" velocity="1"/></joint>
  <joint name="spin" type="continuous"><parent link="slide"/><child link="turn"/><axis xyz="0 0 1"/></joint>
  <joint name="tip" type="fixed"><parent link="turn"/><child link="tool"/>
    <origin xyz="0.3 0 0" rpy="0 0 0"/></joint>
</robot>
"""


@pytest.fixture(scope='module', params=ROBOTS)
def robot(request: pytest.FixtureRequest) -> tuple[Embodiment, Kinematics]:
    embodiment = load(request.param)
    return embodiment, Kinematics(embodiment)


def same_pose(one: np.ndarray, other: np.ndarray, tolerance: float) -> bool:
    sign = np.sign(one[3:] @ other[3:])
    return bool(np.abs(one - np.concatenate([other[:3], sign * other[3:]])).max() < tolerance)


def random_joints(kinematics: Kinematics, count: int) -> np.ndarray:
    low, high = kinematics.position_limits.T
    return np.random.default_rng(7).uniform(low, high, size=(count, len(low)))


def test_forward_agrees_with_mujoco(robot):
    mujoco = pytest.importorskip('mujoco')
    embodiment, kinematics = robot
    arm = embodiment.arms['arm']
    model = mujoco.MjModel.from_xml_path(str(embodiment.model_file()))
    data = mujoco.MjData(model)
    addresses = [model.joint(joint).qposadr[0] for joint in arm.joints]
    for q in random_joints(kinematics, 50):
        data.qpos[addresses] = q
        mujoco.mj_kinematics(model, data)
        base, tool = data.body(arm.base_frame), data.body(arm.tool_frame)
        point = tool.xpos + tool.xmat.reshape(3, 3) @ arm.tool_offset.xyz
        expected = np.concatenate([base.xmat.reshape(3, 3).T @ (point - base.xpos), tool.xquat])
        assert same_pose(kinematics.forward('arm', q), expected, 1e-9)


def test_both_descriptions_of_the_light_arm_agree(tmp_path):
    data = contract('light_arm')
    data['description'] = {'file': data['simulation']['model']}
    mjcf, urdf = Kinematics(written(data, tmp_path)), Kinematics(load('light_arm'))
    assert np.array_equal(mjcf.position_limits, urdf.position_limits)
    for q in random_joints(urdf, 100):
        assert np.abs(mjcf.forward('arm', q) - urdf.forward('arm', q)).max() < 1e-9


def test_both_descriptions_of_the_light_arm_weigh_the_same():
    import pinocchio as pin

    embodiment = load('light_arm')
    urdf = pin.buildModelFromUrdf(str(embodiment.description_file()))
    mjcf = pin.buildModelFromMJCF(str(embodiment.model_file()))
    assert list(urdf.names) == list(mjcf.names)
    for one, other in zip(urdf.inertias[1:], mjcf.inertias[1:], strict=True):
        assert one.mass == pytest.approx(other.mass)
        assert one.lever == pytest.approx(other.lever)
        assert one.inertia == pytest.approx(other.inertia, abs=1e-9)


def test_joints_come_back_from_poses_near_and_far(robot):
    embodiment, kinematics = robot
    low, high = kinematics.position_limits.T
    home = embodiment.home_qpos[:-1]
    noise = np.random.default_rng(8).normal(0, 0.05, size=(30, len(home)))
    for q, offset in zip(random_joints(kinematics, 30), noise, strict=True):
        pose = kinematics.forward('arm', q)
        for seed in (np.clip(q + offset, low, high), home):
            found = kinematics.inverse('arm', pose, seed)
            assert np.all((low <= found) & (found <= high))
            assert same_pose(kinematics.forward('arm', found), pose, 1e-6)


def test_a_near_pose_has_near_joints(robot):
    embodiment, kinematics = robot
    q = embodiment.home_qpos[:-1]
    pose = kinematics.forward('arm', q)
    for _ in range(20):
        pose[:3] += [0.004, 0.003, -0.005]
        found = kinematics.inverse('arm', pose, q)
        assert np.abs(found - q).max() < 0.1
        q = found


def test_the_tool_points_down_all_over_the_table(robot):
    embodiment, kinematics = robot
    home = embodiment.home_qpos[:-1]
    for x in (0.3, 0.45, 0.6):
        for y in (-0.25, 0.0, 0.25):
            for z in (0.0, 0.2, 0.4):
                for yaw in (-np.pi / 2, 0.0, np.pi / 2):
                    pose = [x, y, z, 0, np.cos(yaw / 2), np.sin(yaw / 2), 0]
                    assert same_pose(
                        kinematics.forward('arm', kinematics.inverse('arm', pose, home)), np.array(pose), 1e-6
                    )


def test_home_points_straight_down(robot):
    embodiment, kinematics = robot
    pose = kinematics.forward('arm', embodiment.home_qpos[:-1])
    assert pose[3:] == pytest.approx([0, 1, 0, 0], abs=1e-5)


def test_the_sign_of_the_quaternion_does_not_flip_where_the_tool_points_down(robot):
    embodiment, kinematics = robot
    home = embodiment.home_qpos[:-1]
    for offset in np.random.default_rng(9).normal(0, 0.2, size=(100, len(home))):
        assert kinematics.forward('arm', home + offset)[4] > 0.5


def test_the_length_and_sign_of_a_quaternion_do_not_matter_to_the_solution(robot):
    embodiment, kinematics = robot
    home = embodiment.home_qpos[:-1]
    pose = kinematics.forward('arm', home + 0.1)
    expected = kinematics.inverse('arm', pose, home)
    for factor in (-1.0, 2.5, 1e200):
        scaled = np.concatenate([pose[:3], factor * pose[3:]])
        assert kinematics.inverse('arm', scaled, home) == pytest.approx(expected, abs=1e-7)


def test_the_same_question_has_the_same_answer(robot):
    embodiment, kinematics = robot
    poses = [kinematics.forward('arm', q) for q in random_joints(kinematics, 3)]
    answers = [
        [fresh.inverse('arm', pose, embodiment.home_qpos[:-1]).tobytes() for pose in poses]
        for fresh in (kinematics, kinematics, Kinematics(embodiment))
    ]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize('x', [2.0, 1e300])
def test_a_pose_out_of_reach_is_named_with_what_remains(robot, x):
    embodiment, kinematics = robot
    with pytest.raises(KinematicsError, match=r'arm does not reach .* m and .* rad remain'):
        kinematics.inverse('arm', [x, 0, 0.2, 0, 1, 0, 0], embodiment.home_qpos[:-1])


@pytest.mark.parametrize('pose', [[0.4, 0, 0.2, 0, 0, 0, 0], [0.4, 0, np.nan, 0, 1, 0, 0], [0.4, 0, 0.2]])
def test_what_is_no_pose_is_refused(robot, pose):
    embodiment, kinematics = robot
    with pytest.raises(KinematicsError, match='7 finite numbers'):
        kinematics.inverse('arm', pose, embodiment.home_qpos[:-1])


def test_limits_of_the_contract_come_before_those_of_the_description(tmp_path):
    data = contract('light_arm')
    data['arms']['arm']['limits']['position'] = [[-1, 1]] + [[-2, 2]] * 5
    kinematics = Kinematics(written(data, tmp_path))
    assert kinematics.position_limits.tolist() == [[-1, 1]] + [[-2, 2]] * 5
    with pytest.raises(KinematicsError):
        kinematics.inverse('arm', [-0.4, 0, 0.3, 0, 0, 1, 0], load('light_arm').home_qpos[:-1])


def test_each_of_two_arms_answers_in_its_own_base_frame(tmp_path):
    pair, single = Kinematics(two_arms(tmp_path)), Kinematics(load('light_arm'))
    assert pair.position_limits.shape == (12, 2)
    for q in random_joints(single, 10):
        for side in ('left', 'right'):
            assert pair.forward(side, q) == pytest.approx(single.forward('arm', q), abs=1e-12)


def test_endless_and_sliding_joints_are_solved_too(tmp_path):
    (tmp_path / 'turning.urdf').write_text(TURNING, encoding='utf-8')
    data = contract('light_arm')
    data['description'] = {'file': 'turning.urdf'}
    data['arms']['arm'] = {
        'joints': ['spin', 'lift'],
        'base_frame': 'base',
        'tool_frame': 'tool',
        'home': [0, 0.1],
        'limits': {'velocity': [1, 1]},
    }
    del data['simulation']
    kinematics = Kinematics(written(data, tmp_path))
    assert kinematics.units == ['rad', 'm']
    assert kinematics.position_limits.tolist() == [[-np.inf, np.inf], [0, 0.5]]
    pose = kinematics.forward('arm', [7.0, 0.4])
    assert pose[:3] == pytest.approx([0.3 * np.cos(7), 0.3 * np.sin(7), 0.4])
    assert kinematics.inverse('arm', pose, [6.8, 0.3]) == pytest.approx([7.0, 0.4], abs=1e-6)


@pytest.mark.parametrize(
    ('key', 'value', 'words'),
    [
        ('tool_frame', 'gripper_link', "no frame 'gripper_link', only base"),
        ('joints', ['shoulder_yaw', 'x', 'elbow', 'wrist_roll', 'wrist_pitch', 'wrist_yaw'], "no joint 'x'"),
        ('home', [0, 0, 9, 0, 0, 0, 1], 'home of elbow is 9, outside its limits'),
    ],
)
def test_a_contract_that_does_not_fit_its_description_is_refused_by_name(tmp_path, key, value, words):
    data = contract('light_arm')
    data['arms']['arm'][key] = value
    del data['simulation']
    with pytest.raises(KinematicsError, match=words):
        Kinematics(written(data, tmp_path))


def test_a_description_that_does_not_parse_is_named(tmp_path):
    (tmp_path / 'arm.urdf').write_text('<robot name="x"><link', encoding='utf-8')
    data = contract('light_arm')
    data['description'] = {'file': 'arm.urdf'}
    with pytest.raises(KinematicsError, match=r'arm\.urdf does not parse as URDF'):
        Kinematics(written(data, tmp_path))


def test_a_robot_of_the_genesis_wheel_needs_no_genesis_and_loading_needs_no_pinocchio():
    code = (
        'import sys; from openeta_ros.embodiment import Kinematics, load; e = load("franka_genesis");'
        'assert "pinocchio" not in sys.modules; Kinematics(e); assert "genesis" not in sys.modules'
    )
    subprocess.run([sys.executable, '-c', code], check=True)
