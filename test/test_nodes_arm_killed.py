# SPDX-License-Identifier: Apache-2.0
"""Whole evaluations on a mock arm that are stopped, or a process of which is killed or frozen, in the middle
of a chunk: the arm comes to rest long before the chunk's end, and nothing leaves after that."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from arm_fakes import arm_contract
from arm_graph import PATIENT, Commanded
from rclpy.node import Node
from ros_graph import environment, run_openeta, spinning, wait_until
from std_msgs.msg import Empty

from openeta_msgs.msg import ArmStatus

TAG = 'OPENETA_TEST_KILLED'
# The chunk of thirty seconds, and the rows that a policy which is asked again and again answers.
LONG, SHORT = 600, 20
STEP_RAD = 0.004
POLICY = """
import numpy as np

class Policy:
    action_type = 'qpos'
    def __init__(self, rows):
        self.rows = rows
    def set_demonstration(self, arrays, info):
        pass
    def reset(self, seed):
        pass
    def act(self, observation):
        rows = np.tile(observation['qpos'], (self.rows, 1))
        numbers = np.arange(self.rows)
        rows[:, 0] += np.cumsum(np.minimum(np.minimum(numbers + 1, numbers[::-1]), 4)) / 1000
        return {'action': rows}
"""


class Evaluation:
    """An evaluation on a mock arm whose policy turns the first joint slowly, and who looks on."""

    def __init__(self, node: Node, process: subprocess.Popen[str], folder: Path) -> None:
        self.node, self.process, self._folder = node, process, folder
        self.commands = Commanded(node)
        self.status = ArmStatus()
        node.create_subscription(ArmStatus, 'env/status', lambda status: setattr(self, 'status', status), 10)

    def pids(self, module: str) -> list[int]:
        """Return the processes of the evaluation whose command line names a module."""
        found = []
        for entry in Path('/proc').glob('[0-9]*'):
            with contextlib.suppress(OSError):
                ours = f'{TAG}={self._folder}'.encode() in (entry / 'environ').read_bytes().split(b'\0')
                if ours and module in (entry / 'cmdline').read_text():
                    found.append(int(entry.name))
        return found

    def signal(self, module: str, number: int) -> int:
        """Send a signal to the processes of a module; return the time (ns) at which all have it."""
        pids = self.pids(module)
        assert pids, f'no process runs {module}'
        for pid in pids:
            os.kill(pid, number)
        return time.time_ns()

    def wait_moving(self) -> None:
        """Wait until the arm is in the middle of a chunk."""

        def moves() -> bool:
            assert self.process.poll() is None, f'it ended too soon:\n{self.process.communicate()[0]}'
            return self.commands.turned() > 0.05

        wait_until(moves, 180.0)


@contextlib.contextmanager
def evaluating(folder: Path, rows: int) -> Iterator[Evaluation]:
    robot = arm_contract(folder, **PATIENT)
    policy = folder / 'policy'
    policy.mkdir()
    (policy / 'turning.py').write_text(POLICY)
    (policy / 'policy.yaml').write_text(f'api: 1\npolicy: turning:Policy\nkwargs: {{rows: {rows}}}\n')
    arguments = ['eval', '--env', 'arm', '--hardware', 'mock', '--task', 'reach']
    arguments += ['--embodiment', str(robot.path), '--policy', str(policy), '--demonstration', 'none']
    arguments += ['--episodes', '1', '--max-steps', '1000', '--output', str(folder / 'out')]
    with environment(), spinning('looker') as (node, _):
        process = run_openeta(arguments, {TAG: str(folder)})
        evaluation = Evaluation(node, process, folder)
        try:
            yield evaluation
        finally:
            for pid in evaluation.pids('openeta_ros') + evaluation.pids('turning'):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            process.send_signal(signal.SIGINT)
            try:
                print(process.communicate(timeout=60.0)[0])
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


CHUNKS: dict[str, tuple[str, int]] = {
    'eval killed': ('openeta_ros.nodes.eval', signal.SIGKILL),
    'eval frozen': ('openeta_ros.nodes.eval', signal.SIGSTOP),
    'command killed': ('openeta_ros.cli', signal.SIGKILL),
}


@pytest.mark.slow
@pytest.mark.parametrize('what', CHUNKS)
def test_who_gave_the_chunk_is_gone_and_the_arm_holds(what: str, tmp_path: Path) -> None:
    module, number = CHUNKS[what]
    with evaluating(tmp_path, LONG) as evaluation:
        evaluation.wait_moving()
        evaluation.signal(module, number)
        evaluation.commands.assert_comes_to_rest()
        assert evaluation.commands.turned() < 0.7 * STEP_RAD * LONG  # long before the end of the chunk
        if number == signal.SIGSTOP:
            wait_until(lambda: evaluation.status.state == 'holding')
            assert evaluation.status.reason.startswith('abandoned: who gives chunks said nothing')


# One that is noticed, and one that is waited for; more of a policy's ends is in test_nodes_policy_life.
POLICIES: dict[str, tuple[str, int]] = {
    'policy node killed': ('openeta_ros.nodes.policy', signal.SIGKILL),
    'policy frozen': ('openeta_ros.vector_policy', signal.SIGSTOP),
}


@pytest.mark.slow
@pytest.mark.parametrize('what', POLICIES)
def test_a_policy_that_is_gone_leaves_the_arm_at_rest_at_the_end_of_its_rows(
    what: str, tmp_path: Path
) -> None:
    with evaluating(tmp_path, SHORT) as evaluation:
        evaluation.wait_moving()
        gone_ns = evaluation.signal(*POLICIES[what])
        commands = evaluation.commands
        commands.assert_comes_to_rest(silent=False)  # its evaluation may wait for it still
        # What it had answered, and what may have been on its way, is all that is executed.
        assert commands.turned() - commands.turned(gone_ns) < 3 * STEP_RAD * SHORT


@pytest.mark.slow
def test_the_stop_ends_an_evaluation_in_the_middle_of_a_row(tmp_path: Path) -> None:
    with evaluating(tmp_path, LONG) as evaluation:
        stop = evaluation.node.create_publisher(Empty, 'stop', 10)
        evaluation.wait_moving()
        wait_until(stop.get_subscription_count)
        stop.publish(Empty())
        evaluation.commands.assert_comes_to_rest()
        assert evaluation.commands.turned() < 0.7 * STEP_RAD * LONG
        assert evaluation.process.wait(180.0) == 0  # all of its one episode was told
        results = json.loads((tmp_path / 'out' / 'results.json').read_text())
        told = [results['error'], *(episode['error'] for episode in results['episodes'])]
        assert any(error and '/stop' in error['message'] for error in told)
        assert results['settings']['hardware'] == 'mock'
        assert results['env']['arm']['enabled_at_start'] and not results['env']['arm']['dry_run']
