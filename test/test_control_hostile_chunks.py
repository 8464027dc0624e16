# SPDX-License-Identifier: Apache-2.0
"""Whatever comes in, and whenever: what leaves is inside the contract's limits of motion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contracts import contract, written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openeta_ros.control import ActionError, ActionPipeline, ChunkSchedule, Execution
from openeta_ros.embodiment import Embodiment, Kinematics

RATE_HZ = 20
VELOCITY, ACCELERATION, JERK = 2.2, 9.0, 250.0
SERVO_S = 0.008
# What numbers cost that are not exact: differences of positions over a servo period.
ROUNDING = 1e-6


@pytest.fixture(scope='module', params=['refuse', 'clamp'])
def pipeline(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ActionPipeline:
    data = contract('light_arm')
    data['arms']['arm']['limits'] |= {
        'velocity': [VELOCITY] * 6,
        'acceleration': [ACCELERATION] * 6,
        'jerk': [JERK] * 6,
    }
    data['safety'] = {'on_limit': request.param, 'max_step_rad': 0.1, 'first_row_rad': 0.3}
    embodiment = written(data, tmp_path_factory.mktemp('contract'))
    return ActionPipeline(embodiment, Kinematics(embodiment))


def chunk(draw: Any, embodiment: Embodiment) -> np.ndarray:
    """Return rows that are smooth, or jump, or run against a limit, or are no numbers at all."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(['smooth', 'far', 'jumps', 'limit', 'noise', 'broken']))
    start = embodiment.home_qpos + random.normal(0, 0.05, 7) * [*[1] * 6, 0]
    steps = random.normal(0, 0.02, 7) + random.normal(0, 0.002, size=(rows, 7))
    actions = start + np.cumsum(steps, axis=0)
    if kind == 'far':
        actions += random.uniform(-3, 3)
    elif kind == 'jumps':
        actions[random.integers(rows) :] += np.pi
    elif kind == 'limit':
        actions += np.sign(random.normal(size=7)) * np.linspace(0, 0.1 * rows, rows)[:, None]
    elif kind == 'noise':
        actions = random.uniform(-4, 4, size=(rows, 7))
    elif kind == 'broken':
        value = draw(st.sampled_from([np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-310]))
        actions[random.integers(rows), random.integers(7)] = value
    actions[:, -1] = np.clip(actions[:, -1], 0, 1) if kind != 'broken' else actions[:, -1]
    return actions


def watched(schedule: ChunkSchedule, start_s: float, end_s: float) -> np.ndarray:
    """Return positions and velocities (N, 2, J) from one time on up to, not with, another."""
    return np.array([schedule.at(time_s) for time_s in np.arange(start_s, end_s, SERVO_S)])


@given(st.data(), st.booleans(), st.sampled_from([None, 3]), st.sampled_from([1.0, 0.4]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_that_leaves_is_beyond_a_limit(pipeline, data, asynchronous, horizon, speed):
    draw, embodiment, limits = data.draw, pipeline.embodiment, pipeline.limits
    schedule = ChunkSchedule(pipeline, Execution(horizon, asynchronous), speed)
    time_s = 100.0
    schedule.start(embodiment.home_qpos, time_s)
    seen, states, held = schedule.observe(time_s), [], False
    for _ in range(draw(st.integers(1, 8))):
        event = draw(st.sampled_from(['chunk', 'chunk', 'chunk', 'hold', 'late']))
        if event == 'hold':
            schedule.hold(time_s)
            held = True
        else:
            try:
                accepted = schedule.add(chunk(draw, embodiment), 'qpos', seen, time_s)
                assert len(accepted.rows) == len(accepted.due_s) == len(accepted.clamped)
                assert all(due > time_s for due in accepted.due_s)
            except ActionError as error:
                assert error.kind in ('not_finite', 'limit', 'step')
        if event != 'late':
            seen = schedule.observe(time_s)
        points = schedule.points(time_s)
        assert np.all(np.diff([0.0, *points.times_s]) > 0)
        assert not points.velocities[-1].any()
        pause_s = draw(st.floats(0.01, 0.6))
        states.append(watched(schedule, time_s, time_s + pause_s))
        time_s += len(states[-1]) * SERVO_S
    while not schedule.resting(time_s):
        states.append(watched(schedule, time_s, time_s + 1.0))
        time_s += 1.0
    states.append(watched(schedule, time_s, time_s + 0.1))
    path = np.concatenate(states)[:, :, :6]
    position, velocity = path[:, 0], path[:, 1]
    assert np.all(position >= limits.low[:6] - ROUNDING)
    assert np.all(position <= limits.high[:6] + ROUNDING)
    assert np.abs(velocity).max() <= min(VELOCITY, 0.1 * RATE_HZ) * speed + ROUNDING
    moved = np.diff(position, axis=0) / SERVO_S
    assert np.abs(moved).max() <= min(VELOCITY, 0.1 * RATE_HZ) * speed + ROUNDING
    assert np.abs(np.diff(velocity, axis=0)).max() / SERVO_S <= ACCELERATION + ROUNDING / SERVO_S
    if not held:  # a hold slows down at once
        jerk = np.abs(np.diff(velocity, n=2, axis=0)).max() / SERVO_S**2
        assert jerk <= JERK + ROUNDING / SERVO_S**2
    # The positions are the integral of the velocities: none of them jumps.
    assert np.abs(moved - (velocity[1:] + velocity[:-1]) / 2).max() < ACCELERATION * SERVO_S
    assert not velocity[-1].any()
