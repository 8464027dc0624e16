# SPDX-License-Identifier: Apache-2.0
"""OpenETA's names import from here, take its arguments, and do what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openeta_ros.envs import EnvError, EnvFacade, EnvSpec, RlinfEnvFacade, RlinfEnvSpec, RlinfStepResult

CONFIG = {'task': 'reach', 'embodiment': 'light_arm'}


def test_an_env_made_and_driven_with_openetas_names() -> None:
    pytest.importorskip('mujoco')
    spec = RlinfEnvSpec(env_type='mujoco', env_cfg={**CONFIG, 'seed': 3, 'auto_reset': False}, seed_offset=1)
    with RlinfEnvFacade.from_spec(spec) as env:
        assert isinstance(env, EnvFacade)
        descriptor = json.loads(json.dumps(env.descriptor()))
        assert descriptor['env_type'] == 'mujoco'
        assert descriptor['protocol'] == {'reset': True, 'step': True, 'chunk_step': True, 'close': True}
        first = env.reset()
        step = env.step(first['qpos'])
        assert isinstance(step, RlinfStepResult)
        assert set(step.to_dict()) == {'observation', 'reward', 'terminated', 'truncated', 'info'}
        assert type(step.terminated) is bool
        assert env.observe() is step.observation  # the same form after a step as after a reset
        chunk = env.chunk_step(np.repeat(first['qpos'][None], 3, axis=0))
        assert [result.info['step'] for result in chunk] == [2, 3, 4]
        second = env.reset()  # the next scene
        np.testing.assert_array_equal(env.reset(seed=4)['frames_front'], first['frames_front'])
        assert not np.array_equal(second['frames_front'], first['frames_front'])
    with pytest.raises(EnvError) as closed:
        env.reset()
    assert closed.value.kind == 'closed'


def test_this_packages_own_spec_is_taken_too() -> None:
    pytest.importorskip('mujoco')
    from openeta_ros.embodiment import load

    spec = EnvSpec(backend='mujoco', task='reach', embodiment=load('light_arm'))
    with RlinfEnvFacade.from_spec(spec) as env:
        env.reset()


@pytest.mark.parametrize(
    ('changes', 'told'),
    [
        ({'num_envs': 4}, 'num_envs is 4'),
        ({'worker_info': object()}, 'worker_info'),
        ({'constructor_kwargs': {'record_metrics': True}}, 'constructor_kwargs'),
        ({'env_cfg': None}, 'mapping'),
        ({'env_cfg': {}}, 'task'),
        ({'env_cfg': {**CONFIG, 'auto_reset': True}}, 'auto_reset'),
        ({'env_cfg': {**CONFIG, 'group_sizes': 1}}, 'group_sizes'),
        ({'env_cfg': {**CONFIG, 'max_episode_steps': '7'}}, "max_steps is '7'"),
        ({'env_cfg': {**CONFIG, 'seed': 1.5}}, 'seed is 1.5'),
        ({'env_cfg': {**CONFIG, 'options': ['fast']}}, 'options is a mapping, not list'),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(changes: dict[str, Any], told: str) -> None:
    spec = RlinfEnvSpec(**{'env_type': 'mujoco', 'env_cfg': CONFIG, **changes})
    with pytest.raises(EnvError, match=told) as refused:
        RlinfEnvFacade.from_spec(spec)
    assert refused.value.kind == 'option'


def test_an_unknown_env_type_lists_what_there_is() -> None:
    with pytest.raises(EnvError, match='mujoco') as refused:
        RlinfEnvFacade.from_spec(RlinfEnvSpec('no_such_env', CONFIG))
    assert refused.value.kind == 'backend'


def test_every_name_imports_and_has_its_line_in_the_reference() -> None:
    import openeta_ros.openeta as names

    page = (Path(__file__).parents[1] / 'docs/reference/openeta.md').read_text()
    for name in names.__all__:
        assert hasattr(names, name)
        assert f'`{name}`' in page


def test_a_snippet_from_its_writer_to_its_result_with_openetas_names() -> None:
    pytest.importorskip('mujoco')
    from openeta_ros.openeta import (
        ActionExecutionContext,
        CodePolicyApi,
        CodePolicyInterface,
        CodePolicyPlanner,
        PipelineStatus,
        RlinfCodePolicySandbox,
        RlinfSandboxConfig,
        StaticCodePolicyBackend,
    )

    backend = StaticCodePolicyBackend(
        ["RESULT = api.step(api.observe()['qpos']).info['step']\n", '```python\n```']
    )
    sandbox = RlinfCodePolicySandbox(RlinfSandboxConfig(strict=False))
    with RlinfEnvFacade.from_spec(RlinfEnvSpec('mujoco', CONFIG)) as env:
        first = env.reset()
        planner = CodePolicyPlanner(backend, api=CodePolicyApi.of_facade(env).descriptor())
        interface = CodePolicyInterface(sandbox, env=env)
        decision = planner.plan(first, task='stay where you are')
        result = interface.execute(ActionExecutionContext(decision))
        assert result.status is PipelineStatus.EXECUTED
        assert result.to_dict()['status'] == 'executed'
        assert result.details['result'] == 1
        assert env.observe()['qpos'].shape == first['qpos'].shape
        empty = planner.plan(first, memory=[result], task='stay where you are')
        assert interface.execute(ActionExecutionContext(empty)).status is PipelineStatus.BLOCKED
    # Without an env it cannot act, and says so.
    assert (
        CodePolicyInterface(sandbox).execute(ActionExecutionContext(decision)).status
        is PipelineStatus.PENDING
    )
