# SPDX-License-Identifier: Apache-2.0
"""Snippets in MuJoCo: they see, they pick, dry runs leave no mark, and a record repeats bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import contract, written

from openeta_ros.code_policy import (
    Budgets,
    CodePolicyApi,
    CodePolicyExecutionRequest,
    CodePolicyExecutionResult,
    CodePolicySandbox,
    CodePolicyStatus,
    SandboxConfig,
)
from openeta_ros.code_policy.replay import replay_trace
from openeta_ros.embodiment import Embodiment, load
from openeta_ros.envs import EnvFacade, EnvSpec

pytest.importorskip('mujoco')

SNIPPETS = Path(__file__).parents[1] / 'examples/snippets'
# Short, and yet each kind of call that moves.
LOOK = """
start = api.observe()['endpose']
api.move_arm(start[:3] - np.array([0.0, 0.02, 0.05]))
api.close_gripper()
"""


@pytest.fixture(scope='module')
def arm(tmp_path_factory: pytest.TempPathFactory) -> Embodiment:
    """The arm with pictures of a quarter of their size, which are as much quicker to draw."""
    data = contract('franka_genesis')
    for camera in data['cameras'].values():
        camera['size'] = [120, 160]
    return written(data, tmp_path_factory.mktemp('arm'))


@pytest.fixture(scope='module')
def pick(arm: Embodiment) -> Iterator[EnvFacade]:
    with EnvFacade.from_spec(EnvSpec('mujoco', 'pick_cube', arm)) as facade:
        yield facade


def run(code: str, facade: EnvFacade, **request: Any) -> CodePolicyExecutionResult:
    budgets = Budgets(wall_s=600.0, cpu_s=600.0)
    asked = CodePolicyExecutionRequest(code, env=facade, budgets=budgets, **request)
    return CodePolicySandbox(SandboxConfig(isolation='process')).execute(asked)


def same(one: Any, other: Any) -> bool:
    return sorted(one) == sorted(other) and all(np.array_equal(one[name], other[name]) for name in one)


def test_cubes_are_found_in_the_pictures_to_the_millimetre() -> None:
    with EnvFacade.from_spec(EnvSpec('mujoco', 'pick_cube', load('franka_genesis'))) as facade:
        for seed in (3, 4, 5):
            facade.reset(seed)
            pose = facade._world._backend.object_poses()['cube']  # type: ignore[attr-defined]
            (found,) = CodePolicyApi.of_facade(facade).call('call_tool', ['detect'], {'colour': 'red'})
            assert np.abs(np.array(found['position_m']) - pose[:3]).max() < 0.004, (seed, found, pose)
            yaw = 2 * np.arctan2(pose[6], pose[3])
            turned = (found['yaw_rad'] - yaw + np.pi / 4) % (np.pi / 2) - np.pi / 4
            assert abs(turned) < 0.1, (seed, found, yaw)
            assert found['overlap'] > 0.8


def test_a_snippet_picks_the_cube_and_its_record_repeats_bit_for_bit(pick: EnvFacade, tmp_path: Path) -> None:
    code = (SNIPPETS / 'pick_cube.py').read_text()
    result = run(code, pick, seed=2, output=tmp_path / 'run')
    assert result.status is CodePolicyStatus.EXECUTED and result.details['success'], result.content
    assert result.details['reward'] == 1.0
    pick.reset(7)  # something else in between
    repeated = replay_trace(tmp_path / 'run', pick)
    assert repeated.differences == ()
    assert repeated.rows == sum(len(entry.get('executed', ())) for entry in result.details['trace']) > 30
    assert repeated.compared >= 5
    entries = [dict(entry) for entry in result.details['trace']]
    moved = next(entry for entry in entries if entry.get('executed'))
    moved['executed'] = [[value + 1e-6 for value in row] for row in moved['executed']]
    assert replay_trace(entries, pick).differences


def test_a_dry_run_on_a_copy_leaves_no_mark(pick: EnvFacade) -> None:
    pick.reset(1)
    run('api.move_arm([0.45, 0.1, 0.3])', pick)
    before, kept = pick.observe(), pick.snapshot()
    assert kept is not None
    dry = run(LOOK, pick, dry_run=True)
    assert dry.status is CodePolicyStatus.PLANNED and dry.details['dry_run'] == 'copy', dry.content
    assert same(pick.observe(), before)
    real = run(LOOK, pick)
    assert real.status is CodePolicyStatus.EXECUTED
    assert real.details['state'] == dry.details['state'], 'the dry run showed something else'
    # And the same once more without a dry run before it.
    pick.restore(kept)
    again = run(LOOK, pick)
    assert again.details['state'] == real.details['state']


def test_a_dry_run_that_resets_comes_back_as_well(pick: EnvFacade) -> None:
    pick.reset(1)
    before = pick.observe()
    assert run(LOOK, pick, dry_run=True, seed=9).status is CodePolicyStatus.PLANNED
    assert same(pick.observe(), before)
    assert pick.chunk_step(before['qpos'][None])[0].info['step'] == 1


def test_a_snippet_reaches_a_ball_that_two_cameras_see(arm: Embodiment) -> None:
    with EnvFacade.from_spec(EnvSpec('mujoco', 'reach', arm)) as facade:
        result = run((SNIPPETS / 'reach.py').read_text(), facade, seed=0)
    assert result.status is CodePolicyStatus.EXECUTED and result.details['success'], result.content
