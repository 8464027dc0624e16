# SPDX-License-Identifier: Apache-2.0
"""The example policies do what their first line says, served from their own directories."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import yaml

from openeta_ros.embodiment import load
from openeta_ros.envs import EnvFacade, EnvSpec
from openeta_ros.envs.backend import CAMERAS
from openeta_ros.envs.tasks import CUBE_M
from openeta_ros.episodes import run_episode
from openeta_ros.episodes.policy import LocalPolicy
from openeta_ros.vector_policy import PolicyUnavailable
from openeta_ros.vector_policy.process import open_policy

os.environ.setdefault('MUJOCO_GL', 'egl')

EXAMPLES = Path(__file__).parents[1] / 'examples'
ACTIONS = np.arange(46.0).reshape(23, 2)
OBSERVATION = {'qpos': np.ones(2), 'endpose': np.ones(8)}


def with_kwargs(tmp_path: Path, name: str, kwargs: str) -> Path:
    """A copy of an example with other kwargs."""
    (tmp_path / 'policy.py').write_text((EXAMPLES / name / 'policy.py').read_text())
    first, second, _ = (EXAMPLES / name / 'policy.yaml').read_text().splitlines()
    (tmp_path / 'policy.yaml').write_text(f'{first}\n{second}\nkwargs: {kwargs}\n')
    return tmp_path


@pytest.mark.parametrize('order', ['prompt, reset', 'reset, prompt'])
def test_replay_gives_every_row_in_chunks_and_then_the_last_row_again(order):
    with open_policy(EXAMPLES / 'replay_policy') as policy:
        calls = [lambda: policy.set_demonstration({'actions': ACTIONS}, {}), lambda: policy.reset(0)]
        for call in calls if order == 'prompt, reset' else reversed(calls):
            call()
        chunks = [policy.act(OBSERVATION)['action'] for _ in range(5)]
        assert [len(chunk) for chunk in chunks] == [10, 10, 3, 1, 1]
        assert np.array_equal(np.concatenate(chunks), np.concatenate([ACTIONS, ACTIONS[-1:], ACTIONS[-1:]]))
        policy.reset(1)
        assert np.array_equal(policy.act(OBSERVATION)['action'], ACTIONS[:10])


def test_replay_goes_row_by_row_when_asked(tmp_path):
    with open_policy(with_kwargs(tmp_path, 'replay_policy', '{chunk: 1}')) as policy:
        policy.set_demonstration({'actions': ACTIONS[:2]}, {})
        rows = [policy.act(OBSERVATION)['action'] for _ in range(3)]
        assert np.array_equal(rows, ACTIONS[[[0], [1], [1]]])


def test_replay_without_a_demonstration_says_what_it_needs():
    with open_policy(EXAMPLES / 'replay_policy') as policy:
        policy.reset(0)
        with pytest.raises(PolicyUnavailable, match='has no demonstration to replay: give it one before act'):
            policy.act(OBSERVATION)
        for arrays in ({}, {'actions': ACTIONS[:0]}, {'actions': ACTIONS[0]}):
            with pytest.raises(PolicyUnavailable, match=r"needs 'actions' of shape \(T-1, A\), not "):
                policy.set_demonstration(arrays, {})


@pytest.mark.parametrize(('action_type', 'width'), [('qpos', 2), ('ee', 8)])
def test_zero_takes_its_width_from_the_observation_or_from_the_demonstrations_info(
    tmp_path, action_type, width
):
    directory = with_kwargs(tmp_path, 'zero_policy', f'{{action_type: {action_type}}}')
    with open_policy(directory) as policy:
        assert policy.action_type == action_type
        policy.reset(0)
        assert policy.act(OBSERVATION)['action'].tolist() == [0.0] * width
        policy.set_demonstration({}, {'action_dims': {'qpos': 5, 'ee': 5}})
        assert policy.act(OBSERVATION)['action'].shape == (5,)


def test_visual_pick_knows_the_cameras_and_the_cube_of_the_simulators():
    kwargs = yaml.safe_load((EXAMPLES / 'visual_pick_policy' / 'policy.yaml').read_text())['kwargs']
    for name, camera in CAMERAS.items():
        where = kwargs['cameras'][name]
        assert tuple(where['position_m']) == camera.position_m
        assert tuple(where['look_at_m']) == camera.look_at_m
        assert where['fovy_deg'] == camera.fovy_deg
    assert kwargs['cube_m'] == CUBE_M


def test_visual_pick_picks_up_what_it_sees():
    arm = load('light_arm')
    spec = EnvSpec(backend='mujoco', task='pick_cube', embodiment=arm)
    with EnvFacade.from_spec(spec) as env, open_policy(EXAMPLES / 'visual_pick_policy') as remote:
        policy = LocalPolicy(remote, arm)
        assert run_episode(env, policy, 1).success


def test_visual_pick_stays_where_it_is_while_it_sees_no_cube():
    pictures = {f'frames_{name}': np.full((24, 32, 3), 90, np.uint8) for name in ('front', 'top')}
    pose = np.array([0.4, 0.0, 0.4, 0.0, 1.0, 0.0, 0.0, 1.0])
    with open_policy(EXAMPLES / 'visual_pick_policy') as policy:
        policy.reset(0)
        for _ in range(2):
            assert np.array_equal(policy.act({**pictures, 'endpose': pose})['action'], pose)
