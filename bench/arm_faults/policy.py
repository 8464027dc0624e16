# SPDX-License-Identifier: Apache-2.0
"""An evaluation on the mock whose policy node is killed while the arm moves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from arm_faults.graph import Listener, motion, spinning
from openeta_ros.embodiment import Embodiment
from openeta_ros.nodes.graph import graph_environment

TAG = 'OPENETA_BENCH'
BEGIN_S, END_S = 60.0, 40.0
# Commands have so long to cease once the policy is gone: what it had sent is executed.
REST_S = 4.0
POLICY = """
import numpy as np

class Policy:
    action_type = 'qpos'
    def __init__(self, rows):
        self.rows = np.array(rows)
    def set_demonstration(self, arrays, info):
        pass
    def reset(self, seed):
        self.next = 0
    def act(self, observation):
        first, self.next = self.next, self.next + 10
        return {'action': self.rows[first : self.next]}
"""


def killed_policy(folder: Path, robot: Embodiment) -> tuple[str, int, tuple[float, float, float]]:
    """Return how the end was named, commands long after it, and the shares of the limits."""
    policy = folder / 'policy'
    policy.mkdir(parents=True)
    rows = motion(robot, 400).tolist()
    (policy / 'moving.py').write_text(POLICY)
    (policy / 'policy.yaml').write_text(
        f'api: 1\npolicy: moving:Policy\nkwargs: {json.dumps({"rows": rows})}\n'
    )
    with graph_environment() as environment:
        os.environ['ROS_DOMAIN_ID'] = environment['ROS_DOMAIN_ID']
        command = [sys.executable, '-m', 'openeta_ros.cli', 'eval', '--env', 'arm', '--hardware', 'mock']
        command += ['--embodiment', str(robot.path), '--policy', str(policy), '--demonstration', 'none']
        command += ['--episodes', '1', '--max-steps', '400', '--output', str(folder / 'out')]
        with spinning('listener') as (node, _), (folder / 'log').open('wb') as log:
            listener = Listener(node, robot)
            process = subprocess.Popen(
                command,
                env={**environment, TAG: str(folder)},
                stdout=log,
                stderr=log,
            )
            try:
                killed_ns = _kill_when_moving(listener, folder, process)
                process.wait(END_S)
            finally:
                process.kill()
                process.wait()
            time.sleep(0.5)
            after = len(listener.since(killed_ns + round(REST_S * 1e9)))
            shares = listener.shares_since(0, ended=True)
        del os.environ['ROS_DOMAIN_ID']
    results = json.loads((folder / 'out' / 'results.json').read_text())
    error = results.get('error') or {}
    return str(error.get('message') or error)[:60] if error else '', after, shares


def _kill_when_moving(listener: Listener, folder: Path, process: subprocess.Popen[bytes]) -> int:
    """Kill the policy node a while after the first chunk of it moves the arm; return when."""
    deadline = time.monotonic() + BEGIN_S
    while len(listener.heard) < 4:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f'the evaluation did not begin: {(folder / "log").read_text()}')
        time.sleep(0.05)
    time.sleep(3.0)
    for entry in Path('/proc').glob('[0-9]*'):
        try:
            ours = f'{TAG}={folder}'.encode() in (entry / 'environ').read_bytes()
            if ours and 'openeta_ros.nodes.policy' in (entry / 'cmdline').read_text():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue
    return time.time_ns()
