# SPDX-License-Identifier: Apache-2.0
"""What a policy is checked and warmed up with has the shapes of what it will see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import contract, written

from openeta_ros.embodiment import Kinematics, load
from openeta_ros.envs import EnvFacade, EnvSpec
from openeta_ros.episodes import record_demonstration
from openeta_ros.episodes.made_up import made_up_demonstration, made_up_observation

os.environ.setdefault('MUJOCO_GL', 'egl')


def shapes(arrays: Mapping[str, Any], *, moments: bool = False) -> dict[str, tuple[Any, ...]]:
    """Return dtype and shape of each array, without the length of a demonstration."""
    return {
        name: (array.dtype, array.shape[1:] if moments else array.shape) for name, array in arrays.items()
    }


def test_it_is_an_observation_and_a_demonstration_of_the_env_in_all_but_content() -> None:
    pytest.importorskip('mujoco')
    arm = load('light_arm')
    kinematics = Kinematics(arm)
    with EnvFacade.from_spec(EnvSpec(backend='mujoco', task='reach', embodiment=arm)) as env:
        seen, shown = env.reset(0), record_demonstration(env, 0)
    observation, demonstration = made_up_observation(arm, kinematics), made_up_demonstration(arm, kinematics)
    assert shapes(observation) == shapes(seen)
    assert shapes(demonstration.arrays, moments=True) == shapes(shown.arrays, moments=True)
    assert len(demonstration.arrays['actions']) == len(demonstration.arrays['times']) - 1
    assert {name: shown.info[name] for name in ('frequency', 'cameras', 'embodiment', 'action_dims')} == {
        name: demonstration.info[name] for name in ('frequency', 'cameras', 'embodiment', 'action_dims')
    }
    np.testing.assert_allclose(observation['endpose'], seen['endpose'], atol=0.01)  # both at home


def test_cameras_without_a_size_depth_and_no_endpose(tmp_path: Path) -> None:
    data = contract('light_arm')
    data['cameras']['front'] = {**data['cameras']['front'], 'depth': {'topic': 'depth'}}
    data['cameras']['top'] = {'topic': 'top', 'crop': [1, 2, 30, 40]}
    data['endpose'] = {'source': 'none'}
    arm = written(data, tmp_path)
    observation = made_up_observation(arm, Kinematics(arm))
    assert shapes(observation) == {
        'frames_front': (np.uint8, (240, 320, 3)),
        'depth_front': (np.float32, (240, 320)),
        'frames_top': (np.uint8, (30, 40, 3)),
        'qpos': (np.float64, (7,)),
    }
