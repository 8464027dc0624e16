# SPDX-License-Identifier: Apache-2.0
"""Recorded chunks become targets, and one that is damaged is counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from openeta_ros.embodiment import load
from openeta_ros.observation import CHUNK_TOPIC, Commands


def chunk(dtype: str = '<f8', shape: tuple[int, ...] = (2, 7), size: int = 112) -> Any:
    array = SimpleNamespace(dtype=dtype, shape=shape, data=np.zeros(size, np.uint8))
    return SimpleNamespace(actions=array, action_type='qpos', rate_hz=20.0)


def test_a_chunk_is_in_force_after_its_observation() -> None:
    commands = Commands(load('light_arm'))
    commands.add(CHUNK_TOPIC, chunk(), 1_000_000_000)
    assert commands.before(1_000_000_000) == {}
    assert commands.before(1_050_000_000) == dict.fromkeys(load('light_arm').wire_joints, 0.0)


@pytest.mark.parametrize(
    ('message', 'reason'),
    [
        (chunk(dtype='nonsense'), 'a chunk that is no array'),
        (chunk(size=100), 'a chunk that is no array'),
        (chunk(shape=(2, 9)), 'a chunk that is no array'),
        (chunk(shape=(1, 7, 2)), 'a chunk of shape (1, 7, 2)'),
        (chunk(shape=(14, 1)), 'qpos rows of 1 numbers'),
    ],
)
def test_a_chunk_that_is_no_rows_of_the_robot_is_counted_and_not_used(message: Any, reason: str) -> None:
    commands = Commands(load('light_arm'))
    commands.add(CHUNK_TOPIC, message, 1_000_000_000)
    ((told, count),) = commands.rejected.items()
    assert reason in told and count == 1
    assert commands.before(2_000_000_000) == {}
