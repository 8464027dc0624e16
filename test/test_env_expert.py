# SPDX-License-Identifier: Apache-2.0
"""The expert's rows: inside the contract's limits, and honest about what the arm cannot reach."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openeta_ros.control import ActionPipeline
from openeta_ros.embodiment import Embodiment, Kinematics, load
from openeta_ros.envs import EnvError
from openeta_ros.envs.expert import expert_rows
from openeta_ros.envs.tasks import TASKS, Waypoint, task


def rows_of(embodiment: Embodiment, kinematics: Kinematics, name: str, seed: int) -> np.ndarray:
    way = task(name).waypoints(task(name).scene(np.random.default_rng(seed)))
    return expert_rows(embodiment, kinematics, 'arm', way)


@pytest.mark.parametrize('name', TASKS)
@pytest.mark.parametrize('robot', ['light_arm', 'franka_genesis'])
def test_rows_keep_to_the_contract_and_to_a_hundred(robot: str, name: str) -> None:
    embodiment = load(robot)
    kinematics = Kinematics(embodiment)
    limits = np.array(embodiment.arms['arm'].limits.velocity)
    for seed in range(20):
        rows = rows_of(embodiment, kinematics, name, seed)
        assert len(rows) <= 100
        steps = np.diff(rows, axis=0, prepend=embodiment.home_qpos[None])
        assert (np.abs(steps[:, :-1]) * embodiment.rate_hz <= limits).all()
        ActionPipeline(embodiment, kinematics).plan(rows, 'qpos', embodiment.home_qpos)


def test_rows_keep_to_an_acceleration_limit_and_a_largest_step(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / 'config' / 'embodiments' / 'light_arm.yaml'
    text = source.read_text().replace(
        '      velocity:', '      acceleration: [6, 6, 6, 8, 8, 8]\n      velocity:'
    )
    text = text.replace('on_limit: refuse', 'on_limit: refuse, max_step_rad: 0.06')
    (tmp_path / 'slow.yaml').write_text(text)
    embodiment = load(tmp_path / 'slow.yaml')
    rows = rows_of(embodiment, Kinematics(embodiment), 'stack_cubes', 0)[:, :-1]
    still = np.concatenate([np.tile(embodiment.home_qpos[:-1], (2, 1)), rows, rows[-1:]])
    steps = np.diff(still, axis=0)
    assert np.abs(steps).max() <= 0.06
    assert (np.abs(np.diff(steps, axis=0)) * embodiment.rate_hz**2 <= [6, 6, 6, 8, 8, 8]).all()


def test_a_way_point_out_of_reach_is_no_plan() -> None:
    embodiment = load('light_arm')
    with pytest.raises(EnvError, match='way point 1') as caught:
        expert_rows(
            embodiment,
            Kinematics(embodiment),
            'arm',
            [Waypoint((0.45, 0.0, 0.2), 1.0), Waypoint((3.0, 0.0, 0.2), 1.0)],
        )
    assert caught.value.kind == 'no_expert'
