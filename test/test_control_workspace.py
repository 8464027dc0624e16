# SPDX-License-Identifier: Apache-2.0
"""No tool point leaves the workspace, and nothing of an arm goes below the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import contract, written

from openeta_ros.control import ActionError, ActionPipeline
from openeta_ros.embodiment import Kinematics, load

HOME = load('light_arm').home_qpos


def pipeline(folder: Path, **safety: Any) -> ActionPipeline:
    data = contract('light_arm')
    data['safety'] = safety
    embodiment = written(data, folder)
    return ActionPipeline(embodiment, Kinematics(embodiment))


def lowering(rows: int) -> np.ndarray:
    """Return ee rows straight down from home."""
    poses = np.tile([*Kinematics(load('light_arm')).forward('arm', HOME[:6]), 1.0], (rows, 1))
    poses[:, 2] -= 0.02 * np.arange(1, rows + 1)
    return poses


def test_a_tool_point_does_not_go_below_the_table(tmp_path):
    height = lowering(1)[0, 2] + 0.02
    poses = lowering(20)
    first = int(np.argmax(poses[:, 2] < 0.1))
    with pytest.raises(ActionError, match=r'arm\.z of the tool point') as caught:
        pipeline(tmp_path, table_z_m=0.1).plan(poses, 'ee', HOME)
    assert (caught.value.kind, caught.value.row) == ('workspace', first)
    plan = pipeline(tmp_path, table_z_m=0.1, on_limit='clamp').plan(poses, 'ee', HOME)
    assert Kinematics(load('light_arm')).forward('arm', plan.qpos[-1][:6])[2] == pytest.approx(0.1, abs=1e-4)
    assert plan.clamped[-1] == ('arm.workspace',)
    assert height > 0.1


def test_a_joint_below_the_table_is_refused_though_its_tool_is_above(tmp_path):
    kinematics = Kinematics(load('light_arm'))
    # The elbow is down behind the arm, the forearm points up again.
    low = np.array([0.0, 1.7, -0.3, 0.0, 0.0, 0.0, 1.0])
    assert kinematics.lowest('arm', low[:6]) < kinematics.forward('arm', low[:6])[2]
    table_z_m = kinematics.lowest('arm', low[:6]) + 0.01
    rows = low + 0.001 * np.arange(1, 4)[:, None] * [1, 0, 0, 0, 0, 0, 0]
    with pytest.raises(ActionError, match=r'a joint of arm would be .* below the table') as caught:
        pipeline(tmp_path, table_z_m=table_z_m).plan(rows, 'qpos', low)
    assert (caught.value.kind, caught.value.row) == ('workspace', 0)
    assert len(pipeline(tmp_path, table_z_m=table_z_m - 0.05).plan(rows, 'qpos', low)) == 3


def test_the_higher_of_table_and_workspace_counts(tmp_path):
    box = {'min': [-1, -1, 0.0], 'max': [1, 1, 1]}
    with pytest.raises(ActionError, match=r'0\.15 to 1 m'):
        pipeline(tmp_path, workspace=box, table_z_m=0.15).plan(lowering(20), 'ee', HOME)
