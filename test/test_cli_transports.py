# SPDX-License-Identifier: Apache-2.0
"""`--transport ros` and `--transport local` are one evaluation: the same results, the same recording."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from rosbags.rosbag2 import Reader
from test_cli_eval import QUICK, Run, evaluated_here, policy

from openeta_ros.episodes import without_times

pytest.importorskip('rclpy')


def recorded(output: Path, episode: int) -> list[Any]:
    with Reader(output / 'episodes' / str(episode) / 'bag') as reader:
        return [(connection.topic, stamp, data) for connection, stamp, data in reader.messages()]


def test_both_transports_give_the_same_results_and_recordings(tmp_path: Path) -> None:
    scenes = ('--episodes', '2', '--seed', '3')
    code, local = evaluated_here(tmp_path / 'local', *scenes)
    assert code == 0
    run = Run(tmp_path / 'ros', *QUICK, '--transport', 'ros', *scenes)
    assert run.end() == 0, run.stderr
    assert run.stderr == ''
    found = {'local': without_times(local), 'ros': without_times(run.results())}
    for transport, results in found.items():
        assert results['settings'].pop('transport') == transport
    assert found['local'] == found['ros']
    for episode in range(2):
        assert recorded(tmp_path / 'local', episode) == recorded(tmp_path / 'ros', episode)


def test_ctrl_c_ends_the_graph_quietly_and_results_are_kept(tmp_path: Path) -> None:
    source = policy(tmp_path / 'policy', sleep_s=0.02)
    run = Run(tmp_path / 'out', *QUICK, '--transport', 'ros', '--episodes', '50', '--policy', str(source))
    run.wait_for(1)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert run.results()['status'] == 'interrupted' and run.results()['episodes'][0]['success']


def test_a_policy_that_dies_ends_the_graph_in_one_sentence(tmp_path: Path) -> None:
    source = policy(tmp_path / 'policy', exit_at=45)
    run = Run(tmp_path / 'out', *QUICK, '--transport', 'ros', '--episodes', '9', '--policy', str(source))
    assert run.end() == 1
    sentences = [line for line in run.stderr.splitlines() if line.startswith('openeta eval: ')]
    assert len(sentences) == 1 and 'the policy went away' in sentences[0]
    assert f'episodes are in {run.output / "results.json"}' in sentences[0]
    assert run.results()['status'] == 'failed' and run.results()['episodes']
