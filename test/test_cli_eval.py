# SPDX-License-Identifier: Apache-2.0
"""`openeta eval` as it is typed: real processes, MuJoCo, the light arm, the example policies and others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import QUICK_ARM, light_arm_with

from openeta_ros.cli import eval
from openeta_ros.cli.main import _parser

ROOT = Path(__file__).parents[1]
# For what is sure to happen, however busy the machine is.
SURE_S = 300.0
QUICK = ('--transport', 'local', '--env', 'mujoco', '--embodiment', QUICK_ARM, '--task', 'reach')

POLICY = """
import os, time

class Policy:
    action_type = 'qpos'
    def __init__(self, sleep_s=0.0, exit_at=None, raise_at=None, refuse_to_start=False):
        if refuse_to_start:
            raise RuntimeError('no weights here')
        self.sleep_s, self.exit_at, self.raise_at, self.acts = sleep_s, exit_at, raise_at, 0
    def reset(self, seed):
        self.next = 0
    def set_demonstration(self, arrays, info):
        self.actions = arrays['actions']
    def act(self, observation):
        time.sleep(self.sleep_s)
        self.acts += 1
        if self.acts == self.exit_at:
            os._exit(3)
        if self.acts == self.raise_at:
            raise ValueError('no idea')
        row = self.actions[min(self.next, len(self.actions) - 1)]
        self.next += 1
        return {'action': row}
"""


def policy(folder: Path, **kwargs: Any) -> Path:
    folder.mkdir()
    (folder / 'my_policy.py').write_text(POLICY)
    (folder / 'policy.yaml').write_text(f'api: 1\npolicy: my_policy:Policy\nkwargs: {json.dumps(kwargs)}\n')
    return folder


class Run:
    """An `openeta eval` in a process of its own; every process that it leaves behind carries the mark."""

    def __init__(self, output: Path, *arguments: str) -> None:
        self.output = output
        self.mark = f'OPENETA_TEST_MARK={uuid.uuid4()}'
        name, _, value = self.mark.partition('=')
        command = [sys.executable, '-m', 'openeta_ros.cli', 'eval', '--output', str(output), *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, name: value},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self) -> int:
        self.stdout, self.stderr = self.process.communicate(timeout=SURE_S)
        assert 'Traceback' not in self.stderr + self.stdout, self.stderr
        assert self.left_behind() == []
        return self.process.returncode

    def wait_for(self, episodes: int) -> None:
        def come() -> bool:
            return (self.output / 'results.json').exists() and len(self.results()['episodes']) >= episodes

        self.wait_until(come)

    def wait_for_library(self, name: str) -> None:
        """Wait until the command itself has loaded a library: it is importing what that belongs to."""
        self.wait_until(lambda: name in Path(f'/proc/{self.process.pid}/maps').read_text())

    def wait_until(self, true: Callable[[], bool]) -> None:
        """Wait until something is true, while the command runs."""
        deadline = time.monotonic() + SURE_S
        while not true():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f'it did not come to this: {self.process.communicate()}')
            time.sleep(0.01)

    def results(self) -> Any:
        return json.loads((self.output / 'results.json').read_text())

    def left_behind(self) -> list[str]:
        deadline = time.monotonic() + SURE_S
        while (found := self._marked()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _marked(self) -> list[str]:
        found = []
        for folder in Path('/proc').glob('[0-9]*'):
            try:
                if self.mark.encode() in (folder / 'environ').read_bytes().split(b'\0'):
                    found.append((folder / 'cmdline').read_text().replace('\0', ' '))
            except OSError:
                continue
        return found


def one_sentence(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith('openeta eval: ')
    return lines[0]


@pytest.fixture(scope='module')
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp('replayed') / 'out', *QUICK, '--episodes', '2', '--seed', '5')
    assert run.end() == 0, run.stderr
    yield run


def test_the_example_policy_replays_the_expert_in_every_scene(replayed: Run) -> None:
    results = replayed.results()
    assert results['status'] == 'complete'
    assert [(episode['seed'], episode['success']) for episode in results['episodes']] == [
        (5, True),
        (6, True),
    ]
    for episode in results['episodes']:
        for path in (episode['files']['bag'], *episode['files']['videos'].values()):
            assert (replayed.output / path).exists()
    assert (replayed.output / 'policy.log').is_file()


def test_a_line_per_episode_and_a_closing_table_are_printed(replayed: Run) -> None:
    lines = replayed.stdout.splitlines()
    assert sum(line.startswith('episode ') for line in lines) == 2
    assert any(line.startswith('success rate') for line in lines)
    assert replayed.stderr == ''


def test_a_policy_that_raises_loses_the_episode_only(tmp_path: Path) -> None:
    source = policy(tmp_path / 'policy', raise_at=3)
    code, results = evaluated_here(tmp_path / 'out', '--episodes', '2', '--policy', str(source))
    assert code == 0
    first, second = results['episodes']
    assert (
        first['error']['kind'] == 'policy' and 'no idea' in first['error']['message'] and first['steps'] == 2
    )
    assert second['success']


def test_a_policy_that_dies_ends_it_in_one_sentence_and_results_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = policy(tmp_path / 'policy', exit_at=45), tmp_path / 'out'
    code, results = evaluated_here(output, '--episodes', '9', '--policy', str(source))
    assert code == 1
    sentence = one_sentence(capsys.readouterr().err)
    assert 'the policy went away' in sentence and sentence.endswith(f'; its log is {output / "policy.log"}')
    assert results['status'] == 'failed' and results['error']['kind'] == 'policy'
    count = len(results['episodes'])
    assert 1 <= count < 9 and f'{count} of 9 episodes are in {output / "results.json"}' in sentence


def test_a_policy_that_answers_too_late_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = policy(tmp_path / 'policy', sleep_s=600)
    assert evaluated_here(tmp_path / 'out', '--policy', str(source), '--policy-timeout', '0.5')[0] == 1
    assert 'no answer within 0.5s' in one_sentence(capsys.readouterr().err)


def test_a_policy_that_does_not_start_is_told_with_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, log = policy(tmp_path / 'policy', refuse_to_start=True), tmp_path / 'out' / 'policy.log'
    assert evaluated_here(tmp_path / 'out', '--policy', str(source))[0] == 1
    sentence = one_sentence(capsys.readouterr().err)
    assert 'no weights here' in sentence and str(log) in sentence
    assert 'no weights here' in log.read_text()


@pytest.mark.parametrize(('number', 'code'), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_quietly_and_results_are_kept(tmp_path: Path, number: int, code: int) -> None:
    source = policy(tmp_path / 'policy', sleep_s=0.02)
    run = Run(tmp_path / 'out', *QUICK, '--episodes', '50', '--policy', str(source))
    run.wait_for(1)
    run.process.send_signal(number)
    assert run.end() == code
    assert run.stderr == ''
    results = run.results()
    assert results['status'] == 'interrupted' and results['episodes'][0]['success']


@pytest.mark.parametrize('library', ['_multiarray_umath', '_pydantic_core', 'libmujoco'])
def test_a_signal_while_it_starts_ends_it_quietly(tmp_path: Path, library: str) -> None:
    run = Run(tmp_path / 'out', *QUICK, '--episodes', '50')
    run.wait_for_library(library)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130, (run.stdout, run.stderr)
    assert run.stderr == ''


def test_two_signals_do_not_break_the_clean_up(tmp_path: Path) -> None:
    source = policy(tmp_path / 'policy', sleep_s=0.02)
    run = Run(tmp_path / 'out', *QUICK, '--episodes', '50', '--policy', str(source))
    run.wait_for(1)
    for _ in range(3):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    assert run.end() == 130
    assert run.stderr == ''
    assert run.results()['status'] == 'interrupted'


BAD_CONTRACT = 'embodiment: broken\nrate_hz: -1\ncolour: red\n'


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (('--task', 'juggle'), ("no task 'juggle'", 'pick_cube')),
        (('--env', 'matrix'), ("no env 'matrix'", 'mujoco')),
        (('--embodiment', 'octopus'), ('octopus', 'light_arm')),
        (('--embodiment', 'n' * 300), ('no contract has this name',)),
        (('--policy', 'nowhere/'), ('nowhere/',)),
        (('--policy', 'n' * 300), ('there is no policy at nnn',)),
        (('--policy', '127.0.0.1:5555'), ('VECTOR_POLICY_AUTHKEY',)),
        (('--policy', '127.0.0.1:99999'), ('port out of range',)),
        (('--demonstration', 'nothing.npz'), ('nothing.npz',)),
        (('--episodes', '0'), ('episodes must be at least 1',)),
        (('--episodes', 'many'), ('--episodes', "'many'")),
        (('--seed', '-1'), ('seed must not be negative',)),
        (('--seed', str(10**30)), ('seed must be at most',)),
        (('--output', '/dev/null/x'), ('/dev/null/x cannot be made: Not a directory', '--output')),
        (('--output', __file__), (f'{__file__} cannot be made: File exists',)),
        (('--env', 'arm', '--transport', 'ros', '--hardware', 'mock', '--task', 'tidy up'), ('no task',)),
        (('--max-steps', '0'), ('max_steps must be at least 1',)),
        (('--policy-timeout', 'nan'), ('policy_timeout_s',)),
        (('--transport', 'pigeon'), ('pigeon',)),
    ],
)
def test_what_cannot_be_done_is_told_in_one_sentence_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    code = run_here('--output', str(tmp_path / 'out'), *QUICK, *arguments)
    sentence = one_sentence(capsys.readouterr().err)
    assert code == 2
    assert all(word in sentence for word in words), sentence
    assert not (tmp_path / 'out').exists()


def test_a_contract_that_its_robot_does_not_fit_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    light_arm_with(tmp_path, ('shoulder_yaw', 'waist'))
    asked = ('--output', str(tmp_path / 'out'), *QUICK, '--embodiment', str(tmp_path / 'changed.yaml'))
    assert run_here(*asked) == 2
    assert "arm arm has no joint 'waist', only shoulder_yaw" in one_sentence(capsys.readouterr().err)
    assert not (tmp_path / 'out').exists()


def test_a_demonstration_that_no_policy_can_be_sent_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / 'named.npz'
    np.savez(file, actions=np.zeros((2, 7)), names=np.array(['a', 'b']))
    assert run_here('--output', str(tmp_path / 'out'), *QUICK, '--demonstration', str(file)) == 2
    assert f"{file} cannot be shown to a policy: array 'names'" in one_sentence(capsys.readouterr().err)


def test_a_contract_is_meant_by_its_name_though_a_file_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = policy(tmp_path / 'policy')
    monkeypatch.chdir(tmp_path)
    Path('light_arm').write_text('a note about the arm')
    mine = light_arm_with(tmp_path, ('rate_hz: 20', 'rate_hz: 10')).path
    for name, found in (('light_arm', 'light_arm'), (mine.name, str(mine))):
        arguments = ['eval', *QUICK, '--embodiment', name, '--policy', str(source)]
        assert eval.checked_settings(_parser().parse_args(arguments)).embodiment == found


def test_a_task_of_an_arm_may_be_told_in_words(tmp_path: Path) -> None:
    arguments = ['eval', '--env', 'arm', '--embodiment', 'franka', '--task', 'Fold the towel.']
    arguments += ['--policy', str(policy(tmp_path / 'policy')), '--output', str(tmp_path / 'out')]
    assert eval.checked_settings(_parser().parse_args(arguments)).task == 'Fold the towel.'


def test_an_address_where_no_policy_is_served_is_told_without_a_log_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('VECTOR_POLICY_AUTHKEY', 'ab' * 32)
    monkeypatch.setattr('openeta_ros.vector_policy.process.CONNECT_TIMEOUT_S', 0.2)
    assert run_here('--output', str(tmp_path), *QUICK, '--policy', '127.0.0.1:1') == 1
    printed = capsys.readouterr()
    assert 'connecting to the policy (127.0.0.1:1)' in printed.out
    sentence = one_sentence(printed.err)
    assert 'nothing listened at 127.0.0.1:1 within 0.2s' in sentence and 'log' not in sentence


def test_all_problems_of_a_contract_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contract = tmp_path / 'broken.yaml'
    contract.write_text(BAD_CONTRACT)
    assert run_here('--output', str(tmp_path / 'out'), *QUICK, '--embodiment', str(contract)) == 2
    text = capsys.readouterr().err
    assert str(contract) in text and 'line 2' in text and 'line 3' in text and 'colour' in text


def test_all_problems_of_a_policy_yaml_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = policy(tmp_path / 'policy')
    (source / 'policy.yaml').write_text('api: 2\npolicy: nothing\n')
    assert run_here('--output', str(tmp_path / 'out'), *QUICK, '--policy', str(source)) == 2
    text = capsys.readouterr().err
    assert '2 problem(s)' in text and 'api: must be 1' in text and 'module:Class' in text


def test_results_are_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'results.json').write_text('{}')
    assert run_here('--output', str(tmp_path), *QUICK) == 2
    assert 'already holds results.json' in one_sentence(capsys.readouterr().err)
    (tmp_path / 'results.json').rename(tmp_path / 'workers')
    assert run_here('--output', str(tmp_path), *QUICK, '--workers', '2') == 2
    assert 'already holds workers' in one_sentence(capsys.readouterr().err)


def evaluated_here(output: Path, *arguments: str) -> tuple[int, Any]:
    """Return the exit code and the results of an evaluation in this process; results None without."""
    code = run_here('--output', str(output), *QUICK, *arguments)
    file = output / 'results.json'
    return code, json.loads(file.read_text()) if file.exists() else None


def run_here(*arguments: str) -> int:
    from openeta_ros.cli.main import main

    try:
        return main(['eval', *arguments])
    except SystemExit as error:
        return int(error.code or 0)
