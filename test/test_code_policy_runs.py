# SPDX-License-Identifier: Apache-2.0
"""A run of a snippet: what it is given, what it may use, how it ends, and what is told of it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from point_env import PointEnv

from openeta_ros.code_policy import (
    BudgetError,
    Budgets,
    CodePolicyApi,
    CodePolicyExecutionRequest,
    CodePolicyExecutionResult,
    CodePolicySandbox,
    CodePolicyStatus,
    SandboxConfig,
    isolation,
)
from openeta_ros.code_policy import run as run_module
from openeta_ros.code_policy.api import METHODS
from openeta_ros.code_policy.feedback import ALLOWED
from openeta_ros.code_policy.preflight import inspect
from openeta_ros.code_policy.tools import ToolError, mounted
from openeta_ros.code_policy.types import ERROR_KINDS
from openeta_ros.embodiment import load
from openeta_ros.envs.backend import CAMERAS

# For what is sure to happen, however busy the machine is.
SURE_S = 240.0
FAR = """
qpos = api.observe()['qpos'].copy()
qpos[0] = 0.05
api.step(qpos)
qpos[0] = 2.0
api.step(qpos)
"""


def make_api(env: PointEnv | None = None, **options: Any) -> CodePolicyApi:
    env = env or PointEnv()
    return CodePolicyApi(env, env.embodiment, **options)


def run(code: str, api: CodePolicyApi | None = None, **request: Any) -> CodePolicyExecutionResult:
    seed = request.pop('seed', 1)
    events = request.pop('on_event', None)
    cancelled = request.pop('cancelled', None)
    config = request.pop('config', SandboxConfig(isolation='process'))
    asked = CodePolicyExecutionRequest(code, api=api or make_api(), seed=seed, **request)
    return CodePolicySandbox(config).execute(asked, on_event=events, cancelled=cancelled)


def test_a_snippet_sees_moves_and_hands_back() -> None:
    result = run(
        """
obs = api.observe()
assert obs['frames_front'].shape == (240, 320, 3) and obs['frames_front'].dtype == np.uint8
qpos = obs['qpos'].copy()
qpos[0] += 0.05
step = api.step(qpos)
assert step.observation['qpos'][0] == qpos[0] and not step.done
steps = api.chunk_step([qpos, qpos])
assert [s.info['step'] for s in steps] == [2, 3]
assert 'frames_front' in steps[-1].observation and 'frames_front' not in steps[0].observation
api.checkpoint('there')
print('said', policy_context['word'])
RESULT = {'q': steps[-1].observation['qpos'], 'n': len(steps)}
""",
        policy_context={'word': 'hello'},
    )
    assert result.status is CodePolicyStatus.EXECUTED, result.content
    assert result.details['error'] is None
    assert result.details['output'] == 'said hello\n'
    assert result.details['result']['n'] == 2
    assert result.details['result']['q']['values'][0] == pytest.approx(0.05)
    labels = [mark['label'] for mark in result.details['checkpoints']]
    assert labels == ['after reset', 'after step', 'after chunk_step', 'there']
    assert result.details['checkpoints'][-1]['step'] == 3
    json.dumps(result.to_dict(), allow_nan=False)


def test_the_trace_holds_calls_by_value_and_what_came_of_them() -> None:
    events: list[dict[str, Any]] = []
    result = run(FAR, on_event=events.append)
    trace = result.details['trace']
    assert trace == events
    assert [entry['seq'] for entry in trace] == list(range(len(trace)))
    assert [entry['call'] for entry in trace[:4]] == ['reset', 'observe', 'step', 'step']
    first, second = trace[2], trace[3]
    assert (first['line'], second['line']) == (4, 6)
    # The array that was changed after the call is in the first entry as it was.
    assert first['arguments']['action']['values'][0] == 0.05
    assert first['steps'] == [1, 1] and first['result']['info']['step'] == 1
    assert first['executed'] == [first['arguments']['action']['values']]
    assert second['steps'] is None and second['error']['action_kind'] == 'step'
    assert trace[0]['by'] == 'runtime' and first['by'] == 'snippet'


def test_feedback_says_what_was_done_where_it_stopped_and_what_is_allowed() -> None:
    result = run(FAR)
    assert result.status is CodePolicyStatus.FAILED
    assert result.details['error']['kind'] == 'action' and result.details['error']['line'] == 6
    for text in ('failed (action, step) at line 6, `api.step(qpos)`', 'line 4: step ok, rows 1 to 1',
                 'the arm holds', 'Allowed: Nothing of the refused call moved'):  # fmt: skip
        assert text in result.content
    assert set(ALLOWED) == set(ERROR_KINDS)


def test_the_host_may_go_on_with_the_api_after_a_run() -> None:
    api = make_api()
    assert run('api.observe()', api).status is CodePolicyStatus.EXECUTED
    time.sleep(0.1)  # limits are looked at every 0.05 s
    assert api.call('descriptor', [], {})['name'] == 'CodePolicyApi'
    api.reset(2)


def test_a_refused_call_can_be_caught_and_corrected() -> None:
    result = run("""
qpos = api.observe()['qpos'].copy()
qpos[0] = 3.0
check = api.safe_check('step', action=qpos)
assert not check['ok'] and check['kind'] == 'action', check
try:
    api.step(qpos)
except ActionError as error:
    assert error.details['action_kind'] == 'limit', error.details
    qpos[0] = 0.05
api.step(qpos)
assert api.safe_check('move_arm', pose=[9, 9, 9])['ok'] is False
""")
    assert result.status is CodePolicyStatus.EXECUTED, result.content
    assert result.details['used']['rows'] == 1


def test_the_descriptor_tells_exactly_what_there_is() -> None:
    result = run(
        """
told = api.descriptor()
for name, method in told['methods'].items():
    assert callable(getattr(api, name)), name
assert [name for name in dir(api) if not name.startswith('_')] == sorted(told['methods'])
for name in told['globals']:
    assert name == 'RESULT' or name in globals(), name
seen = api.observe()
for name, what in told['observation'].items():
    assert list(seen[name].shape) == what['shape'] and seen[name].dtype == what['dtype'], name
assert sorted(seen) == sorted(told['observation'])
qpos = seen['qpos'].copy()
column = told['actions']['qpos'][0]
qpos[0] += column['largest_step'] * 0.99
api.step(qpos)
RESULT = told
""",
        config=SandboxConfig(isolation='process', preflight=False),
    )
    assert result.status is CodePolicyStatus.EXECUTED, result.content
    told = result.details['result']
    assert list(told['methods']) == list(METHODS)
    assert told['budgets'] == Budgets().to_dict()
    assert told['tools']['detect']['signature'].startswith('(colour: ')
    json.dumps(make_api().descriptor(), allow_nan=False)


def test_lines_of_the_tool_point_are_straight_and_end_where_they_should() -> None:
    api = make_api()
    start = api.reset(0)['endpose'][:7]
    goal = start[:3] + np.array([0.02, 0.03, -0.04])
    steps = api.mover.execute(api.mover.plan('move_arm', {'pose': goal}), None)
    points = np.array([step.observation['endpose'][:3] for step in steps])
    np.testing.assert_allclose(points[-1], goal, atol=1e-6)
    np.testing.assert_allclose(steps[-1].observation['endpose'][3:7], start[3:], atol=1e-6)
    along = (goal - start[:3]) / np.linalg.norm(goal - start[:3])
    assert np.abs(np.cross(points - start[:3], along)).max() < 1e-6
    slow = api.mover.plan('move_arm', {'pose': start, 'speed': 0.25})
    assert len(slow) >= 3 * len(steps)


def test_a_gripper_opens_and_closes_in_rows() -> None:
    api = make_api()
    api.reset(0)
    assert api.call('close_gripper', [], {}).observation['qpos'][-1] == 0.0
    assert api.call('open_gripper', [], {}).observation['qpos'][-1] == 1.0
    assert {'close_gripper', 'open_gripper'} <= {entry['call'] for entry in api.trace.calls}


def test_tools_of_the_host_are_called_by_name() -> None:
    def double(view: Any, number: float) -> dict[str, Any]:
        """Double a number."""
        return {'twice': 2 * number, 'seen': np.array(view.observation['qpos'])}

    def broken(view: Any) -> None:
        raise RuntimeError('out of order')

    api = make_api(tools={'double': double, 'broken': broken})
    result = run(
        """
assert api.call_tool('double', number=4)['twice'] == 8
try:
    api.call_tool('broken')
except ToolError as error:
    RESULT = str(error)
""",
        api,
    )
    assert 'out of order' in result.details['result'], result.content
    with pytest.raises(ToolError, match='cameras'):
        make_api_seen().call('call_tool', ['detect'], {'colour': 'red'})


def make_api_seen() -> CodePolicyApi:
    api = make_api()
    api.reset(0)
    return api


def test_contracts_say_where_the_cameras_of_the_scenes_stand() -> None:
    for name in ('franka', 'franka_genesis'):
        assert mounted(load(name)) == dict(CAMERAS)


@pytest.mark.parametrize(
    ('code', 'kind', 'line', 'words'),
    [
        ('x =', 'syntax', 1, 'invalid syntax'),
        ('import math\nimport os', 'forbidden', 2, 'imports os'),
        ('from numpy import ctypeslib', 'forbidden', 1, 'numpy.ctypeslib'),
        ('import random\n\nrandom._os', 'forbidden', 3, '_os'),
        ('().__class__.__base__', 'forbidden', 1, '__base__'),
        ("'{0.__class__}'.format(1)", 'forbidden', 1, '__class__'),
        ('eval("1")', 'forbidden', 1, 'eval'),
        ('np.load("x")', 'forbidden', 1, 'load'),
        ('import numpy.f2py.crackfortran', 'forbidden', 1, 'numpy.f2py'),
        ('from numpy.lib import format', 'forbidden', 1, 'numpy.lib.format'),
        ('match api:\n    case object(__class__=c): pass', 'forbidden', 2, '__class__'),
    ],
)
def test_the_preflight_refuses_with_a_line(code: str, kind: str, line: int, words: str) -> None:
    found = [finding for finding in inspect(code) if finding.kind == kind]
    assert found[0].line == line and words in found[0].message


def test_what_the_preflight_refuses_does_not_run() -> None:
    env = PointEnv()
    result = run('import os\nos.getpid()', make_api(env))
    assert result.status is CodePolicyStatus.BLOCKED
    assert 'blocked (forbidden) at line 1, `import os`' in result.content
    assert not hasattr(env, '_step'), 'it was reset'


def test_loops_without_end_are_warned_of() -> None:
    quiet = 'while True:\n    s = api.step(q)\n    if s.done: break'
    assert inspect(quiet) == []
    (warning,) = inspect('while True:\n    x = 1')
    assert warning.kind == 'warning' and warning.line == 1
    result = run('while True:\n    api.observe()', budgets=Budgets(calls=5))
    assert 'Warning, line 1' in result.content and result.details['error']['kind'] == 'calls'


def test_the_shipped_snippets_pass_the_preflight() -> None:
    folder = Path(__file__).parents[1] / 'examples/snippets'
    for path in folder.glob('*.py'):
        assert inspect(path.read_text()) == [], path
    kinds = {path.stem: inspect(path.read_text()) for path in (folder / 'broken').glob('*.py')}
    assert kinds['forbidden'][0].kind == 'forbidden' and kinds['too_far'] == []


@pytest.mark.parametrize(
    ('kind', 'budgets'),
    [('timeout', Budgets(wall_s=0.5, cpu_s=SURE_S)), ('cpu', Budgets(wall_s=SURE_S, cpu_s=0.5))],
)
def test_time_that_runs_out_is_told_with_its_line(
    monkeypatch: pytest.MonkeyPatch, kind: str, budgets: Budgets
) -> None:
    for name in ('LATE_S', 'TRACEBACK_S'):  # a busy machine may let it come to tell late
        monkeypatch.setattr(run_module, name, SURE_S)
    result = run('x = 0\nwhile True:\n    x += 1', budgets=budgets)
    assert result.details['error']['kind'] == kind and result.details['error']['line'] in (2, 3)


def test_a_run_is_cancelled_between_rows_and_the_arm_holds() -> None:
    stop = threading.Event()
    env = PointEnv(before_row=lambda number: stop.set() if number == 4 else None)
    api = make_api(env)
    rows = np.repeat(env.embodiment.home_qpos[None], 10, axis=0)
    result = run(f'api.chunk_step(np.array({rows.tolist()}))', api, cancelled=stop.is_set)
    assert result.status is CodePolicyStatus.FAILED
    assert result.details['error']['kind'] == 'cancelled' and result.details['error']['line'] == 1
    entry = next(entry for entry in result.details['trace'] if entry['call'] == 'chunk_step')
    assert len(entry['executed']) == 5 and entry['steps'] == [1, 5]
    assert result.details['state']['step'] == 5 and not result.details['state']['done']


def test_a_listener_that_cannot_be_told_ends_the_run_with_its_own_error() -> None:
    def gone(entry: dict[str, Any]) -> None:
        if entry['call'] == 'observe':
            raise BrokenPipeError('nobody reads')

    with pytest.raises(BrokenPipeError, match='nobody reads'):
        run('api.observe()', on_event=gone)


def test_a_run_is_cancelled_while_it_computes() -> None:
    stop = threading.Event()

    def computing(entry: dict[str, Any]) -> None:
        if entry['call'] == 'log':
            stop.set()

    result = run("api.log('here')\nwhile True: pass", on_event=computing, cancelled=stop.is_set)
    assert result.details['error']['kind'] == 'cancelled'
    done = run('pass', cancelled=lambda: True)
    assert done.status is CodePolicyStatus.SKIPPED


HOST = """
import os, sys
sys.path.insert(0, os.path.dirname({test!r}))
from test_code_policy_runs import run
code = 'import time\\nwhile True: time.sleep(1)'
run(code, on_event=lambda entry: print(entry['call'], flush=True))
"""


def test_a_host_that_is_killed_takes_its_snippet_along() -> None:
    host = subprocess.Popen([sys.executable, '-c', HOST.format(test=__file__)], stdout=subprocess.PIPE)
    assert host.stdout is not None
    host.stdout.readline()  # the reset: the process has been started by then
    children = Path(f'/proc/{host.pid}/task/{host.pid}/children').read_text().split()
    host.kill()
    host.wait()
    host.stdout.close()
    assert children
    deadline = time.monotonic() + SURE_S
    while any(alive(pid) for pid in children):
        assert time.monotonic() < deadline, 'the process of the snippet is still there'
        time.sleep(0.05)


def alive(pid: str) -> bool:
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False


def test_an_arm_that_was_moving_is_brought_to_rest_within_its_limits() -> None:
    api = make_api()
    api.reset(0)
    limits = api.mover.pipeline.limits
    limits.largest_change[:] = 0.002
    rows = np.repeat(np.array(api.observe()['qpos'])[None], 5, axis=0)
    rows[:, 0] += 0.001 * np.array([1, 3, 6, 10, 15])
    api.call('chunk_step', [rows], {})
    api.hold()
    holding = api.trace.calls[-1]
    assert holding['call'] == 'hold'
    path = np.array([*rows, *holding['executed']])[:, 0]
    assert np.abs(np.diff(path, 2)).max() <= 0.002 + 1e-9
    assert path[-1] == path[-2]


def test_a_dry_run_without_a_copy_checks_and_moves_nothing() -> None:
    env = PointEnv()
    api = make_api(env)
    code = FAR.replace('qpos[0] = 2.0', 'qpos[0] = 0.1')
    result = run(code, api, dry_run=True)
    assert result.status is CodePolicyStatus.PLANNED, result.content
    assert result.details['dry_run'] == 'limits'
    assert result.details['state']['qpos'][0] == pytest.approx(0.1)
    assert not hasattr(env, '_step')
    assert run(FAR, api, dry_run=True).details['error']['kind'] == 'action'
    assert not hasattr(env, '_step')


def test_strict_refuses_where_something_cannot_be_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    described = isolation.describe('', {'landlock': '', 'seccomp': '', 'capabilities': '', 'limits': ''})
    assert described['not_enforced'] == []
    problems = {'landlock': 'no Landlock', 'seccomp': '', 'capabilities': '', 'limits': ''}
    assert isolation.describe('', problems)['not_enforced'] == []
    lacking = isolation.describe('not installed', problems)
    assert lacking['not_enforced'] == ['files: bubblewrap: not installed; landlock: no Landlock']
    monkeypatch.setattr(run_module, 'describe', lambda bubblewrap, problems: lacking)
    result = run('RESULT = 1')
    assert result.status is CodePolicyStatus.BLOCKED
    assert result.details['error']['kind'] == 'isolation' and 'no Landlock' in result.content
    result = run('RESULT = 1', config=SandboxConfig(isolation='process', strict=False))
    assert result.status is CodePolicyStatus.EXECUTED
    assert result.details['isolation']['not_enforced'] == lacking['not_enforced']


def test_a_process_that_cannot_be_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **keywords: Any) -> Any:
        raise OSError('no more processes')

    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    api, before = make_api(), set(os.listdir('/proc/self/fd'))
    for name in ('isolation.subprocess.Popen', 'isolation.os.pipe', 'shared.os.memfd_create'):
        with monkeypatch.context() as broken:
            broken.setattr(f'openeta_ros.code_policy.{name}', full)
            result = run('pass', api)
        assert result.status is CodePolicyStatus.BLOCKED and result.details['error']['kind'] == 'isolation'
        assert 'no more processes' in result.content
    assert list(tmp_path.iterdir()) == [] and set(os.listdir('/proc/self/fd')) <= before


def test_a_snippet_that_is_no_snippet_by_its_size_is_refused() -> None:
    result = run('#' * (5 << 20), config=SandboxConfig(isolation='process', preflight=False))
    assert result.status is CodePolicyStatus.BLOCKED
    assert result.details['error']['kind'] == 'forbidden' and 'bytes' in result.content
    assert run('x = 1\n' * 50_000).details['error']['kind'] == 'forbidden'


WRITES_MEANWHILE = """
import gc
line = [o for o in gc.get_objects() if type(o).__name__ == 'Line'][0]
rows = [api.observe()['qpos'].tolist()] * 12
line.send('act', {'call': 'chunk_step', 'line': 6, 'arguments': [rows], 'keywords': {}, 'held': []})
while True:
    open('file', 'wb').write(bytes(1 << 20))
    open('other', 'wb').write(bytes(1 << 20))
"""


def test_limits_hold_while_a_call_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))

    def written() -> bool:
        return len([file for file in tmp_path.glob('*/*') if file.stat().st_size == 1 << 20]) == 2

    def before_row(number: int) -> None:
        deadline = time.monotonic() + SURE_S
        while number == 4 and not written():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        if number > 4:
            time.sleep(run_module.TICK_S)  # limits are looked at so often

    result = run(
        WRITES_MEANWHILE,
        make_api(PointEnv(before_row=before_row)),
        budgets=Budgets(file_bytes=1 << 20),
        config=SandboxConfig(isolation='process', preflight=False),
    )
    assert result.details['error']['kind'] == 'output', result.content
    assert result.details['used']['rows'] == 12 and result.details['state']['step'] < 12


def test_a_tool_whose_answer_cannot_be_passed_on_has_failed() -> None:
    api = make_api(tools={'tell': lambda view: 'x' * (5 << 20)})
    result = run("api.call_tool('tell')", api)
    assert result.details['error']['kind'] == 'tool', result.content
    assert 'cannot be passed on' in result.content


def test_nothing_to_run_is_skipped_and_without_an_env_it_waits() -> None:
    assert run('  \n').status is CodePolicyStatus.SKIPPED
    result = CodePolicySandbox().execute(CodePolicyExecutionRequest('api.observe()'))
    assert result.status is CodePolicyStatus.PENDING


def test_the_record_holds_code_trace_video_and_rewards(tmp_path: Path) -> None:
    folder = tmp_path / 'run'
    result = run(FAR, output=folder, metadata={'turn': 3})
    assert (folder / 'snippet.py').read_text() == FAR
    lines = [json.loads(line) for line in (folder / 'trace.jsonl').read_text().splitlines()]
    assert lines == result.details['trace']
    assert len(lines[0]['observed']['frames_front']['sha256']) == 64
    request = json.loads((folder / 'request.json').read_text())
    assert request['code_sha256'] == result.details['code_sha256'] and request['metadata'] == {'turn': 3}
    assert json.loads((folder / 'result.json').read_text()) == result.to_dict()
    assert (folder / 'episodes/0/front.mp4').stat().st_size > 0
    assert (folder / 'episodes/0/bag/metadata.yaml').is_file()
    with pytest.raises(FileExistsError, match='not empty'):
        run(FAR, output=folder)


@pytest.mark.parametrize('budget', [{'wall_s': 0}, {'rows': -1}, {'calls': 1.5}, {'cpu_s': float('nan')}])
def test_budgets_that_cannot_be_meant_are_refused(budget: dict[str, Any]) -> None:
    with pytest.raises(BudgetError, match=next(iter(budget))):
        Budgets(**budget)


def test_examples_parse() -> None:
    for path in (Path(__file__).parents[1] / 'examples/snippets').rglob('*.py'):
        ast.parse(path.read_text())
