# SPDX-License-Identifier: Apache-2.0
"""Whatever comes late (measurements, plans, the threads themselves), the arm does not leap: who follows the
commands exactly, at the times at which they are sent, stays inside the limits."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arm_fakes import ACCELERATION, PERIOD_S, VELOCITY, Bench, arm_contract, ramp

from openeta_ros.control import Execution
from openeta_ros.control.commands import PathCommand
from openeta_ros.envs import EnvError
from openeta_ros.envs.arm_follow import PathFollower
from openeta_ros.envs.arm_robot import Vitals

INTERFACES = ('forward_position', 'joint_trajectory')
WATCHDOG_S = 0.3
ASYNCHRONOUS = Execution(20, asynchronous=True)


def bench_of(folder: Path, interface: str, **safety: Any) -> Bench:
    bench = Bench(arm_contract(folder, interface, watchdog_s=WATCHDOG_S, **safety), max_steps=1000)
    bench.env.reset(0)
    return bench


def far(bench: Bench, rows: int = 60) -> np.ndarray:
    return ramp(bench.env.spec.embodiment, rows)


def measured_late(bench: Bench, late_s: float) -> None:
    """Have what is measured come so much later than it was so."""
    now, robot = bench.robot.vitals, bench.robot
    known: deque[tuple[float, Vitals]] = deque()

    def vitals() -> Vitals:
        known.append((robot.time_s, now()))
        while len(known) > 1 and known[1][0] <= robot.time_s - late_s:
            known.popleft()
        return Vitals(known[0][1].positions, known[-1][1].heard_s, known[-1][1].faults)

    robot.vitals = vitals  # type: ignore[method-assign]


@pytest.mark.parametrize('late_s', [0.02, 0.1, 0.25])
@pytest.mark.parametrize('interface', INTERFACES)
def test_old_measurements_do_not_make_a_stopping_arm_leap(
    tmp_path: Path, interface: str, late_s: float
) -> None:
    bench = bench_of(tmp_path, interface, max_tracking_error_rad=0.4)
    measured_late(bench, late_s)
    bench.at(0.8, lambda: bench.operator.stop('the topic /stop'))
    with pytest.raises(EnvError) as held:
        bench.env.chunk_step(far(bench))
    assert held.value.kind == 'stop'
    bench.run(1.5)
    bench.assert_limits()


def test_an_arm_that_is_taken_for_stuck_because_measurements_are_old_does_not_leap(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 'joint_trajectory', max_tracking_error_rad=0.15)
    measured_late(bench, 0.25)
    with pytest.raises(EnvError) as held:
        bench.env.chunk_step(far(bench))
    assert held.value.kind == 'tracking'
    bench.run(2.0)
    bench.assert_limits()
    last = [command for _, command in bench.robot.log if isinstance(command, PathCommand)][-1]
    assert last.positions.shape[0] == 1  # nothing but where to rest


@pytest.mark.parametrize('interface', INTERFACES)
@pytest.mark.parametrize('takes_s', [0.03, 0.12, 0.28])
def test_a_plan_that_takes_long_is_made_for_when_it_is_done(
    tmp_path: Path, interface: str, takes_s: float
) -> None:
    bench = bench_of(tmp_path, interface)
    pipeline = bench.motion._pipeline
    plan = pipeline.joint_rows
    planned: list[float] = []

    def joint_rows(*arguments: Any) -> Any:
        planned.append(bench.robot.time_s)
        bench.run(takes_s)
        return plan(*arguments)

    pipeline.joint_rows = joint_rows  # type: ignore[method-assign]
    rows = ramp(bench.env.spec.embodiment, 100, step=0.02)
    bench.env.chunk_step(rows[:30])  # from rest
    bench.env.chunk_step(rows[30:60], 'qpos', None, ASYNCHRONOUS)
    here = np.searchsorted(rows[:, 0], bench.robot.positions['shoulder_yaw'])
    bench.env.chunk_step(rows[here : here + 45], 'qpos', None, ASYNCHRONOUS)  # while it moves
    bench.run(4.0)
    assert len(planned) >= 3
    bench.assert_limits(1.25)
    assert bench.robot.positions['shoulder_yaw'] > rows[here + 40, 0]


@pytest.mark.parametrize('interface', INTERFACES)
@pytest.mark.parametrize('stall_s', [0.03, 0.07, 0.15, 0.25])
def test_a_chunk_that_the_control_thread_sees_late_begins_later(
    tmp_path: Path, interface: str, stall_s: float
) -> None:
    bench = bench_of(tmp_path, interface)
    motion, rows = bench.motion, far(bench)
    wait = motion.wait

    def stalled(until_s: float) -> None:
        motion.wait = wait  # type: ignore[method-assign]
        bench.robot.advance(stall_s)
        wait(until_s)

    motion.wait = stalled  # type: ignore[method-assign]
    motion.add(rows[:30], 'qpos', motion.observe(), ASYNCHRONOUS)  # from rest
    bench.run(0.8)
    assert bench.robot.positions['shoulder_yaw'] > 0.1
    rows[:, 1] += 0.1
    motion.wait = stalled  # type: ignore[method-assign]
    motion.add(rows[12:], 'qpos', motion.observe(), ASYNCHRONOUS)  # while it moves, and another way
    bench.run(4.0)
    bench.assert_limits(1.25)
    assert motion.trip is None
    assert bench.robot.positions['shoulder_yaw'] == pytest.approx(rows[-1, 0], abs=0.2)


@pytest.mark.parametrize('takes_s', [[0.03], [0.06], [0.04, 0.02, 0.0], [0.0, 0.07]])
def test_a_path_that_takes_long_to_be_made_sets_the_arm_off_when_it_leaves(
    tmp_path: Path, takes_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(tmp_path, 'joint_trajectory')
    robot, prepare, takes = bench.robot, bench.robot.prepared, itertools.cycle(takes_s)

    def prepared(commands: Sequence[Any]) -> Callable[[], None]:
        if any(isinstance(command, PathCommand) for command in commands):
            robot.advance(next(takes))
        return prepare(commands)

    robot.prepared = prepared  # type: ignore[method-assign]
    monkeypatch.setattr('time.sleep', robot.advance)
    rows = far(bench)
    bench.env.chunk_step(rows)
    bench.run(1.0)
    bench.assert_limits(1.1)
    assert robot.positions['shoulder_yaw'] == pytest.approx(rows[-1, 0], abs=0.01)


@pytest.mark.parametrize('end', ['stop', 'rest'])
def test_a_path_to_rest_that_takes_long_to_be_made_slows_down_from_when_it_leaves(
    tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(tmp_path, 'joint_trajectory')
    robot, motion, prepare = bench.robot, bench.motion, bench.robot.prepared
    motion.add(far(bench), 'qpos', motion.observe(), Execution())
    bench.run(0.8)

    def prepared(commands: Sequence[Any]) -> Callable[[], None]:
        if any(isinstance(command, PathCommand) for command in commands):
            robot.advance(0.06)
        return prepare(commands)

    robot.prepared = prepared  # type: ignore[method-assign]
    monkeypatch.setattr('time.sleep', robot.advance)
    if end == 'stop':
        bench.operator.stop('the topic /stop')
    else:
        motion.rest()
    bench.run(1.5)
    bench.assert_limits(1.1)


def test_a_path_that_left_late_is_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_of(tmp_path, 'joint_trajectory')
    send, stalls = bench.robot.send, iter([0.03])

    def sent(commands: Sequence[Any]) -> None:
        if any(isinstance(command, PathCommand) for command in commands):
            bench.robot.advance(next(stalls, 0.0))
        send(commands)

    bench.robot.send = sent  # type: ignore[method-assign]
    monkeypatch.setattr('time.sleep', bench.robot.advance)
    bench.env.chunk_step(far(bench))
    first, second = [time_s for time_s, one in bench.robot.log if isinstance(one, PathCommand)][-2:]
    assert second - first < 2 * PERIOD_S
    bench.run(1.0)
    bench.assert_limits(1.1)


def follower_of(bench: Bench, patience_s: float = WATCHDOG_S) -> PathFollower:
    follower = PathFollower(bench.motion._commands, PERIOD_S, patience_s)
    follower.beat(bench.robot.time_s, {})
    return follower


def followed(
    follower: PathFollower, times_s: np.ndarray, happen: Callable[[float], None] = lambda time_s: None
) -> np.ndarray:
    """Return the positions (N, J) that were sent at times, with a sign of life before each."""
    values = []
    for time_s in times_s:
        happen(time_s)
        follower.beat(time_s, {})
        sent = [one.values for one in follower.step(time_s) if not one.channel.gripper]
        values += sent or values[-1:]
    return np.array(values)


@pytest.mark.parametrize('stall_s', [0.03, 0.1, 0.25])
def test_who_sends_positions_and_stood_still_sets_off_again_within_the_limits(
    tmp_path: Path, stall_s: float
) -> None:
    bench = bench_of(tmp_path, 'forward_position')
    bench.motion.add(far(bench), 'qpos', bench.motion.observe(), Execution())
    begin_s = bench.robot.time_s
    follower = follower_of(bench)
    follower.take(bench.motion._schedule.path())
    before = followed(follower, begin_s + np.arange(1, 61) * PERIOD_S)
    after = followed(follower, begin_s + 0.6 + stall_s + np.arange(1, 400) * PERIOD_S)
    assert (before[-1] - before[-2])[0] > 0.3 * VELOCITY * PERIOD_S  # it was moving
    velocity = np.diff(np.concatenate([before[-1:], before[-1:], after]), axis=0) / PERIOD_S
    accelerations = np.diff(velocity, axis=0) / PERIOD_S
    # The path's own acceleration comes on top of that of setting off: a fifth at most.
    assert np.abs(accelerations).max() <= 1.2 * ACCELERATION + 1e-3
    assert velocity.max() <= VELOCITY
    assert after[-1] == pytest.approx(bench.motion._schedule.at(begin_s + 9.0)[0][:6], abs=1e-6)
    assert stall_s <= follower.lag_s < stall_s + 0.6


def test_who_sends_positions_brakes_from_the_velocity_that_the_arm_has(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 'forward_position')
    bench.motion.add(far(bench), 'qpos', bench.motion.observe(), Execution())
    begin_s = bench.robot.time_s
    follower = follower_of(bench)
    follower.take(bench.motion._schedule.path())
    before = followed(follower, begin_s + np.arange(1, 81) * PERIOD_S)
    stopped_s = begin_s + 0.8 + 0.2 + 3.5 * PERIOD_S  # it has just set off again

    def stop(time_s: float) -> None:
        if abs(time_s - stopped_s) < PERIOD_S / 2:
            follower.brake(time_s)

    after = followed(follower, begin_s + 1.0 + np.arange(1, 60) * PERIOD_S, stop)
    assert follower.closed and not follower.lost
    velocity = np.diff(np.concatenate([before[-1:], before[-1:], after]), axis=0) / PERIOD_S
    assert np.abs(np.diff(velocity, axis=0)).max() / PERIOD_S <= 1.2 * ACCELERATION + 1e-3
    assert np.abs(velocity).max() < 0.4


def test_who_sends_commands_and_stood_still_for_long_brakes_and_goes_on_with_nothing_until_it_is_told(
    tmp_path: Path,
) -> None:
    bench = bench_of(tmp_path, 'forward_position')
    bench.motion.add(far(bench), 'qpos', bench.motion.observe(), Execution())
    begin_s, path = bench.robot.time_s, bench.motion._schedule.path()
    follower = follower_of(bench)
    follower.take(path)
    before = followed(follower, begin_s + np.arange(1, 81) * PERIOD_S)
    after = followed(follower, begin_s + 0.8 + 2 * WATCHDOG_S + np.arange(1, 20) * PERIOD_S)
    assert follower.lost and follower.closed
    assert np.abs(after - before[-1]).max() < 1e-6
    follower.take(path)
    assert follower.closed  # whoever sends paths does not know it yet
    follower.brake(begin_s + 2.0)
    assert not follower.lost


def test_a_path_that_leads_on_from_elsewhere_is_not_followed(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 'forward_position')
    motion = bench.motion
    motion.add(far(bench), 'qpos', motion.observe(), ASYNCHRONOUS)
    begin_s = bench.robot.time_s
    follower = follower_of(bench)
    follower.take(motion._schedule.path())
    before = followed(follower, begin_s + np.arange(1, 81) * PERIOD_S)
    bench.run(0.8)
    other = far(bench)[16:]
    other[:, 1] += 0.15
    motion.add(other, 'qpos', motion.observe(), ASYNCHRONOUS)
    late = motion._schedule.path()
    after = followed(follower, begin_s + 0.8 + np.arange(1, 41) * PERIOD_S)
    follower.take(late)
    assert follower.lost
    after = np.concatenate([after, followed(follower, begin_s + 1.2 + np.arange(1, 60) * PERIOD_S)])
    velocity = np.diff(np.concatenate([before, after]), axis=0) / PERIOD_S
    assert np.abs(np.diff(velocity, axis=0)).max() / PERIOD_S <= ACCELERATION + 1e-3
    assert follower.closed


class _Gone(PathFollower):
    """A process that sends commands, until it is gone."""

    last = 10**9  # command

    def beat(self, time_s: float, measured: Any) -> None:
        if self.gone:
            return
        if self.sent > self.last:
            self.gone = True  # type: ignore[misc]
            raise EnvError('fault', 'the process that sends commands has ended')
        super().beat(time_s, measured)

    def step(self, time_s: float) -> list[Any]:
        return [] if self.gone else super().step(time_s)


@pytest.mark.parametrize('interface', ['forward_velocity', 'forward_position'])
def test_an_arm_whose_velocities_nobody_commands_any_more_is_sent_zeros(
    tmp_path: Path, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of(tmp_path, interface)
    motion = bench.motion
    motion._follower = follower = _Gone(motion._commands, PERIOD_S, WATCHDOG_S)
    tick = motion.tick

    def ticked() -> None:  # as the thread does
        try:
            tick()
        except EnvError as error:
            motion.failed(error)

    monkeypatch.setattr(motion, 'tick', ticked)
    monkeypatch.setattr('time.sleep', bench.robot.advance)
    bench.env.reset(1)
    follower.last = follower.sent + 120
    with pytest.raises(EnvError) as told:
        bench.env.chunk_step(far(bench))
    assert told.value.kind == 'fault'
    _, values = bench.sent()
    if interface == 'forward_velocity':
        assert values[:-50].any() and not values[-50:].any()
        count = len(bench.robot.log)
        bench.run(0.5)
        assert count == len(bench.robot.log)
    else:  # which holds by itself
        assert np.ptp(values[:, 0]) > 0.0
