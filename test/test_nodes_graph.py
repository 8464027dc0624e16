# SPDX-License-Identifier: Apache-2.0
"""The graph that openeta starts: a domain of its own, and nothing left running however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from contracts import QUICK_ARM
from ros_graph import processes_with, run_openeta, wait_until

from openeta_ros.nodes import graph
from openeta_ros.nodes.graph import claimed_domain, claimed_domains, graph_environment

QUICK = ['eval', '--env', 'mujoco', '--task', 'reach', '--embodiment', QUICK_ARM]
TAG = 'OPENETA_TEST_TAG'


class Run:
    """An evaluation of many episodes over the graph, all of whose processes can be found again."""

    def __init__(self, output: Path, *arguments: str) -> None:
        self.output = output
        self.tag = uuid.uuid4().hex
        command = [*QUICK, '--episodes', '500', '--output', str(output), *arguments]
        self.process = run_openeta(command, {TAG: self.tag})

    def pids(self, part: str) -> list[int]:
        """Return the processes of this run with this in their command line."""
        found = []
        for folder in Path('/proc').glob('[0-9]*'):
            try:
                ours = f'{TAG}={self.tag}'.encode() in (folder / 'environ').read_bytes()
                if ours and part in (folder / 'cmdline').read_text():
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def wait_for_an_episode(self) -> None:
        wait_until(lambda: self.process.poll() is not None or len(self.results().get('episodes', ())), 180.0)
        assert self.process.poll() is None, self.process.communicate()[0]

    def end(self) -> tuple[int, str]:
        """Return the exit code and what was printed; nothing may be left."""
        try:
            output, _ = self.process.communicate(timeout=120.0)
        except subprocess.TimeoutExpired:
            self.process.kill()  # and what it started
            pytest.fail('it does not end')
        wait_until(lambda: not processes_with(TAG, self.tag))
        return self.process.returncode, output

    def results(self) -> dict[str, object]:
        file = self.output / 'results.json'
        return json.loads(file.read_text()) if file.exists() else {}


def test_no_two_have_the_same_domain() -> None:
    with claimed_domain() as first, claimed_domain() as second:
        assert first != second and {first, second} <= set(range(1, 102))
    with claimed_domain() as third:
        assert third == first or third not in (first, second)


def test_a_domain_that_somebody_is_on_already_is_left_to_him() -> None:
    def claimed() -> int:
        with claimed_domain() as domain:
            return domain

    free = claimed()
    node = 'import rclpy; rclpy.init(); rclpy.create_node("somebody"); input()'
    told = {**os.environ, 'ROS_DOMAIN_ID': str(free), 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
    with subprocess.Popen([sys.executable, '-c', node], env=told, stdin=subprocess.PIPE) as somebody:
        wait_until(lambda: claimed() != free, 60.0)
        somebody.kill()


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('ROS_DOMAIN_ID', '7')
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'SUBNET')
    monkeypatch.setenv('FASTRTPS_DEFAULT_PROFILES_FILE', '/my.xml')
    with graph_environment() as environment:
        assert environment['ROS_DOMAIN_ID'] == '7'
        assert environment['ROS_AUTOMATIC_DISCOVERY_RANGE'] == 'SUBNET'
        assert environment['FASTRTPS_DEFAULT_PROFILES_FILE'] == '/my.xml'
        assert 'FASTDDS_DEFAULT_PROFILES_FILE' not in environment


def test_every_process_gets_profile_malloc_settings_and_a_private_domain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ('ROS_DOMAIN_ID', 'ROS_AUTOMATIC_DISCOVERY_RANGE', *graph.PROFILE_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    with graph_environment() as environment:
        assert all(Path(environment[name]).name == 'fastdds.xml' for name in graph.PROFILE_VARIABLES)
        assert all(Path(environment[name]).is_file() for name in graph.PROFILE_VARIABLES)
        assert environment['ROS_AUTOMATIC_DISCOVERY_RANGE'] == 'LOCALHOST'
        assert environment['MALLOC_MMAP_THRESHOLD_'] == str(32 * 1024 * 1024)
        assert int(environment['ROS_DOMAIN_ID']) > 0


# Moments of an evaluation, by what is there then.
MOMENTS: dict[str, Callable[[Run], object]] = {
    'the first node is started': lambda run: run.pids('openeta_ros.nodes.env'),
    'the last node is started': lambda run: run.pids('openeta_ros.nodes.eval'),
    'the policy is started': lambda run: run.pids('openeta_ros.vector_policy'),
    'episodes are under way': lambda run: run.results().get('episodes'),
}


@pytest.mark.parametrize('moment', MOMENTS)
def test_ctrl_c_at_any_moment_ends_all_quietly(moment: str, tmp_path: Path) -> None:
    run = Run(tmp_path / 'out')
    wait_until(lambda: MOMENTS[moment](run), 180.0)
    run.process.send_signal(signal.SIGINT)
    code, output = run.end()
    assert code == 130
    assert 'Traceback' not in output and 'Error' not in output
    for log in (tmp_path / 'out').glob('logs/*.log'):
        assert 'Traceback' not in log.read_text()


def test_a_killed_env_is_told_in_one_sentence_and_results_are_kept(tmp_path: Path) -> None:
    run = Run(tmp_path / 'out')
    run.wait_for_an_episode()
    for pid in run.pids('openeta_ros.nodes.env'):
        os.kill(pid, signal.SIGKILL)
    code, output = run.end()
    assert code == 1
    assert 'openeta eval: the node /env is gone: its process ended' in output
    assert 'the env node ended early (signal 9)' in output
    assert 'Traceback' not in output
    assert run.results()['status'] == 'failed' and run.results()['episodes']


def test_a_killed_policy_node_takes_its_policy_along(tmp_path: Path) -> None:
    run = Run(tmp_path / 'out')
    run.wait_for_an_episode()
    for pid in run.pids('openeta_ros.nodes.policy'):
        os.kill(pid, signal.SIGKILL)
    code, output = run.end()
    assert code == 1
    assert 'openeta eval: the node /policy is gone: its process ended' in output


@pytest.mark.parametrize('part', ['openeta_ros.nodes.eval', 'openeta_ros.cli'])
def test_nothing_is_left_when_the_eval_node_or_the_command_itself_is_killed(
    part: str, tmp_path: Path
) -> None:
    run = Run(tmp_path / 'out')
    run.wait_for_an_episode()
    for pid in run.pids(part):
        os.kill(pid, signal.SIGKILL)
    code, _ = run.end()
    assert code != 0
    assert run.results()['episodes']


def test_a_node_that_does_not_start_is_told_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A package that cannot be imported, in the place of one that the env needs.
    (tmp_path / 'mujoco.py').write_text('raise RuntimeError("this simulator is broken")\n')
    monkeypatch.setenv('PYTHONPATH', str(tmp_path))
    run = Run(tmp_path / 'out')
    code, output = run.end()
    assert code == 1
    assert 'this simulator is broken' in output
    assert 'Traceback' not in output


def test_the_claim_of_a_domain_ends_with_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))  # where nobody else claims any
    code = (
        'from openeta_ros.nodes.graph import claimed_domain\n'
        'with claimed_domain() as domain: print(domain, flush=True); input()'
    )
    command = [sys.executable, '-c', code]
    told = {**os.environ, 'TMPDIR': str(tmp_path)}
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=told)
    assert holder.stdin is not None and holder.stdout is not None
    held = int(holder.stdout.readline())
    assert claimed_domains() == [held]
    holder.kill()
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    assert claimed_domains() == []
