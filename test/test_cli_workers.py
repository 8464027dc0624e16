# SPDX-License-Identifier: Apache-2.0
"""`openeta eval --workers`: several at once, with the results of one."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from test_cli_eval import QUICK, SURE_S, Run, evaluated_here, one_sentence, policy, run_here

from openeta_ros.cli import eval
from openeta_ros.cli.main import _parser
from openeta_ros.cli.workers import command
from openeta_ros.episodes import EvalSettings, without_times


def test_the_results_of_workers_with_a_graph_each_are_those_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip('rclpy')
    monkeypatch.setenv('ROS_DOMAIN_ID', '77')  # which two graphs cannot share
    scenes = ('--episodes', '3', '--seed', '5')
    code, one = evaluated_here(tmp_path / 'one', *scenes)
    assert code == 0
    run = Run(tmp_path / 'two', *QUICK, '--transport', 'ros', *scenes, '--workers', '2', '--json')
    assert run.end() == 0, run.stderr
    two = run.results()
    assert json.loads(run.stdout) == two
    found = {'local': without_times(one), 'ros': without_times(two)}
    for transport, results in found.items():
        assert results['settings'].pop('transport') == transport
    assert found['local'] == found['ros']
    assert two['latency_ms']['count'] == one['latency_ms']['count']
    for episode in two['episodes']:
        for path in (episode['files']['bag'], *episode['files']['videos'].values()):
            assert (run.output / path).exists()
    assert (run.output / 'report.html').is_file()
    lines = [line for line in run.stderr.splitlines() if line.startswith('episode ')]
    assert sorted(line.split()[1] for line in lines) == ['1/3', '2/3', '3/3']


def test_a_policy_that_dies_in_one_ends_them_all_and_results_are_kept(tmp_path: Path) -> None:
    source = policy(tmp_path / 'policy', exit_at=30)
    run = Run(tmp_path / 'out', *QUICK, '--episodes', '40', '--policy', str(source), '--workers', '2')
    assert run.end() == 1
    sentence = one_sentence(run.stderr)
    assert 'the policy went away' in sentence
    results = run.results()
    assert results['status'] == 'failed' and results['error']['kind'] == 'policy'
    assert f'{len(results["episodes"])} of 40 episodes are in' in sentence


def test_ctrl_c_ends_them_all_and_results_are_kept(tmp_path: Path) -> None:
    source = policy(tmp_path / 'policy', sleep_s=0.02)
    run = Run(tmp_path / 'out', *QUICK, '--episodes', '80', '--policy', str(source), '--workers', '2')
    run.wait_for(1)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    results = run.results()
    assert results['status'] == 'interrupted' and results['episodes']
    assert (run.output / results['episodes'][0]['files']['bag']).is_dir()


def test_nothing_is_left_of_them_when_the_command_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path / 'out', *QUICK, '--episodes', '80', '--workers', '2')
    run.wait_until((run.output / 'workers' / '1' / 'results.json').exists)
    run.process.kill()
    run.process.communicate(timeout=SURE_S)
    assert run.left_behind() == []


def test_a_worker_is_asked_for_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval, 'check_env', lambda env, task: None)
    settings = EvalSettings(
        env='mujoco',
        task='reach',
        embodiment='light_arm',
        policy=str(policy(tmp_path / 'policy')),
        output=str(tmp_path / 'out'),
        demonstration='none',
        episodes=7,
        seed=12,
        max_steps=5,
        transport='local',
        policy_timeout_s=0.25,
        execution_horizon=4,
    )
    arm = replace(settings, env='arm', transport='ros', hardware='mock', asynchronous=True)
    for asked in (settings, arm):
        arguments = command(asked)[3:]
        assert eval.checked_settings(_parser().parse_args(arguments)) == asked


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (('--workers', '0'), ('--workers must be at least 1',)),
        (('--workers', '2', '--policy', '127.0.0.1:5555'), ('--workers', 'one client at a time')),
    ],
)
def test_what_cannot_be_shared_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv('VECTOR_POLICY_AUTHKEY', 'ab' * 32)
    assert run_here('--output', str(tmp_path / 'out'), *QUICK, *arguments) == 2
    sentence = one_sentence(capsys.readouterr().err)
    assert all(word in sentence for word in words)
    assert not (tmp_path / 'out').exists()
