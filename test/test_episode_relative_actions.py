# SPDX-License-Identifier: Apache-2.0
"""With `action.mode: relative` in the contract, a policy's answer is an offset from what it saw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from contracts import contract, written

from openeta_ros.envs import EnvFacade, EnvSpec
from openeta_ros.episodes.policy import LocalPolicy
from openeta_ros.vector_policy.process import open_policy

NUDGE = """
import numpy as np

class Nudge:
    action_type = 'qpos'
    def set_demonstration(self, arrays, info): ...
    def reset(self, seed): ...
    def act(self, observation):
        rows = np.zeros((2, len(observation['qpos'])))
        rows[:, 0] = 0.02, 0.04     # rad
        rows[:, -1] = 1.0           # the gripper is always absolute
        return {'action': rows}
"""


def test_relative_rows_are_anchored_to_the_observation_that_the_policy_saw(tmp_path: Path) -> None:
    pytest.importorskip('mujoco')
    (tmp_path / 'policy.py').write_text(NUDGE)
    (tmp_path / 'policy.yaml').write_text('{api: 1, policy: "policy:Nudge"}')
    data = contract('light_arm')
    data['action'] = {**data['action'], 'mode': 'relative'}
    embodiment = written(data, tmp_path)
    with (
        EnvFacade.from_spec(EnvSpec('mujoco', 'reach', embodiment)) as env,
        open_policy(str(tmp_path), timeout_s=300.0) as remote,
    ):
        policy = LocalPolicy(remote, embodiment)
        seen = env.reset(0)
        rows = policy.act(seen)
        expected = np.tile(seen['qpos'], (2, 1))
        expected[:, 0] += (0.02, 0.04)
        expected[:, -1] = 1.0
        np.testing.assert_allclose(rows, expected)
        assert len(env.chunk_step(rows, policy.action_type)) == 2
