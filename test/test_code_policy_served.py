# SPDX-License-Identifier: Apache-2.0
"""A snippet served as a policy: it sees what came of each of its rows, and its failures lose the episode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from contracts import contract, written
from point_env import MAX_STEPS, PointEnv

from openeta_ros.code_policy import CodePolicySandbox
from openeta_ros.code_policy.served import SnippetPolicy
from openeta_ros.episodes import run_episode
from openeta_ros.episodes.policy import LocalPolicy
from openeta_ros.vector_policy.process import open_policy

EXAMPLE = Path(__file__).parents[1] / 'examples/code_policy'
# The task of the point env: bring the first joint to a goal between 0.2 and 0.4 that is drawn in green.
SEARCHES = """\
now = np.array(api.observe()['qpos'])
green = api.observe()['frames_front'][120, :, 1]
goal = int(np.argmax(green > 0)) / 400
s = np.arange(1, 11) / 10
rows = np.tile(now, (10, 1))
rows[:, 0] = goal * s**3 * (10 - 15 * s + 6 * s**2)
for half in (rows[:5], rows[5:]):
    for row, step in zip(half, api.chunk_step(half)):
        assert step.observation['qpos'][0] == row[0], 'it sees what came of the row'
assert 'frames_front' in step.observation
"""


def own(folder: Path, code: str, **budgets: int) -> SnippetPolicy:
    """Return the policy without a server around it."""
    path = folder / 'mine.py'
    path.write_text(code)
    return SnippetPolicy(str(path), 'light_arm', budgets=budgets, strict=False)


def driven(policy: SnippetPolicy, rows: int) -> list[np.ndarray]:
    """Return what the policy answers in an episode of so many rows."""
    env = PointEnv()
    observation = env.reset(0)
    policy.reset(0)
    answers = []
    try:
        for _ in range(rows):
            answers.append(policy.act(dict(observation))['action'])
            observation = env.chunk_step(answers[-1][None], 'qpos')[-1].observation
    finally:
        policy.close()
    return answers


def test_it_solves_a_task_row_by_row_from_what_it_sees_again_and_again(tmp_path: Path) -> None:
    (tmp_path / 'mine.py').write_text(SEARCHES)
    (tmp_path / 'policy.yaml').write_text(
        'api: 1\npolicy: openeta_ros.code_policy.served:SnippetPolicy\n'
        'kwargs: {snippet: mine.py, embodiment: light_arm, strict: false}\n'
    )
    env = PointEnv()
    with open_policy(tmp_path) as policy:
        policy.reset(0)
        policy.act(dict(env.reset(0)))  # an episode that is left in the middle disturbs no other
        for seed in (3, 4):
            result = run_episode(env, LocalPolicy(policy, env.embodiment), seed)
            assert result.error is None
            assert result.success and result.steps in (9, 10)


def test_at_its_end_the_arm_stays_where_it_is(tmp_path: Path) -> None:
    policy = own(tmp_path, "row = np.array(api.observe()['qpos'])\nrow[0] = 0.002\napi.step(row)\n")
    assert [row[0] for row in driven(policy, 6)][-3:] == [0.002] * 3


@pytest.mark.parametrize(
    ('code', 'told'),
    [
        ("api.observe()\napi.step(api.observe()['qpos'] + 3.0)\n", 'at line 2'),
        ('api.reset(1)\n', 'cannot reset'),
        ('import socket\n', 'socket'),
        ("while True:\n    api.step(api.observe()['qpos'])\n", 'budget of 4 rows'),
    ],
)
def test_a_snippet_that_is_stopped_is_an_error_of_the_policy_that_says_why(
    tmp_path: Path, code: str, told: str
) -> None:
    policy = own(tmp_path, code, rows=4)
    for _ in range(2):  # and the next episode begins anew
        with pytest.raises(RuntimeError, match=told):
            driven(policy, MAX_STEPS)


def test_a_run_that_breaks_down_is_an_error_of_the_policy_and_no_endless_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **keywords: object) -> None:
        raise OSError('no space left')

    monkeypatch.setattr(CodePolicySandbox, 'execute', full)
    with pytest.raises(RuntimeError, match='no space left'):
        driven(own(tmp_path, 'api.observe()'), 1)


def test_the_contract_of_another_robot_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'\(3,\)'):
        own(tmp_path, SEARCHES).act({'qpos': np.zeros(3)})


def test_the_example_picks_up_a_cube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('mujoco')
    monkeypatch.setenv('MUJOCO_GL', 'egl')
    from openeta_ros.envs import EnvFacade, EnvSpec

    data = contract('franka_genesis')
    for camera in data['cameras'].values():
        camera['size'] = [120, 160]  # quicker to draw; the policy takes them for what they show
    spec = EnvSpec('mujoco', 'pick_cube', written(data, tmp_path))
    with open_policy(EXAMPLE) as policy, EnvFacade.from_spec(spec) as env:
        result = run_episode(env, LocalPolicy(policy, spec.embodiment), 1)
    assert result.error is None
    assert result.success
