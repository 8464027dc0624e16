# SPDX-License-Identifier: Apache-2.0
"""Robot descriptions: where they are found, in what form, and what is said when they are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import contract, written

from openeta_ros.embodiment import Embodiment, EmbodimentError, Kinematics, KinematicsError, load

SCENE = """\
<mujoco><include file="{folder}/options.xml"/>
<worldbody><body name="table" pos="0 0 -0.1"><geom size="1 1 0.1" type="box"/></body></worldbody>
<worldbody><include file="{folder}/arm.xml"/></worldbody></mujoco>
"""
OPTIONS = '<mujocoinclude><compiler angle="degree" autolimits="true"/></mujocoinclude>'
# Two joints on one body, a zero that is not at zero, an axis beside its body, and a mesh that is not there.
ARM = """\
<mujocoinclude><body name="base" pos="0.1 0 0.2" euler="0 0 90"><body name="upper" pos="0 0 0.3">
<joint name="turn" axis="0 0 1" range="-170 170"/><joint name="lift" type="slide" axis="0 0 1" range="0 0.5"/>
<geom size="0.1"/>
<body name="lower" pos="0.4 0 0" quat="0.7071068 0 0.7071068 0"><geom size="0.1"/>
<joint name="bend" axis="0 1 0" pos="0.05 0 0.02" range="-90 90" ref="10"/>
<site name="tip" pos="0.1 0.02 0"/></body></body></body></mujocoinclude>
"""


def described(folder: Path, description: dict[str, Any], **arm: Any) -> Embodiment:
    data = contract('light_arm')
    data['description'] = description
    data['arms']['arm'].update(arm)
    del data['simulation']
    return written(data, folder)


def urdf() -> str:
    return load('light_arm').description_file().read_text(encoding='utf-8')


def test_an_mjcf_with_includes_means_what_mujoco_says(tmp_path):
    mujoco = pytest.importorskip('mujoco')
    (tmp_path / 'parts').mkdir()
    (tmp_path / 'scene.xml').write_text(SCENE.format(folder='parts'), encoding='utf-8')
    (tmp_path / 'parts' / 'options.xml').write_text(OPTIONS, encoding='utf-8')
    (tmp_path / 'parts' / 'arm.xml').write_text(ARM, encoding='utf-8')
    embodiment = described(
        tmp_path,
        {'file': 'scene.xml'},
        joints=['turn', 'lift', 'bend'],
        base_frame='base',
        tool_frame='tip',
        tool_offset={},
        home=[0, 0.1, 0.2, 1],
        limits={'velocity': [1, 1, 1]},
    )
    kinematics = Kinematics(embodiment)
    assert kinematics.units == ['rad', 'm', 'rad']
    assert kinematics.position_limits == pytest.approx(
        np.array([[-170, 170], [0, 0.5], [-90, 90]]) * [[np.pi / 180], [1], [np.pi / 180]]
    )
    model = mujoco.MjModel.from_xml_path(str(tmp_path / 'scene.xml'))
    data = mujoco.MjData(model)
    for q in np.random.default_rng(0).uniform(*kinematics.position_limits.T, size=(20, 3)):
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        base, tip = data.body('base'), data.site('tip')
        assert kinematics.forward('arm', q)[:3] == pytest.approx(
            base.xmat.reshape(3, 3).T @ (tip.xpos - base.xpos), abs=1e-9
        )


def test_a_description_that_is_not_installed_is_told_with_the_line_that_installs_it(tmp_path):
    embodiment = described(
        tmp_path,
        {
            'file': 'package://no_such_description/arm.urdf.xacro',
            'install': 'apt install ros-$ROS_DISTRO-no-such-description',
            'otherwise': {'file': 'package://no_such_wheel/arm.urdf', 'install': 'pip install no-such-wheel'},
        },
    )
    with pytest.raises(EmbodimentError) as caught:
        Kinematics(embodiment)
    (problem,) = caught.value.problems
    assert problem.message == (
        'description: is not installed: apt install ros-$ROS_DISTRO-no-such-description '
        '(for package://no_such_description/arm.urdf.xacro), or pip install no-such-wheel '
        '(for package://no_such_wheel/arm.urdf)'
    )


def test_the_first_description_that_is_there_is_used(tmp_path):
    (tmp_path / 'arm.urdf').write_text(urdf(), encoding='utf-8')
    embodiment = described(
        tmp_path, {'file': 'package://no_such_description/arm.urdf', 'otherwise': {'file': 'arm.urdf'}}
    )
    assert embodiment.description_file() == (tmp_path / 'arm.urdf').resolve()
    home = embodiment.home_qpos[:-1]
    assert np.array_equal(
        Kinematics(embodiment).forward('arm', home), Kinematics(load('light_arm')).forward('arm', home)
    )


def test_a_prefix_makes_the_names_of_a_description_those_of_the_contract(tmp_path):
    (tmp_path / 'arm.urdf').write_text(urdf(), encoding='utf-8')
    names = load('light_arm').arms['arm']
    embodiment = described(
        tmp_path,
        {'file': 'arm.urdf', 'prefix': 'left_'},
        joints=[f'left_{joint}' for joint in names.joints],
        base_frame='left_base',
        tool_frame='left_hand',
    )
    home = embodiment.home_qpos[:-1]
    plain = Kinematics(load('light_arm'))
    for kinematics in (Kinematics(embodiment), Kinematics(embodiment, urdf())):
        assert np.array_equal(kinematics.forward('arm', home), plain.forward('arm', home))


def test_a_xacro_of_a_ros_package_is_expanded_with_its_arguments(tmp_path, monkeypatch):
    pytest.importorskip('xacro')
    share = tmp_path / 'share' / 'arm_of_a_test_description'
    share.mkdir(parents=True)
    head = (
        '<robot name="x" xmlns:xacro="http://www.ros.org/wiki/xacro"><xacro:arg name="side" default="none"/>'
        '<link name="$(arg side)_mount"/><joint name="mount" type="fixed"><parent link="$(arg side)_mount"/>'
        '<child link="base"/></joint>'
    )
    (share / 'arm.urdf.xacro').write_text(urdf().replace('<robot name="light_arm">', head), encoding='utf-8')
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(tmp_path))
    description = {
        'file': 'package://arm_of_a_test_description/arm.urdf.xacro',
        'arguments': {'side': 'left'},
    }
    with pytest.raises(KinematicsError, match=r"no frame 'right_mount', only .*left_mount"):
        Kinematics(described(tmp_path, description, base_frame='right_mount'))
    broken = urdf().replace('<robot name="light_arm">', head.replace('$(arg side)', '$(arg colour)'))
    (share / 'arm.urdf.xacro').write_text(broken, encoding='utf-8')
    with pytest.raises(KinematicsError, match=r'arm\.urdf\.xacro does not expand with .*colour'):
        Kinematics(described(tmp_path, description))


def test_tags_of_prefixes_that_nobody_declared_are_passed_over(tmp_path):
    text = urdf().replace('</robot>', '<drake:joint name="extra"/></robot>')
    (tmp_path / 'arm.urdf').write_text(text, encoding='utf-8')
    home = load('light_arm').home_qpos[:-1]
    assert Kinematics(described(tmp_path, {'file': 'arm.urdf'})).forward('arm', home)[3:] == pytest.approx(
        [0, 1, 0, 0], abs=1e-5
    )
