# SPDX-License-Identifier: Apache-2.0
"""What inverse kinematics does along a path: it stays in its posture, near home, and calm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import contract, written

from openeta_ros.control import ActionError, ActionPipeline
from openeta_ros.embodiment import Embodiment, Kinematics, KinematicsError, load


def light_with(folder: Path, **arm: Any) -> Embodiment:
    data = contract('light_arm')
    data['arms']['arm'].update(arm)
    del data['simulation']
    return written(data, folder)


def test_between_rows_an_arm_does_not_turn_around_to_get_on():
    light = load('light_arm')
    kinematics = Kinematics(light)
    here, there = light.home_qpos, light.home_qpos
    here[0], there[0] = 2.85, -2.85  # a little further on for the tool, once around for the arm
    pose = kinematics.forward('arm', there[:6])
    found = kinematics.inverse('arm', pose, here[:6])
    assert kinematics.forward('arm', found)[:3] == pytest.approx(pose[:3], abs=1e-4)
    with pytest.raises(KinematicsError, match=r'without a jump to another posture|does not reach'):
        kinematics.inverse('arm', pose, here[:6], same_posture=True)
    with pytest.raises(ActionError) as caught:
        ActionPipeline(light, kinematics).plan([*pose, 1.0], 'ee', here)
    assert (caught.value.kind, caught.value.row) == ('unreachable', 0)


def test_of_several_postures_the_nearest_is_taken():
    light = load('light_arm')
    kinematics = Kinematics(light)
    low, high = kinematics.position_limits.T
    random = np.random.default_rng(5)
    moved = []
    for _ in range(30):
        q = random.uniform(low, high)
        seed = np.clip(q + random.normal(0, 0.6, 6), low, high)
        moved.append(np.abs(kinematics.inverse('arm', kinematics.forward('arm', q), seed) - seed).max())
    assert np.median(moved) < 1.5


def test_a_redundant_arm_comes_back_to_its_home_posture_as_it_moves():
    franka = load('franka_genesis')
    kinematics = Kinematics(franka)
    home = franka.home_qpos[:7]
    pose = kinematics.forward('arm', home)
    # The same tool pose with the elbow swung out.
    swung = home.copy()
    swung[[0, 2]] += [0.5, -0.5]
    swung = kinematics.inverse('arm', pose, swung)
    assert np.abs(swung - home).max() > 0.2
    assert np.array_equal(
        kinematics.inverse('arm', pose, swung), swung
    )  # a tool that rests: an arm that rests
    q = swung
    for angle in np.linspace(0, 4 * np.pi, 240):
        around = np.add(pose, [0.05 * np.sin(angle), 0.05 * (1 - np.cos(angle)), 0, 0, 0, 0, 0])
        step = kinematics.inverse('arm', around, q, same_posture=True) - q
        assert np.abs(step).max() < 0.05
        q = q + step
    assert kinematics.forward('arm', q)[:3] == pytest.approx(pose[:3], abs=1e-4)
    assert np.abs(q - home).max() < 0.3 * np.abs(swung - home).max()


def test_a_path_past_a_singularity_stays_calm():
    light = load('light_arm')
    kinematics = Kinematics(light)
    straight = np.array(
        [0.0, 0.4, 1.2, 0.0, 0.0, 0.0]
    )  # the wrist is straight: roll and yaw turn about one axis
    pose = kinematics.forward('arm', straight)
    q = kinematics.inverse('arm', pose, np.add(straight, [0, 0, 0, 0, 0.15, 0]))
    largest = 0.0
    for offset in np.linspace(-0.04, 0.04, 41):
        row = np.add(pose, [0, 5e-5, offset, 0, 0, 0, 0])
        found = kinematics.inverse('arm', row, q, same_posture=True)
        if offset > -0.04:
            largest = max(largest, np.abs(found - q).max())
        assert kinematics.forward('arm', found)[:3] == pytest.approx(row[:3], abs=1.01e-4)
        q = found
    assert largest < 0.11


def test_the_tolerances_of_the_contract_count(tmp_path):
    loose = light_with(tmp_path, ik={'position_tolerance_m': 0.03, 'rotation_tolerance_rad': 0.2})
    home, strict = loose.home_qpos[:6], Kinematics(load('light_arm'))
    for distance in np.arange(0.5, 1.2, 0.005):
        pose = [distance, 0, 0.3, 0, 1, 0, 0]
        try:
            strict.inverse('arm', pose, home)
        except KinematicsError:
            break
    kinematics = Kinematics(loose)
    reached = kinematics.forward('arm', kinematics.inverse('arm', pose, home))
    assert 1e-4 < np.linalg.norm(reached[:3] - pose[:3]) <= 0.03


def test_an_arm_of_five_joints_brings_its_tool_point_there_and_turns_as_far_as_it_can(tmp_path):
    arm = contract('light_arm')['arms']['arm']
    five = {
        'joints': arm['joints'][:5],
        'home': [*arm['home'][:5], 1.0],
        'limits': {'velocity': arm['limits']['velocity'][:5]},
    }
    strict = Kinematics(light_with(tmp_path, **five))
    home = np.array(arm['home'][:5])
    pose = strict.forward('arm', home)
    pose[:2] += [0.05, 0.1]  # away from the plane of home: the rotation of home is not to be had there
    with pytest.raises(KinematicsError, match='does not reach'):
        strict.inverse('arm', pose, home)
    free = Kinematics(light_with(tmp_path, **five, ik={'rotation_tolerance_rad': 3.2}))
    q = free.inverse('arm', pose, home, same_posture=True)
    reached = free.forward('arm', q)
    assert reached[:3] == pytest.approx(pose[:3], abs=1e-6)
    turn = 2 * np.arccos(min(1.0, abs(reached[3:] @ pose[3:])))
    assert 0.01 < turn < 0.5
    exact = free.forward('arm', home + 0.3)
    back = free.forward('arm', free.inverse('arm', exact, home))
    assert back == pytest.approx(exact, abs=1e-5)
