# SPDX-License-Identifier: Apache-2.0
"""One policy, one task, unchanged: in MuJoCo, and over the controllers of a mock arm; joints and poses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import commanded_arm
from ros_graph import run_openeta

from openeta_ros.embodiment import Embodiment, Kinematics
from openeta_ros.envs import EnvFacade, EnvSpec

SEED = 2
POLICY = """
class Known:
    def __init__(self, action_type, rows):
        self.action_type, self.rows = action_type, rows
    def set_demonstration(self, arrays, info):
        pass
    def reset(self, seed):
        self.next = 0
    def act(self, observation):
        first = min(self.next, len(self.rows) - 1)
        self.next = first + 10
        return {'action': self.rows[first : self.next]}
"""


def known_rows(robot: Embodiment, action_type: str) -> np.ndarray:
    """Return rows that pick up the cube of the seed, of either kind."""
    with EnvFacade.from_spec(EnvSpec('mujoco', 'pick_cube', robot)) as env:
        env.reset(SEED)
        rows = env.expert()
    if action_type == 'qpos':
        return rows
    kinematics = Kinematics(robot)
    return np.array([[*kinematics.forward('arm', row[:-1]), row[-1]] for row in rows])


def outcome(folder: Path, *arguments: str) -> dict[str, Any]:
    """Return the episode of an evaluation."""
    command = [
        'eval',
        '--episodes',
        '1',
        '--seed',
        str(SEED),
        '--demonstration',
        'none',
        '--output',
        str(folder),
    ]
    process = run_openeta([*command, *arguments], {})
    output, _ = process.communicate(timeout=400.0)
    logs = '\n'.join(log.read_text() for log in folder.glob('logs/*.log'))
    assert process.returncode == 0, output + logs
    episode = json.loads((folder / 'results.json').read_text())['episodes'][0]
    assert isinstance(episode, dict)
    return episode


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize('action_type', ['qpos', 'ee'])
def test_outcomes_agree_in_mujoco_and_on_the_mock_arm(action_type: str, tmp_path: Path) -> None:
    # A busy machine may draw late: the arm is to move on.
    safety = {'watchdog_s': 5.0, 'first_row_rad': 0.2, 'max_tracking_error_rad': 3.0}
    robot = commanded_arm(tmp_path, safety=safety)
    policy = tmp_path / 'known'
    policy.mkdir()
    (policy / 'known.py').write_text(POLICY)
    kwargs = {'action_type': action_type, 'rows': known_rows(robot, action_type).tolist()}
    (policy / 'policy.yaml').write_text(f'api: 1\npolicy: known:Known\nkwargs: {json.dumps(kwargs)}\n')
    common = ('--task', 'pick_cube', '--embodiment', str(robot.path), '--policy', str(policy))
    simulated = outcome(tmp_path / 'mujoco', *common, '--env', 'mujoco', '--transport', 'local')
    assert simulated['error'] is None and simulated['success']
    # In real time, on a machine that may stand still while the hand closes: a cube is dropped then.
    told = []
    for attempt in range(3):
        mocked = outcome(tmp_path / f'mock{attempt}', *common, '--env', 'arm', '--hardware', 'mock')
        told.append((mocked['success'], mocked['steps'], mocked['error']))
        if mocked['success'] and abs(simulated['steps'] - mocked['steps']) <= 0.3 * simulated['steps']:
            return
    pytest.fail(f'in MuJoCo in {simulated["steps"]} steps; on the mock {told}')
