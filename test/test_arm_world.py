# SPDX-License-Identifier: Apache-2.0
"""A physical arm as an env: the same reset, step and chunk_step as a simulator, in real time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from arm_fakes import ACCELERATION, PERIOD_S, VELOCITY, Bench, arm_contract, ramp

from openeta_ros.control import ActionError, Execution
from openeta_ros.control.commands import PathCommand
from openeta_ros.envs import EnvError

INTERFACES = ['forward_position', 'forward_velocity', 'joint_trajectory']


@pytest.mark.parametrize('interface', INTERFACES)
def test_it_goes_home_and_executes_a_chunk_in_its_time(tmp_path: Path, interface: str) -> None:
    embodiment = arm_contract(tmp_path, interface)
    bench = Bench(embodiment)
    bench.robot.positions['shoulder_yaw'] = 0.5
    begin = bench.env.reset(3)
    assert begin['qpos'] == pytest.approx(embodiment.home_qpos, abs=5e-3)
    assert bench.robot.seeds == [3]
    rows, before_s = ramp(embodiment, 16), bench.robot.time_s
    results = bench.env.chunk_step(rows)
    assert [result.info['step'] for result in results] == list(range(1, 17))
    assert not any(result.done for result in results)
    # From rest the first row takes two row times; each next one a row time of 50 ms.
    assert bench.robot.time_s - before_s == pytest.approx(17 * 0.05, abs=3 * PERIOD_S)
    bench.run(0.2)
    assert bench.robot.positions['shoulder_yaw'] == pytest.approx(rows[-1, 0], abs=5e-3)
    bench.env.close()


def test_every_command_is_inside_the_limits_homing_too(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path)
    bench = Bench(embodiment)
    bench.robot.positions |= {'shoulder_yaw': -1.0, 'elbow': 1.2}
    bench.env.reset(0)
    bench.env.chunk_step(ramp(embodiment, 20))
    bench.env.reset(1)
    _, values = bench.sent()
    velocity = np.diff(values, axis=0) / PERIOD_S
    assert np.abs(velocity).max() <= VELOCITY + 1e-6
    assert np.abs(np.diff(velocity, axis=0)).max() / PERIOD_S <= ACCELERATION + 1e-3


def test_a_trajectory_controller_is_sent_each_chunk_once(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path, 'joint_trajectory')
    bench = Bench(embodiment)
    bench.env.reset(0)
    bench.robot.log.clear()
    bench.env.chunk_step(ramp(embodiment, 16))
    paths = [command for _, command in bench.robot.log if isinstance(command, PathCommand)]
    assert len(paths) == 1 and len(paths[0].times_s) >= 16


def test_chunks_follow_each_other_and_the_arm_rests_between(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path)
    bench = Bench(embodiment)
    bench.env.reset(0)
    first = bench.env.chunk_step(ramp(embodiment, 8))
    bench.run(1.0)  # the policy thinks
    second = bench.env.chunk_step(np.repeat(ramp(embodiment, 8)[-1:], 4, axis=0))
    assert second[0].info['step'] == len(first) + 1
    stamps = [result.observation.stamp_ns for result in first + second]
    assert stamps == sorted(stamps)


def test_success_ends_the_episode_in_its_row_and_the_gate_is_shut(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path)
    bench = Bench(embodiment)
    bench.env.reset(0)
    bench.at(0.3, lambda: setattr(bench.robot, 'is_solved', True))
    results = bench.env.chunk_step(ramp(embodiment, 30))
    assert results[-1].terminated and results[-1].reward == 1.0 and len(results) < 10
    sent = len(bench.robot.log)
    bench.run(1.0)
    assert len(bench.robot.log) == sent
    with pytest.raises(EnvError) as over:
        bench.env.chunk_step(ramp(embodiment, 2))
    assert over.value.kind == 'done'


def test_the_budget_ends_the_episode_and_a_person_judges(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path)
    bench = Bench(embodiment, max_steps=5)
    bench.robot.scene = False
    bench.operator.scene_ready()
    # Whoever waits for a person has all other threads go on; here there is none.
    told: list[str] = []

    def wait(event, text, check):  # type: ignore[no-untyped-def]
        told.append(text)
        if 'solved' in text:
            bench.operator.judge(True)

    bench.operator._wait = wait  # type: ignore[method-assign]
    bench.env.reset(7)
    results = bench.env.chunk_step(ramp(embodiment, 10))
    assert len(results) == 5 and results[-1].truncated and results[-1].info['success']
    assert 'seed 7' in told[0] and 'solved' in told[1]


def test_a_person_may_end_an_episode_as_lost(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path)
    bench = Bench(embodiment)
    bench.env.reset(0)
    bench.at(0.3, lambda: bench.operator.judge(False))
    last = bench.env.chunk_step(ramp(embodiment, 30))[-1]
    assert last.done and not last.terminated and not last.info['success']


def test_a_refused_chunk_moves_nothing_and_the_episode_goes_on(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path)
    bench = Bench(embodiment)
    bench.env.reset(0)
    rows = ramp(embodiment, 8)
    rows[3, 2] = np.nan
    with pytest.raises(ActionError, match='row 3: elbow is nan'):
        bench.env.chunk_step(rows)
    far = ramp(embodiment, 8)
    far[:, 1] += np.pi / 2
    with pytest.raises(ActionError):
        bench.env.chunk_step(far)
    _, values = bench.sent()
    assert np.ptp(values[-5:], axis=0).max() == 0.0
    assert bench.env.chunk_step(ramp(embodiment, 4))[0].info['step'] == 1


def test_slow_mode_takes_its_time(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path)
    bench = Bench(embodiment, speed=0.25)
    bench.env.reset(0)
    before_s = bench.robot.time_s
    bench.env.chunk_step(ramp(embodiment, 8))
    assert bench.robot.time_s - before_s == pytest.approx(9 * 0.2, abs=3 * PERIOD_S)
    _, values = bench.sent()
    assert np.abs(np.diff(values, axis=0)).max() / PERIOD_S <= 0.25 * VELOCITY + 1e-6


def test_a_dry_run_sends_nothing_and_shows_all(tmp_path: Path) -> None:
    for interface in ('forward_position', 'joint_trajectory'):
        embodiment = arm_contract(tmp_path, interface)
        bench = Bench(embodiment, dry_run=True)
        bench.robot.positions['shoulder_yaw'] = 0.5
        bench.env.reset(0)
        rows = ramp(embodiment, 8)
        rows[:, 0] += 0.5
        assert len(bench.env.chunk_step(rows)) == 8
        assert not bench.robot.log and bench.robot.positions['shoulder_yaw'] == 0.5
        assert any(f'not sent: arm_controller/commands ({interface})' in text for text in bench.robot.shown)


def test_an_asynchronous_chunk_is_asked_for_while_the_one_before_moves(tmp_path: Path) -> None:
    """The policy takes 200 ms; the arm does not stand still for it once it moves."""
    embodiment = arm_contract(tmp_path)
    bench = Bench(embodiment, max_steps=60)
    execution = Execution(horizon=8, asynchronous=True)
    observation = bench.env.reset(0)
    target, steps, moving = 0.0, [], []
    for chunk in range(6):
        bench.run(0.2)  # the policy thinks, from the observation it was given
        now = observation['qpos'][0]
        rows = np.repeat(embodiment.home_qpos[None], 20, axis=0)
        rows[:, 0] = now + np.cumsum(np.minimum(0.02, 0.005 * np.arange(1, 21) + 0.02 * chunk))
        results = bench.env.chunk_step(rows, execution=execution)
        steps += [result.info['step'] for result in results]
        moving.append(len(results))
        observation = results[-1].observation
        target = max(target, rows[-1, 0])
    assert steps == list(range(1, len(steps) + 1))
    times, values = bench.sent()
    yaw = values[times > times[0] + 1.5, 0]
    assert np.diff(yaw).min() > 0  # it never stood
    assert all(2 <= count <= 14 for count in moving[1:])
    velocity = np.diff(values, axis=0) / PERIOD_S
    assert np.abs(velocity).max() <= VELOCITY + 1e-6
    assert np.abs(np.diff(velocity, axis=0)).max() / PERIOD_S <= ACCELERATION + 1e-3


def test_a_chunk_that_comes_too_late_holds_and_is_named(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path)
    bench = Bench(embodiment)
    execution = Execution(asynchronous=True)
    bench.env.reset(0)
    rows = ramp(embodiment, 10)
    bench.env.chunk_step(rows, execution=execution)
    bench.run(3.0)
    results = bench.env.chunk_step(rows[-2:], execution=execution)
    assert any('dropped' in event for result in results for event in result.info['events'])
    bench.run(0.2)
    at_rest = bench.robot.positions['shoulder_yaw']
    bench.run(0.5)
    assert bench.robot.positions['shoulder_yaw'] == at_rest


def test_only_the_first_rows_are_executed_where_a_horizon_says_so(tmp_path: Path) -> None:
    embodiment = arm_contract(tmp_path)
    bench = Bench(embodiment)
    bench.env.reset(0)
    assert len(bench.env.chunk_step(ramp(embodiment, 16), execution=Execution(horizon=5))) == 5


def test_a_simulator_honours_the_horizon_and_refuses_what_needs_a_clock() -> None:
    pytest.importorskip('mujoco')
    from openeta_ros.embodiment import load
    from openeta_ros.envs import EnvFacade, EnvSpec

    with EnvFacade.from_spec(EnvSpec('mujoco', 'reach', load('light_arm'))) as env:
        home = env.reset(0)['qpos']
        rows = np.repeat(home[None], 6, axis=0)
        assert len(env.chunk_step(rows, execution=Execution(horizon=2))) == 2
        with pytest.raises(EnvError, match='stands still while a policy thinks') as refused:
            env.chunk_step(rows, execution=Execution(asynchronous=True))
        assert refused.value.kind == 'option'
        assert not env.descriptor()['real_time'] and env.descriptor()['arm'] is None


def test_an_arm_outside_of_its_limits_is_told_and_not_moved(tmp_path: Path) -> None:
    bench = Bench(arm_contract(tmp_path))
    bench.robot.positions['elbow'] = 9.0
    with pytest.raises(EnvError, match='elbow is at 9, outside of its limits') as refused:
        bench.env.reset(0)
    assert refused.value.kind == 'absent' and not bench.robot.log
