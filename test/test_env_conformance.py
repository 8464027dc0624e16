# SPDX-License-Identifier: Apache-2.0
"""What every env must do, run against each backend: a new backend is done when it passes this file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from contracts import contract, small_pictures, written

from openeta_ros.control import ActionError
from openeta_ros.embodiment import Embodiment
from openeta_ros.envs import EnvError, EnvFacade, EnvSpec, StepResult, registry
from openeta_ros.observation import Observation

KINDS = [
    pytest.param(('mujoco', 'light_arm'), id='mujoco-light_arm'),
    pytest.param(('mujoco', 'franka_genesis'), id='mujoco-franka'),
    pytest.param(
        ('genesis', 'franka_genesis'),
        id='genesis-franka',
        marks=[pytest.mark.slow, pytest.mark.timeout(1800)],
    ),
]
TASKS = ['reach', 'push_cube', 'pick_cube', 'stack_cubes']
# Genesis takes long to build a scene: test_env_genesis solves the others in it.
GENESIS_TASKS = ['push_cube', 'stack_cubes']


@cache
def robot(name: str) -> Embodiment:
    """Return a robot that sees small pictures: whole episodes are drawn here."""
    with tempfile.TemporaryDirectory() as folder:
        return written(small_pictures(contract(name)), Path(folder))


def make(kind: tuple[str, str], task: str = 'pick_cube', max_steps: int | None = None) -> EnvFacade:
    backend, name = kind
    lacking = registry.missing(backend)
    if lacking:
        pytest.skip(lacking)
    return EnvFacade.from_spec(EnvSpec(backend, task, robot(name), max_steps))


@pytest.fixture(scope='module', params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    if request.param[0] == 'genesis' and registry.missing('genesis') is None:
        request.getfixturevalue('genesis_kernels')
    return request.param


@pytest.fixture(scope='module')
def env(kind: tuple[str, str]) -> Iterator[EnvFacade]:
    with make(kind) as env:
        yield env


@pytest.fixture(scope='module', params=TASKS)
def task_env(kind: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[EnvFacade]:
    if kind[0] == 'genesis' and request.param not in GENESIS_TASKS:
        pytest.skip('test_env_genesis solves it')
    with make(kind, request.param) as env:
        yield env


def rest_rows(env: EnvFacade, count: int) -> np.ndarray:
    return np.tile(env.spec.embodiment.home_qpos, (count, 1))


def moving_rows(env: EnvFacade, count: int) -> np.ndarray:
    rows = rest_rows(env, count)
    rows[:, 0] += 0.01 * np.arange(1, count + 1)
    return rows


def assert_same(one: Observation, other: Observation) -> None:
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def play(env: EnvFacade, seed: int, rows: np.ndarray) -> list[StepResult]:
    env.reset(seed)
    return env.chunk_step(rows)


def test_reset_gives_the_arrays_of_the_contract(env: EnvFacade) -> None:
    embodiment = env.spec.embodiment
    observation = env.reset(0)
    assert set(observation) == {*(f'frames_{name}' for name in embodiment.cameras), 'qpos', 'endpose'}
    for name, camera in embodiment.cameras.items():
        assert camera.size is not None
        assert observation[f'frames_{name}'].shape == (*camera.size, 3)
        assert observation[f'frames_{name}'].dtype == np.uint8
        assert observation[f'frames_{name}'].std() > 10, 'the picture is empty'
    assert observation['qpos'].shape == (embodiment.qpos_size,)
    assert observation['endpose'].shape == (embodiment.ee_size,)
    np.testing.assert_allclose(observation['qpos'], embodiment.home_qpos, atol=5e-3)


def test_every_method_gives_the_same_kind_of_observation(env: EnvFacade) -> None:
    first = env.reset(0)
    assert_same(env.observe(), first)
    step = env.step(env.spec.embodiment.home_qpos)
    assert_same(env.observe(), step.observation)
    chunk = env.chunk_step(rest_rows(env, 2))
    assert [type(result.observation) for result in [step, *chunk]] == [Observation] * 3
    assert_same(env.observe(), chunk[-1].observation)


def test_same_seed_and_rows_give_bit_equal_results_whatever_came_between(env: EnvFacade) -> None:
    rows = moving_rows(env, 8)
    one = play(env, 3, rows)
    play(env, 4, moving_rows(env, 5))
    other = play(env, 3, rows)
    for left, right in zip(one, other, strict=True):
        assert_same(left.observation, right.observation)
        assert left.reward == right.reward and left.done == right.done


def test_another_seed_is_another_scene(env: EnvFacade) -> None:
    one, other = env.reset(3), env.reset(4)
    assert any((one[name] != other[name]).any() for name in one if name.startswith('frames_'))


def test_a_chunk_is_its_rows_one_by_one(env: EnvFacade) -> None:
    rows = moving_rows(env, 4)
    chunk = play(env, 5, rows)
    env.reset(5)
    for row, result in zip(rows, chunk, strict=True):
        assert_same(env.step(row).observation, result.observation)


def test_targets_are_followed(env: EnvFacade) -> None:
    results = play(env, 0, np.concatenate([moving_rows(env, 10), np.tile(moving_rows(env, 10)[-1], (20, 1))]))
    np.testing.assert_allclose(results[-1].observation['qpos'], moving_rows(env, 10)[-1], atol=5e-3)


def test_time_goes_on_by_the_contracts_rate_and_never_back(env: EnvFacade) -> None:
    period = round(1e9 / env.spec.embodiment.rate_hz)
    stamps = [env.reset(0).stamp_ns]
    stamps += [result.observation.stamp_ns for result in env.chunk_step(rest_rows(env, 3))]
    stamps.append(env.reset(0).stamp_ns)
    assert set(np.diff(stamps)) == {period}


def test_ee_rows_mean_the_pose_that_is_observed(env: EnvFacade) -> None:
    start = env.reset(0)['endpose']
    rows = np.tile(start, (12, 1))
    rows[:, 2] += np.minimum(0.005 * np.arange(1, 13), 0.03)
    result = env.chunk_step(rows, 'ee')[-1]
    np.testing.assert_allclose(result.observation['endpose'][:3], rows[-1, :3], atol=5e-3)


@pytest.mark.parametrize('spoil', ['nan', 'limit', 'shape', 'gripper'])
def test_a_bad_row_is_refused_before_any_row_moves(env: EnvFacade, spoil: str) -> None:
    rows = moving_rows(env, 5)
    if spoil == 'nan':
        rows[4, 1] = np.nan
    elif spoil == 'limit':
        rows[4, 1] = 50.0
    elif spoil == 'gripper':
        rows[4, -1] = 1.5
    else:
        rows = rows[:, :-1]
    before = env.reset(0)
    with pytest.raises(ActionError):
        env.chunk_step(rows)
    with pytest.raises(ActionError):
        env.step([[0.0], [0.0, 1.0]])
    assert env.observe().stamp_ns == before.stamp_ns
    assert env.step(rest_rows(env, 1)[0]).info['step'] == 1


def test_sensors_are_what_the_observation_was_made_from(env: EnvFacade) -> None:
    env.reset(0)
    result = env.step(moving_rows(env, 1)[0])
    assert env.sensors.stamp_ns == result.observation.stamp_ns
    arm = next(iter(env.spec.embodiment.arms.values()))
    measured = [env.sensors.positions[joint] for joint in arm.joints]
    np.testing.assert_array_equal(measured, result.observation['qpos'][:-1])
    assert set(env.sensors.velocities) == set(env.sensors.positions)
    assert set(env.sensors.pictures) == set(env.spec.embodiment.cameras)


def test_the_descriptor_is_json_and_says_what_the_env_is(env: EnvFacade) -> None:
    described = json.loads(json.dumps(env.descriptor()))
    assert described['task'] == 'pick_cube'
    assert described['embodiment'] == env.spec.embodiment.name
    assert described['action_sizes']['qpos'] == env.spec.embodiment.qpos_size
    assert described['seed_honoured'] and described['deterministic']


@pytest.mark.parametrize('seed', [-1, 1.5, True, None, '3'])
def test_what_is_no_seed_is_refused(env: EnvFacade, seed: object) -> None:
    with pytest.raises(EnvError) as caught:
        env.reset(seed)  # type: ignore[arg-type]
    assert caught.value.kind == 'seed'


def test_another_thread_is_refused(env: EnvFacade) -> None:
    kinds: list[str] = []

    def elsewhere() -> None:
        try:
            env.reset(0)
        except EnvError as error:
            kinds.append(error.kind)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert kinds == ['thread']


def test_an_expert_plans_only_from_a_fresh_scene(env: EnvFacade) -> None:
    env.reset(0)
    env.step(rest_rows(env, 1)[0])
    with pytest.raises(EnvError) as caught:
        env.expert()
    assert caught.value.kind == 'no_expert'


def test_execution_stops_at_the_last_row_of_an_episode_and_a_closed_env_says_so(
    kind: tuple[str, str],
) -> None:
    with make(kind, max_steps=3) as env:
        with pytest.raises(EnvError) as caught:
            env.step(rest_rows(env, 1)[0])
        assert caught.value.kind == 'not_reset'
        results = play(env, 0, moving_rows(env, 5))
        assert [result.truncated for result in results] == [False, False, True]
        assert not any(result.terminated for result in results)
        np.testing.assert_array_less(results[1].observation['qpos'][0], results[2].observation['qpos'][0])
        with pytest.raises(EnvError) as caught:
            env.step(rest_rows(env, 1)[0])
        assert caught.value.kind == 'done'
        assert len(play(env, 0, moving_rows(env, 1))) == 1
        env.close()
        env.close()
        for call in (
            lambda: env.reset(0),
            env.observe,
            env.expert,
            lambda: env.chunk_step(rest_rows(env, 1)),
        ):
            with pytest.raises(EnvError) as caught:
                call()
            assert caught.value.kind == 'closed'


def test_the_expert_solves_the_task_and_its_rows_replayed_do_so_identically(task_env: EnvFacade) -> None:
    task_env.reset(0)
    rows = task_env.expert()
    assert len(rows) <= 100
    first = task_env.chunk_step(rows)
    assert first[-1].terminated and first[-1].reward == 1.0
    assert [result.reward for result in first[:-1]] == [0.0] * (len(first) - 1)
    again = play(task_env, 0, rows)
    assert len(again) == len(first)
    assert_same(again[-1].observation, first[-1].observation)


def test_standing_still_solves_nothing(task_env: EnvFacade) -> None:
    assert not any(result.terminated for result in play(task_env, 0, rest_rows(task_env, 12)))


def episode_digest(env: EnvFacade) -> str:
    """Return the hash of all arrays of the expert's first 40 rows, pictures included."""
    digest = hashlib.sha256()
    env.reset(7)
    for result in env.chunk_step(env.expert()[:40]):
        for array in result.observation.values():
            digest.update(array.tobytes())
    return digest.hexdigest()


THERE = """
import test_env_conformance as test
with test.make({kind}) as env:
    print(test.episode_digest(env))
"""


def test_another_process_sees_the_same_episode_bit_for_bit(env: EnvFacade, kind: tuple[str, str]) -> None:
    if kind[0] == 'genesis':
        pytest.skip('test_env_genesis does, beside more that takes a process of its own')
    here = episode_digest(env)
    there = subprocess.run(
        [sys.executable, '-c', THERE.format(kind=kind)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split()[-1] == here


def test_frozen_data_stays_as_it_is(env: EnvFacade) -> None:
    env.reset(0)
    result = env.step(rest_rows(env, 1)[0])
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.reward = 1.0  # type: ignore[misc]
    with pytest.raises(ValueError, match='read-only'):
        result.observation['qpos'][0] = 0.0
