# SPDX-License-Identifier: Apache-2.0
"""`openeta run-snippet`: what it prints, what it leaves behind, and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from contracts import QUICK_ARM, commanded_arm, contract, light_arm_with

from openeta_ros.cli.main import main

pytest.importorskip('mujoco')

# For what is sure to happen, however busy the machine is.
SURE_S = 240.0
HERE = ('--env', 'mujoco', '--task', 'reach', '--embodiment', QUICK_ARM, '--no-strict')
MOVES = """\
first = api.observe()['qpos']
step = api.step(first)
print('at row', step.info['step'])
RESULT = {'rows': step.info['step']}
"""
GOES_TOO_FAR = """\
home = api.observe()['qpos']
api.step(home)
api.step(home + 3.0)
"""


@pytest.fixture(autouse=True)
def drawn_without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('MUJOCO_GL', 'egl')


def snippet(tmp_path: Path, code: str) -> str:
    path = tmp_path / 'snippet.py'
    path.write_text(code)
    return str(path)


def run(tmp_path: Path, code: str, *arguments: str) -> int:
    output = ['--output', str(tmp_path / 'out')]
    return main(['run-snippet', snippet(tmp_path, code), *HERE, *output, *arguments])


def printed(capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    result = json.loads(capfd.readouterr().out)
    assert isinstance(result, dict)
    return result


def test_json_is_the_whole_result_and_the_record_holds_code_trace_video_and_rewards(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, MOVES, '--seed', '2', '--json') == 0
    result = printed(capfd)
    assert result['status'] == 'executed'
    assert result['details']['result'] == {'rows': 1}
    assert result['details']['success'] is False  # it ran to its end, and solved nothing: that is no failure
    folder = tmp_path / 'out'
    assert (folder / 'snippet.py').read_text() == MOVES
    assert json.loads((folder / 'result.json').read_text()) == result
    calls = [json.loads(line)['call'] for line in (folder / 'trace.jsonl').read_text().splitlines()]
    assert calls[:3] == ['reset', 'observe', 'step']
    assert (folder / 'episodes/0/front.mp4').stat().st_size > 0
    assert list((folder / 'episodes/0/bag').glob('*.mcap'))


def test_people_are_told_call_by_call_and_then_all_of_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, MOVES) == 0
    out = capfd.readouterr().out
    assert 'line 2  step  rows 1 to 1' in out
    assert 'at row 1' in out
    assert 'status        executed' in out and 'success       no' in out
    assert str(tmp_path / 'out') in out


def test_a_snippet_that_is_stopped_is_exit_code_1_and_its_line_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, GOES_TOO_FAR, '--json') == 1
    result = printed(capfd)
    assert result['status'] == 'failed'
    error = result['details']['error']
    assert (error['kind'], error['line']) == ('action', 3)
    assert 'line 3' in result['content']


def test_a_dry_run_moves_nothing_and_is_exit_code_0(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, MOVES, '--dry-run', '--json') == 0
    assert printed(capfd)['status'] == 'planned'


def test_a_budget_of_the_command_line_counts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    endless = 'home = api.observe()["qpos"]\nwhile True:\n    api.step(home)\n'
    assert run(tmp_path, endless, '--budget', 'rows=4', '--json') == 1
    result = printed(capfd)
    assert result['details']['error']['kind'] == 'rows'
    assert result['details']['used']['rows'] == 4


@pytest.mark.parametrize(
    ('arguments', 'told'),
    [
        (['--budget', 'patience=3'], 'wall_s'),
        (['--budget', 'rows=many'], "'many' is no number"),
        (['--budget', 'rows=0'], 'rows'),
        (['--seed', '-1'], '--seed'),
        (['--env', 'no_such_env'], 'mujoco'),
        (['--task', 'fold_laundry'], 'fold_laundry'),
        (['--embodiment', 'no_such_robot'], 'no_such_robot'),
        (['--env', 'arm'], '--hardware'),
        (['--hardware', 'mock'], "env 'mujoco' has none"),
    ],
)
def test_what_is_asked_for_wrongly_starts_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert run(tmp_path, MOVES, *arguments) == 2
    captured = capfd.readouterr()
    assert told in captured.err and 'starting' not in captured.out
    assert not (tmp_path / 'out').exists()


def test_a_record_is_not_written_over(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out/mine.txt').write_text('keep me')
    assert run(tmp_path, MOVES) == 2
    assert 'is not empty' in capfd.readouterr().err


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(['run-snippet', str(tmp_path / 'nothing.py'), *HERE]) == 2
    assert 'nothing.py' in capfd.readouterr().err


def test_an_arm_is_driven_over_its_topics(tmp_path: Path) -> None:
    pytest.importorskip('rclpy')
    moves = """\
here = api.observe()['endpose'][:3]
step = api.move_arm([here[0], here[1], here[2] - 0.05])
while here[2] - step.observation['endpose'][2] < 0.03:  # it is seen late on a busy machine
    step = api.open_gripper()
RESULT = 'down'
"""
    data = contract('light_arm')
    patient = commanded_arm(  # a machine that is busy with other tests is no fault of the arm
        tmp_path,
        safety={**data['safety'], 'watchdog_s': SURE_S},
        align={**data['align'], 'max_age_s': SURE_S},
        state=[{**data['state'][0], 'max_age_s': SURE_S}],
    )
    robot = ['--env', 'arm', '--hardware', 'mock', '--task', 'reach', '--embodiment', str(patient.path)]
    robot += [
        '--max-steps',
        '100000',
        '--no-strict',
        '--budget',
        f'wall_s={SURE_S}',
        '--budget',
        'rows=100000',
    ]
    done = subprocess.run(
        [sys.executable, '-m', 'openeta_ros.cli', 'run-snippet', snippet(tmp_path, moves), *robot, '--json',
         '--output', str(tmp_path / 'out')],
        capture_output=True,
        text=True,
        timeout=2 * SURE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result['status'] == 'executed'
    assert result['details']['result'] == 'down'
    assert (tmp_path / 'out/episodes/0/front.mp4').stat().st_size > 0


def test_ctrl_c_ends_the_run_and_leaves_no_process(tmp_path: Path) -> None:
    endless = 'home = api.observe()["qpos"]\nwhile True:\n    api.step(home)\n'
    command = [sys.executable, '-m', 'openeta_ros.cli', 'run-snippet', snippet(tmp_path, endless), *HERE]
    process = subprocess.Popen(
        [*command, '--output', str(tmp_path / 'out')],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if 'step' in line:
            break
    process.send_signal(signal.SIGINT)
    process.stdout.read()  # until everyone who could write has ended
    assert process.wait(SURE_S) == 130
    deadline = time.monotonic() + SURE_S
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:  # who has ended is there until it is reaped
            os.killpg(process.pid, 0)
            time.sleep(0.01)


@pytest.mark.parametrize(
    ('change', 'arguments', 'words'),
    [
        (('shoulder_yaw', 'waist'), (), "has no joint 'waist'"),
        (('rate_hz: 20', 'rate_hz: 10'), ('--max-steps', '0'), '--max-steps must be at least 1'),
    ],
)
def test_what_it_cannot_be_run_in_is_told_before_anything_starts(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: tuple[str, str],
    arguments: tuple[str, ...],
    words: str,
) -> None:
    light_arm_with(tmp_path, change)
    where = ('--embodiment', str(tmp_path / 'changed.yaml'))
    assert run(tmp_path, MOVES, *where, *arguments) == 2
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1 and words in told
    assert not (tmp_path / 'out').exists()
