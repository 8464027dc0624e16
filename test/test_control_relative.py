# SPDX-License-Identifier: Apache-2.0
"""Relative actions are offsets from the observation that the policy saw, not from where the arm is later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from contracts import contract, two_arms, written

from openeta_ros.control import ActionError, absolute_rows
from openeta_ros.embodiment import Embodiment, Kinematics, load


def relative(folder: Path, source: Embodiment | None = None) -> Embodiment:
    data = contract('light_arm') if source is None else contract(str(source.path))
    data['action'] = {'type': 'qpos', 'mode': 'relative'}
    return written(data, folder)


def test_absolute_actions_stay_what_they_are():
    light = load('light_arm')
    rows = np.tile(light.home_qpos, (3, 1))
    assert np.array_equal(absolute_rows(rows, 'qpos', light.home_qpos + 1, light, Kinematics(light)), rows)


def test_joints_are_offsets_from_the_observed_ones_and_grippers_are_absolute(tmp_path):
    pair = relative(tmp_path, two_arms(tmp_path))
    observed = pair.home_qpos + 0.01 * np.arange(14)
    actions = np.full((2, 14), 0.05)
    actions[1] = 0.1
    rows = absolute_rows(actions, 'qpos', observed, pair, Kinematics(pair))
    for column in range(14):
        base = 0.0 if column in (6, 13) else observed[column]
        assert rows[:, column] == pytest.approx(base + np.array([0.05, 0.1]))
    assert actions[0, 0] == 0.05


def test_tool_poses_are_moved_and_turned_about_the_axes_of_the_base_frame(tmp_path):
    arm = relative(tmp_path)
    kinematics = Kinematics(arm)
    observed = arm.home_qpos
    seen = kinematics.forward('arm', observed[:6])
    half = np.sqrt(0.5)
    actions = [[0.1, 0, -0.02, 1, 0, 0, 0, 0.3], [0, 0, 0, 2 * half, 0, 0, 2 * half, 0.3]]
    still, turned = absolute_rows(actions, 'ee', observed, arm, kinematics)
    assert still == pytest.approx([seen[0] + 0.1, seen[1], seen[2] - 0.02, *seen[3:], 0.3])
    # A quarter turn about the base's z axis of a tool that points down (0 1 0 0): still down, turned.
    assert turned[:3] == pytest.approx(seen[:3])
    assert turned[3:7] == pytest.approx([0, half, half, 0], abs=1e-5)


@pytest.mark.parametrize(
    ('actions', 'action_type', 'kind'),
    [
        (np.zeros(6), 'qpos', 'shape'),
        (np.zeros(8), 'ee', 'quaternion'),
        (np.full(7, np.nan), 'qpos', 'not_finite'),
        (np.zeros(7), 'delta', 'action_type'),
    ],
)
def test_what_is_no_relative_action_is_refused(tmp_path, actions, action_type, kind):
    arm = relative(tmp_path)
    with pytest.raises(ActionError) as caught:
        absolute_rows(actions, action_type, arm.home_qpos, arm, Kinematics(arm))
    assert caught.value.kind == kind
