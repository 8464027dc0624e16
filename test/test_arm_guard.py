# SPDX-License-Identifier: Apache-2.0
"""Each rule that ends an arm's motion, and what tries to break it. Always: the arm slows down inside its
limits, the hold is named, and nothing leaves after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from arm_fakes import ACCELERATION, PERIOD_S, VELOCITY, Bench, arm_contract, ramp
from contracts import contract, written

from openeta_ros.control import ActionError, Execution
from openeta_ros.control.commands import PathCommand
from openeta_ros.envs import EnvError
from openeta_ros.envs.arm_follow import PathFollower
from openeta_ros.envs.arm_guard import ABANDONED_S
from openeta_ros.envs.arm_robot import Vitals

WATCHDOG_S = 0.2

# What happens while the arm moves, and the kind that it is named by.
FAULTS: dict[str, tuple[str, Callable[[Bench], None]]] = {
    'stop topic': ('stop', lambda bench: bench.operator.stop('the topic /stop')),
    'deactivated': ('inactive', lambda bench: setattr(bench.operator, 'active', False)),
    'disabled': ('disabled', lambda bench: setattr(bench.operator, 'enabled', False)),
    'joint dropped': ('stale_state', lambda bench: bench.robot.silent.add('elbow')),
    'state silent': ('stale_state', lambda bench: bench.robot.silent.update(bench.robot.positions)),
    'camera frozen': ('stale_camera', lambda bench: bench.robot.silent.add('top')),
    'second commander': ('commander', lambda bench: bench.robot.faults.update(commander='/other publishes')),
    'controller gone': ('controller', lambda bench: bench.robot.faults.update(controller='nobody')),
    'clock jumped': ('clock_jump', lambda bench: bench.robot.faults.update(clock_jump='by 100 s')),
    'arm blocked': ('tracking', lambda bench: bench.robot.blocked.add('shoulder_yaw')),
    'control thread late': ('late', lambda bench: bench.robot.advance(0.5)),
}


def moving(folder: Path, interface: str = 'forward_position') -> Bench:
    """Return an arm that is about to turn far: its first joint, for three seconds."""
    bench = Bench(arm_contract(folder, interface, max_tracking_error_rad=0.15))
    bench.env.reset(0)
    return bench


def far(bench: Bench) -> np.ndarray:
    return ramp(bench.env.spec.embodiment, 60)


def assert_silent(bench: Bench) -> None:
    """Assert that nothing more leaves."""
    sent = len(bench.robot.log)
    bench.run(1.0)
    assert len(bench.robot.log) == sent
    assert bench.operator.idle.is_set()


@pytest.mark.parametrize('fault', FAULTS)
@pytest.mark.parametrize('interface', ['forward_position', 'joint_trajectory'])
def test_a_fault_while_it_moves_ends_in_a_hold_that_is_named(
    tmp_path: Path, fault: str, interface: str
) -> None:
    kind, happen = FAULTS[fault]
    bench = moving(tmp_path, interface)
    bench.at(0.61, lambda: happen(bench))
    begin_s, rows = bench.robot.time_s, []
    with pytest.raises(EnvError) as held:
        bench.env.chunk_step(far(bench), on_row=lambda result, sensors: rows.append(result))
    assert held.value.kind == kind
    assert 5 <= len(rows) < 30  # mid-way
    assert bench.robot.time_s - begin_s < 0.61 + WATCHDOG_S + 1.3
    assert_silent(bench)
    if fault != 'arm blocked' or interface == 'forward_position':
        bench.assert_limits()
    if interface == 'forward_position':
        times, _ = bench.sent()
        stopping_s = VELOCITY / ACCELERATION
        blocked_s = {'tracking': 1.0, 'late': 0.5}.get(kind, WATCHDOG_S)
        assert times[-1] - begin_s <= 0.61 + blocked_s + stopping_s + 0.1
    else:
        last = [command for _, command in bench.robot.log if isinstance(command, PathCommand)][-1]
        assert last.times_s[-1] < 1.0 and not last.velocities[-1].any()  # a short way to rest
    status = bench.motion.status()
    assert status.state in ('holding', 'stopped', 'inactive', 'disabled') and status.reason
    with pytest.raises(EnvError):
        bench.env.chunk_step(far(bench))
    assert_silent(bench)


@pytest.mark.parametrize('fault', FAULTS)
def test_a_fault_at_rest_sends_no_more_than_where_the_arm_stands(tmp_path: Path, fault: str) -> None:
    kind, happen = FAULTS[fault]
    if kind == 'tracking':
        pytest.skip('an arm at rest is not behind')
    bench = moving(tmp_path)
    standing = bench.sent()[1][-1]
    happen(bench)
    bench.run(0.5)
    assert np.array_equal(bench.sent()[1][-1], standing)
    assert_silent(bench)
    with pytest.raises(EnvError) as held:
        bench.env.chunk_step(far(bench))
    assert held.value.kind == kind


def test_cameras_may_be_given_more_time_than_joints(tmp_path: Path) -> None:
    for name, late_s in (('elbow', WATCHDOG_S), ('top', 0.6)):
        bench = Bench(arm_contract(tmp_path, camera_watchdog_s=0.6))
        bench.env.reset(0)
        silent_s = bench.robot.time_s
        bench.robot.silent.add(name)
        with pytest.raises(EnvError, match=name):
            bench.env.chunk_step(far(bench))
        assert late_s <= bench.robot.time_s - silent_s < late_s + 0.4


def test_the_stop_latches_until_it_is_reset_by_hand(tmp_path: Path) -> None:
    bench = moving(tmp_path)
    bench.at(0.5, lambda: bench.operator.stop('the topic /stop'))
    with pytest.raises(EnvError, match='/stop'):
        bench.env.chunk_step(far(bench))
    for _ in range(2):  # nothing but a hand lets it go on: no reset, no enabling, no new activation
        bench.operator.enabled = bench.operator.active = True
        with pytest.raises(EnvError, match='reset_stop') as refused:
            bench.env.reset(1)
        assert refused.value.kind == 'stopped'
        assert_silent(bench)
    assert bench.operator.reset_stop()
    assert not bench.operator.reset_stop()
    assert_silent(bench)  # still not before a reset
    bench.env.reset(2)
    assert bench.env.chunk_step(far(bench)[:3])[0].info['step'] == 1


@pytest.mark.parametrize(('name', 'kind'), [('active', 'inactive'), ('enabled', 'disabled')])
def test_nothing_leaves_before_it_is_active_and_enabled(tmp_path: Path, name: str, kind: str) -> None:
    bench = Bench(arm_contract(tmp_path))
    setattr(bench.operator, name, False)
    with pytest.raises(EnvError, match='the arm does not move') as refused:
        bench.env.reset(0)
    assert refused.value.kind == kind
    bench.run(0.5)
    assert not bench.robot.log


def test_a_second_commander_is_refused_before_the_start(tmp_path: Path) -> None:
    bench = Bench(arm_contract(tmp_path))
    bench.robot.faults['commander'] = '/other publishes on it too'
    with pytest.raises(EnvError, match='/other publishes'):
        bench.env.reset(0)
    assert not bench.robot.log


def test_nothing_moves_before_who_gives_chunks_was_heard_and_would_be_missed(tmp_path: Path) -> None:
    bench = Bench(arm_contract(tmp_path))
    bench.robot.positions['shoulder_yaw'] = 0.5
    begin_s, now = bench.robot.time_s, bench.robot.vitals
    lives_s = [begin_s + 3.0, np.inf]  # from when until when it says so

    def vitals() -> Vitals:
        if lives_s[0] <= bench.robot.time_s <= lives_s[1]:
            bench.operator.heard_s = bench.robot.time_s
        return now()

    bench.robot.alive, bench.robot.vitals = '/env/alive', vitals  # type: ignore[method-assign]
    bench.env.reset(0)
    assert bench.robot.log[0][0] >= lives_s[0]
    lives_s[1] = bench.robot.time_s + 0.6
    with pytest.raises(EnvError, match='said nothing for') as held:
        bench.env.chunk_step(far(bench))
    assert held.value.kind == 'abandoned'
    assert bench.robot.log[-1][0] < lives_s[1] + ABANDONED_S + 0.5
    bench.assert_limits()
    assert_silent(bench)


def test_who_says_where_it_lives_and_never_does_moves_nothing(tmp_path: Path) -> None:
    bench = Bench(arm_contract(tmp_path))
    bench.robot.positions['shoulder_yaw'] = 0.5
    bench.robot.alive = '/env/alive'
    with pytest.raises(EnvError, match='nothing came on it') as refused:
        bench.env.reset(0)
    assert refused.value.kind == 'absent' and not bench.robot.log
    bench.robot.alive = ''  # it has gone, and who takes its place says nothing of itself
    bench.env.reset(0)
    bench.env.chunk_step(far(bench)[:3])
    bench.robot.alive = '/env/alive'  # another one comes in the middle of an episode
    bench.run(1.0)
    standing = bench.sent()[1][-1]
    with pytest.raises(EnvError, match='nothing came on it'):
        bench.env.chunk_step(far(bench)[:3])
    assert np.array_equal(bench.sent()[1][-1], standing)


def test_homing_is_watched_as_all_motion_is(tmp_path: Path) -> None:
    bench = Bench(arm_contract(tmp_path))
    bench.robot.positions['shoulder_yaw'] = 1.5
    bench.at(0.5, lambda: bench.operator.stop('the topic /stop'))
    with pytest.raises(EnvError) as held:
        bench.env.reset(0)
    assert held.value.kind == 'stop'
    bench.assert_limits()
    assert_silent(bench)
    assert bench.robot.positions['shoulder_yaw'] > 1.0  # not home


def test_an_arm_that_was_moved_by_hand_meanwhile_does_not_leap_back(tmp_path: Path) -> None:
    for interface in ('forward_position', 'joint_trajectory'):
        bench = Bench(arm_contract(tmp_path, interface, max_tracking_error_rad=None))
        bench.env.reset(0)
        bench.robot.blocked.add('shoulder_yaw')  # an arm that a hand holds
        bench.robot.positions['shoulder_yaw'] += 0.4
        before = len(bench.robot.log)
        with pytest.raises(ActionError, match='would leap') as refused:
            bench.env.chunk_step(far(bench))
        assert refused.value.joint == 'shoulder_yaw'
        assert not any(isinstance(command, PathCommand) for _, command in bench.robot.log[before:])


def test_an_arm_that_is_held_fast_is_told_to_stay_where_it_is(tmp_path: Path) -> None:
    """A trajectory controller would hurry to a path that began where the arm should have been."""
    bench = moving(tmp_path, 'joint_trajectory')
    bench.at(0.5, lambda: bench.robot.blocked.add('shoulder_yaw'))
    with pytest.raises(EnvError) as held:
        bench.env.chunk_step(far(bench))
    assert held.value.kind == 'tracking'
    last = [command for _, command in bench.robot.log if isinstance(command, PathCommand)][-1]
    measured = bench.robot.positions['shoulder_yaw']
    stopping = VELOCITY**2 / (2 * ACCELERATION)
    assert np.all(np.abs(last.positions[:, 0] - measured) <= stopping)
    assert abs(last.positions[0, 0] - measured) < 0.1


def test_a_control_thread_that_was_late_does_not_make_up_for_it(tmp_path: Path) -> None:
    bench = moving(tmp_path)
    bench.at(0.6, lambda: bench.robot.advance(0.15))  # less than the watchdog's time
    bench.env.chunk_step(far(bench)[:30])
    bench.run(0.5)
    bench.assert_limits()


def test_a_failing_control_thread_brakes_with_what_still_works(tmp_path: Path) -> None:
    bench = moving(tmp_path)

    def break_vitals() -> None:
        bench.robot.vitals = lambda: 1 / 0  # type: ignore[method-assign, return-value, assignment]

    bench.at(0.6, break_vitals)
    tick = bench.motion.tick

    def ticked() -> None:  # as the thread does
        try:
            tick()
        except ZeroDivisionError as error:
            bench.motion.failed(error)

    bench.motion.tick = ticked  # type: ignore[method-assign]
    import time

    sleep, time.sleep = time.sleep, lambda duration_s: bench.robot.advance(duration_s)
    try:
        with pytest.raises(EnvError) as held:
            bench.env.chunk_step(far(bench))
    finally:
        time.sleep = sleep
    assert held.value.kind == 'fault' and 'ZeroDivisionError' in str(held.value)
    bench.assert_limits()
    assert_silent(bench)
    with pytest.raises(EnvError, match='control thread has ended'):
        bench.robot.vitals = type(bench.robot).vitals.__get__(bench.robot)  # type: ignore[method-assign]
        bench.env.reset(0)


def test_cancelled_it_rests_and_goes_on_with_the_next_chunk(tmp_path: Path) -> None:
    bench = moving(tmp_path)

    def cancel(result: object, sensors: object) -> None:
        if len(told) == 9:
            raise KeyboardInterrupt
        told.append(result)

    told: list[object] = []
    with pytest.raises(KeyboardInterrupt):
        bench.env.chunk_step(far(bench), on_row=cancel)
    bench.run(1.0)
    bench.assert_limits()
    here = bench.sent()[1][-1]
    rows = np.repeat([[*here, 1.0]], 3, axis=0)
    assert bench.env.chunk_step(rows)[0].info['step'] == 11


def test_an_arm_that_slows_down_slowly_is_given_the_time_that_it_takes(tmp_path: Path) -> None:
    data = contract(str(arm_contract(tmp_path, on_limit='clamp', max_tracking_error_rad=None).path))
    data['arms']['arm']['limits']['acceleration'] = [0.06] * 6
    bench = Bench(written(data, tmp_path), max_steps=1000)
    bench.env.reset(0)
    bench.at(6.8, lambda: bench.operator.stop('the topic /stop'))
    rows = ramp(bench.env.spec.embodiment, 600, step=0.03)
    with pytest.raises(EnvError) as held:
        bench.env.chunk_step(rows[:300])
    assert held.value.kind == 'stop'  # and not that nobody answers
    _, values = bench.sent()
    assert np.abs(values[-1] - values[-2]).max() < 0.01 * PERIOD_S
    assert_silent(bench)


def test_closed_it_comes_to_rest_first(tmp_path: Path) -> None:
    bench = moving(tmp_path)
    bench.motion.add(far(bench), 'qpos', bench.motion.observe(), bench.motion._schedule.execution)
    bench.run(0.8)
    assert not bench.motion.resting()
    bench.env.close()
    bench.assert_limits()
    assert_silent(bench)


def test_who_sends_commands_brakes_by_itself_when_the_guard_is_silent(tmp_path: Path) -> None:
    bench = moving(tmp_path)
    bench.motion.add(far(bench), 'qpos', bench.motion.observe(), Execution())
    follower = PathFollower(bench.motion._commands, PERIOD_S, WATCHDOG_S)
    begin_s = time_s = bench.robot.time_s
    follower.beat(time_s, {})
    follower.take(bench.motion._schedule.path())
    values = []
    while not follower.closed:
        time_s += PERIOD_S
        if time_s - begin_s < 0.6:
            follower.beat(time_s, {})
        values += [command.values for command in follower.step(time_s) if not command.channel.gripper]
    assert follower.lost
    assert time_s - begin_s < 0.6 + WATCHDOG_S + VELOCITY / ACCELERATION + 0.1
    velocity = np.diff(values, axis=0) / PERIOD_S
    assert np.abs(velocity).max() > 0.5
    assert np.abs(np.diff(velocity, axis=0)).max() / PERIOD_S <= ACCELERATION + 1e-3
    assert np.abs(velocity[-1]).max() < ACCELERATION * PERIOD_S
    assert not follower.step(time_s + PERIOD_S)
