# SPDX-License-Identifier: Apache-2.0
"""What a model is shown: the seven parts of the context, bounded, JSON-safe, naming only what exists."""

from __future__ import annotations

import base64
import json
from typing import Any

import cv2
import numpy as np
import pytest

from openeta_ros.code_policy.backends import CallableCodePolicyBackend, StaticCodePolicyBackend
from openeta_ros.code_policy.observed import LONGEST_SIDE, summarise
from openeta_ros.code_policy.planner import CodePolicyPlanner, remember
from openeta_ros.code_policy.prompt import make_prompt
from openeta_ros.code_policy.types import CodePolicyExecutionResult, CodePolicyStatus

KEYS = {
    'task',
    'observation',
    'memory',
    'tool_references',
    'skill_references',
    'env_api_reference',
    'safety_constraints',
}
API = {'functions': {'api.step': {'signature': 'step(action, action_type="qpos")'}}, 'budgets': {'rows': 100}}
PICTURE = np.zeros((4, 8, 3), dtype=np.uint8)
PICTURE[:, :, 0] = 255
OBSERVATION = {'qpos': np.array([0.1, -0.0, np.pi]), 'frames_front': PICTURE}


def context_of(planner: CodePolicyPlanner, **more: Any) -> Any:
    return planner.plan(OBSERVATION, task='t', **more).parameters['policy_context']


def failed_run(number: int = 0) -> CodePolicyExecutionResult:
    return CodePolicyExecutionResult(
        CodePolicyStatus.FAILED,
        f'run {number}: line 3: row 2 was refused: joint_2 beyond its limit',
        {
            'error': {'kind': 'action', 'message': 'joint_2 beyond its limit', 'line': 3},
            'checkpoints': [{'label': f'c{index}', 'step': index} for index in range(9)],
            'trace': [{'call': 'step'}] * 500,
            'result': None,
        },
    )


def test_the_context_has_its_seven_parts_and_is_json() -> None:
    planner = CodePolicyPlanner(StaticCodePolicyBackend(['api.observe()\n']), api=API)
    decision = planner.plan(
        OBSERVATION,
        memory=[failed_run(), 'the cube rolled away'],
        tools=[{'name': 'detect', 'parameters': {'color': 'red'}}],
        skills=['approach from above'],
        task='pick the cube',
    )
    context = decision.parameters['policy_context']
    assert set(context) == KEYS
    assert json.loads(json.dumps(context, allow_nan=False)) == context
    assert context['task'] == 'pick the cube'
    assert context['env_api_reference'] == API
    assert context['tool_references'][0]['name'] == 'detect'
    assert context['skill_references'] == ['approach from above']
    assert (decision.action_type, decision.action) == ('tool_call', 'code_policy')
    assert decision.code == 'api.observe()\n'
    assert decision.metadata['generation_status'] == 'planned'


def test_nothing_is_named_as_callable_but_what_the_api_says() -> None:
    planner = CodePolicyPlanner(api=API)
    context = context_of(planner)
    told = json.dumps({**context, 'env_api_reference': {}})
    for name in ('call_tool', 'move_arm', 'move_base', 'ask_human', 'safe_check', 'open_gripper', 'api.'):
        assert name not in told


def test_what_went_wrong_is_remembered_without_the_whole_trace() -> None:
    entry = remember(failed_run(), code='x = 1\n')
    assert entry['status'] == 'failed' and 'line 3' in entry['content']
    assert entry['error']['kind'] == 'action'
    assert [checkpoint['label'] for checkpoint in entry['checkpoints']] == ['c4', 'c5', 'c6', 'c7', 'c8']
    assert entry['code'] == 'x = 1\n'
    assert 'trace' not in entry


def test_the_next_snippet_is_written_from_what_came_of_the_last() -> None:
    seen: list[str] = []

    def write(request: Any) -> str:
        seen.append(make_prompt(request).text)
        return 'api.observe()'

    planner = CodePolicyPlanner(CallableCodePolicyBackend(write), api=API)
    planner.plan(OBSERVATION, memory=[failed_run()], task='t')
    assert 'row 2 was refused: joint_2 beyond its limit' in seen[0]


@pytest.mark.parametrize('max_chars', [1, 3000, 20_000])
def test_the_context_is_bounded_and_the_newest_memory_stays(max_chars: int) -> None:
    planner = CodePolicyPlanner(api=API, max_chars=max_chars)
    memory = [failed_run(number) for number in range(200)]
    context = context_of(planner, memory=memory, tools=['x' * 1000] * 50)
    bare = len(json.dumps(context_of(planner)))
    assert len(json.dumps(context)) <= max(max_chars, bare) + 300
    assert context['memory'][0].endswith('older entries are left out')
    if max_chars == 20_000:
        assert 'run 199' not in json.dumps(context['memory'][:1])
    generous = context_of(CodePolicyPlanner(api=API, max_chars=max_chars), memory=memory)
    if max_chars > 1:
        assert 'run 199:' in generous['memory'][-1]['content']
    assert len(generous['memory']) < 200


def test_pictures_are_references_unless_asked_for() -> None:
    told = summarise(OBSERVATION)
    assert told['frames_front'] == {'shape': [4, 8, 3], 'dtype': 'uint8'}
    shown = summarise(OBSERVATION, pictures='png')['frames_front']
    data = np.frombuffer(base64.b64decode(shown['base64']), dtype=np.uint8)
    decoded = cv2.cvtColor(cv2.imdecode(data, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    np.testing.assert_array_equal(decoded, PICTURE)
    large = summarise(np.zeros((2000, 1000, 3), dtype=np.uint8), pictures='png')
    data = np.frombuffer(base64.b64decode(large['base64']), dtype=np.uint8)
    assert cv2.imdecode(data, cv2.IMREAD_COLOR).shape == (LONGEST_SIDE, LONGEST_SIDE // 2, 3)


def test_the_model_sees_pictures_that_use_up_no_room_and_do_not_reach_the_snippet() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (200, 200, 3), dtype=np.uint8)
    shown: list[Any] = []

    def write(request: Any) -> str:
        shown.append(request.policy_context)
        return 'api.observe()'

    backend = CallableCodePolicyBackend(write)
    planner = CodePolicyPlanner(backend, api=API, pictures='png', max_chars=5000)
    decision = planner.plan({'frames_front': noise}, memory=['remember this'], task='t')
    assert shown[0]['memory'] == ['remember this']
    assert len(shown[0]['observation']['frames_front']['base64']) > 100_000
    assert 'base64' not in json.dumps(decision.parameters)


@pytest.mark.parametrize(
    ('value', 'told'),
    [
        (
            np.array([np.nan, -np.inf, -0.0]),
            {'shape': [3], 'dtype': 'float64', 'values': ['nan', '-inf', 0.0]},
        ),
        (np.float32(0.5), 0.5),
        (float('inf'), 'inf'),
        (CodePolicyStatus.FAILED, 'failed'),
        (True, True),
        (b'ab', "b'ab'"),
        ((1, [2]), [1, [2]]),
    ],
)
def test_every_value_becomes_json(value: Any, told: Any) -> None:
    assert summarise(value) == told
    json.dumps(summarise(value), allow_nan=False)


def test_large_values_are_cut_and_say_so() -> None:
    depth = np.full((100, 100), 2.0, dtype=np.float32)
    depth[0, 0] = np.nan
    assert summarise(depth) == {
        'shape': [100, 100],
        'dtype': 'float32',
        'min': 2.0,
        'max': 2.0,
        'mean': 2.0,
        'finite': 9999,
    }
    assert summarise('x' * 5000).endswith('(3000 characters more)')
    assert summarise(list(range(100)))[-1] == 'and 36 more'
    assert summarise({str(number): number for number in range(100)})['left_out'] == 36
    deep: Any = 'leaf'
    for _ in range(50):
        deep = [deep]
    json.dumps(summarise(deep))
