# SPDX-License-Identifier: Apache-2.0
"""Chunks in time: which rows are executed when, what takes over from what, and how it ends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import contract, written

from openeta_ros.control import ActionError, ActionPipeline, ChunkSchedule, Execution
from openeta_ros.embodiment import Kinematics, load

ROW_S = 0.05
ACCELERATION = 9.0


@pytest.fixture(scope='module')
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> ActionPipeline:
    return careful(tmp_path_factory.mktemp('contract'))


def careful(folder: Path, **safety: Any) -> ActionPipeline:
    data = contract('light_arm')
    data['arms']['arm']['limits']['acceleration'] = [ACCELERATION] * 6
    data['safety'] = {'first_row_rad': 0.2} | safety
    embodiment = written(data, folder)
    return ActionPipeline(embodiment, Kinematics(embodiment))


def started(pipeline: ActionPipeline, execution: Execution | None = None, **options: Any) -> ChunkSchedule:
    schedule = ChunkSchedule(pipeline, execution, **options)
    schedule.start(pipeline.embodiment.home_qpos, 0.0)
    return schedule


def swing(pipeline: ActionPipeline, first: float, rows: int, offset: float = 0.0) -> np.ndarray:
    """Return rows of one long swing of the first joint, which rests at row 0."""
    actions = np.tile(pipeline.embodiment.home_qpos, (rows, 1))
    actions[:, 0] += 0.5 * (1 - np.cos(0.15 * (first + np.arange(rows)))) + offset
    return actions


def first_joint(schedule: ChunkSchedule, times_s: np.ndarray) -> np.ndarray:
    return np.array([schedule.at(time_s)[0][0] for time_s in times_s])


def test_a_resting_arm_is_commanded_where_it_is(pipeline):
    schedule = started(pipeline)
    position, velocity = schedule.at(3.0)
    assert schedule.joints == (*pipeline.embodiment.wire_joints, 'finger_right')
    assert position[:6] == pytest.approx(pipeline.embodiment.home_qpos[:6])
    assert position[6:] == pytest.approx(0.04)
    assert not velocity.any()
    assert schedule.resting(3.0)
    assert schedule.wants_observation(3.0)


def test_rows_are_reached_when_they_are_due_and_the_last_one_stands(pipeline):
    schedule = started(pipeline)
    rows = swing(pipeline, 1, 20)
    accepted = schedule.add(rows, 'qpos', schedule.observe(10.0), 10.0)
    assert accepted.due_s == pytest.approx(10.0 + ROW_S * np.arange(2, 22))
    corner_m = ACCELERATION * ROW_S**2 / 6
    reached = first_joint(schedule, accepted.due_s)
    assert np.abs(reached - rows[:, 0]).max() < corner_m
    assert schedule.qpos_at(10.0) == pytest.approx(pipeline.embodiment.home_qpos)
    rest = swing(pipeline, 0, 1)
    schedule.start(rest[0], 20.0)
    schedule.add(np.tile(rest, (3, 1)), 'qpos', schedule.observe(20.0), 20.0)
    assert schedule.qpos_at(21.0) == pytest.approx(rest[0], abs=1e-12)


def test_the_first_rows_only_are_executed_when_the_horizon_says_so(pipeline):
    schedule = started(pipeline, Execution(horizon=4))
    accepted = schedule.add(swing(pipeline, 1, 20), 'qpos', schedule.observe(0.0), 0.0)
    assert len(accepted.rows) == 4
    assert not schedule.wants_observation(accepted.due_s[-1] - 0.01)
    assert schedule.wants_observation(accepted.due_s[-1] + 1e-6)


def test_a_second_chunk_follows_the_first_without_a_seam(pipeline):
    one, two = started(pipeline), started(pipeline)
    one.add(swing(pipeline, 1, 20), 'qpos', one.observe(0.0), 0.0)
    two.add(swing(pipeline, 1, 10), 'qpos', two.observe(0.0), 0.0)
    two.add(swing(pipeline, 11, 10), 'qpos', two.observe(0.2), 0.2)
    times = np.arange(0.2, 2.0, 0.01)
    assert first_joint(two, times) == pytest.approx(first_joint(one, times), abs=1e-12)


def test_an_arm_that_gets_no_more_rows_slows_down_within_its_limits_and_holds(pipeline):
    schedule = started(pipeline)
    accepted = schedule.add(swing(pipeline, 1, 8), 'qpos', schedule.observe(0.0), 0.0)
    times = np.arange(accepted.due_s[-1], 3.0, 0.002)
    velocity = np.array([schedule.at(time_s)[1][0] for time_s in times])
    assert velocity[0] > 0.5
    assert not velocity[-1]
    assert np.abs(np.diff(velocity)).max() / 0.002 <= ACCELERATION + 1e-6
    # It rests after the shortest way to stop, and a row or two for the path to become smooth.
    resting = times[np.argmax(velocity <= 1e-9)] - accepted.due_s[-1]
    assert resting < velocity[0] / ACCELERATION + 3 * ROW_S


def test_the_next_inference_runs_while_rows_execute_and_rows_that_passed_meanwhile_are_skipped(pipeline):
    schedule = started(pipeline, Execution(horizon=10, asynchronous=True))
    schedule.add(swing(pipeline, 1, 40), 'qpos', schedule.observe(0.0), 0.0)
    asked = next(time_s for time_s in np.arange(0.0, 2.0, 0.01) if schedule.wants_observation(time_s))
    seen = schedule.observe(asked)
    assert not schedule.wants_observation(asked + 0.1)
    # The policy sees the arm at row `seen.rows` - 1 of the swing (the start took one row), and goes on.
    actions = swing(pipeline, seen.rows, 40)
    accepted = schedule.add(actions, 'qpos', seen, asked + 0.18)
    assert accepted.skipped == pytest.approx(0.18 / ROW_S + 2, abs=1)
    times = np.arange(asked + 0.18, 1.9, 0.005)
    alone = started(pipeline)
    alone.add(swing(pipeline, 1, 45), 'qpos', alone.observe(0.0), 0.0)
    # The same motion as of one long chunk: the seam is not to be seen.
    assert np.abs(first_joint(schedule, times) - first_joint(alone, times)).max() < 2e-3
    assert schedule.latency_s() == pytest.approx(0.18, abs=0.02)


def test_a_chunk_that_differs_fades_in_within_the_limits(pipeline):
    schedule = started(pipeline, Execution(asynchronous=True))
    seen = schedule.observe(0.0)
    schedule.add(swing(pipeline, 1, 40), 'qpos', seen, 0.0)
    accepted = schedule.add(swing(pipeline, 1, 40, offset=0.1), 'qpos', seen, 0.5)
    assert accepted.skipped > 0
    times = np.arange(0.5, 2.5, 0.002)
    states = np.array([[part[0] for part in schedule.at(time_s)] for time_s in times])
    assert np.abs(np.diff(states[:, 1])).max() / 0.002 <= ACCELERATION + 1e-6
    assert np.abs(np.diff(states[:, 0])).max() / 0.002 <= 2.2 + 1e-6
    late = np.array(accepted.due_s[-10:])
    wanted = swing(pipeline, 1, 40, offset=0.1)[-10:, 0]
    assert np.abs(first_joint(schedule, late) - wanted).max() < 0.02


def test_a_chunk_whose_rows_are_all_past_is_dropped_and_the_arm_holds(pipeline):
    schedule = started(pipeline, Execution(asynchronous=True))
    schedule.add(swing(pipeline, 1, 40), 'qpos', schedule.observe(0.0), 0.0)
    seen = schedule.observe(0.1)
    before = first_joint(schedule, np.arange(1.0, 4.0, 0.1))
    accepted = schedule.add(swing(pipeline, 1, 8), 'qpos', seen, 1.0)
    assert (accepted.dropped, len(accepted.rows)) == ('late', 0)
    assert np.array_equal(first_joint(schedule, np.arange(1.0, 4.0, 0.1)), before)
    assert schedule.resting(4.0)


def test_however_long_the_warm_up_takes_nothing_is_skipped_while_the_arm_rests(pipeline):
    schedule = started(pipeline, Execution(asynchronous=True))
    accepted = schedule.add(swing(pipeline, 1, 20), 'qpos', schedule.observe(0.0), 12.0)
    assert (accepted.skipped, len(accepted.rows)) == (0, 20)
    assert accepted.due_s[0] == pytest.approx(12.0 + 2 * ROW_S)
    assert schedule.latency_s() == 0.0


def test_an_arm_that_ran_out_of_rows_skips_those_it_executed_meanwhile(pipeline):
    schedule = started(pipeline, Execution(asynchronous=True))
    schedule.add(
        swing(pipeline, 0, 6) * 0 + pipeline.embodiment.home_qpos, 'qpos', schedule.observe(0.0), 0.0
    )
    seen = schedule.observe(0.2)  # at row 4
    still = np.tile(pipeline.embodiment.home_qpos, (20, 1))
    accepted = schedule.add(still, 'qpos', seen, 9.0)
    assert 2 <= accepted.skipped <= 5
    assert not accepted.dropped


def test_a_hold_stops_as_fast_as_the_limits_allow_and_what_was_under_way_is_dropped(pipeline):
    schedule = started(pipeline)
    schedule.add(swing(pipeline, 1, 30), 'qpos', schedule.observe(0.0), 0.0)
    seen = schedule.observe(0.6)
    position, velocity = schedule.at(0.63)
    schedule.hold(0.63)
    stop_s = velocity[0] / ACCELERATION
    assert schedule.at(0.63)[0][0] == pytest.approx(position[0])
    assert schedule.at(0.63)[1][0] == pytest.approx(velocity[0])
    assert schedule.at(0.63 + stop_s / 2)[1][0] == pytest.approx(velocity[0] / 2)
    assert not schedule.resting(0.63 + stop_s / 2)
    assert schedule.at(0.64 + stop_s)[0][0] == pytest.approx(
        position[0] + velocity[0] ** 2 / ACCELERATION / 2
    )
    assert schedule.resting(0.64 + stop_s)
    accepted = schedule.add(swing(pipeline, 1, 30), 'qpos', seen, 0.9)
    assert accepted.dropped == 'held'
    assert schedule.resting(2.0)
    schedule.hold(2.0)
    rest = schedule.qpos_at(2.0)
    accepted = schedule.add(np.tile(rest, (3, 1)), 'qpos', schedule.observe(2.0), 2.0)
    assert len(accepted.rows) == 3


def test_without_a_limit_of_acceleration_a_hold_stands_still_at_once():
    embodiment = load('light_arm')
    schedule = started(ActionPipeline(embodiment, Kinematics(embodiment)))
    rows = np.tile(embodiment.home_qpos, (10, 1))
    rows[:, 0] += 0.1 * np.arange(1, 11)
    schedule.add(rows, 'qpos', schedule.observe(0.0), 0.0)
    before = schedule.at(0.3)[0]
    schedule.hold(0.3)
    assert schedule.at(0.31)[0] == pytest.approx(before, abs=1e-6)
    assert schedule.resting(0.31)


def test_rows_may_come_while_a_hold_still_slows_down(pipeline):
    schedule = started(pipeline)
    schedule.add(swing(pipeline, 1, 30), 'qpos', schedule.observe(0.0), 0.0)
    schedule.hold(0.6)
    rest = schedule.qpos_at(1.5)
    rows = np.tile(rest, (20, 1))
    rows[:, 0] += 0.3 * (1 - np.cos(0.15 * np.arange(1, 21)))
    schedule.add(rows, 'qpos', schedule.observe(0.61), 0.61)
    times = np.arange(0.6, 3.0, 0.002)
    velocity = np.array([schedule.at(time_s)[1][0] for time_s in times])
    assert np.abs(np.diff(velocity)).max() / 0.002 <= ACCELERATION + 1e-6
    points = schedule.points(0.61)
    assert np.all(np.diff([0, *points.times_s]) > 1e-3)
    assert points.positions[-1] == pytest.approx(schedule.at(5.0)[0])


def test_the_points_are_the_path_for_who_joins_them_by_cubics(pipeline):
    from scipy.interpolate import CubicHermiteSpline

    schedule = started(pipeline)
    schedule.add(swing(pipeline, 1, 20), 'qpos', schedule.observe(0.0), 0.0)
    points = schedule.points(0.07)
    assert points.times_s[0] > 0
    assert np.all(np.diff(points.times_s) > 0)
    assert not points.velocities[-1].any()
    joined = CubicHermiteSpline(points.times_s, points.positions, points.velocities)
    for passed in np.linspace(points.times_s[0], points.times_s[-1], 200):
        assert joined(passed) == pytest.approx(schedule.at(0.07 + passed)[0], abs=1e-12)
    resting = schedule.points(9.0)
    assert resting.positions.shape == (1, 8)
    assert resting.times_s[0] > 0


def test_the_points_of_a_hold_are_its_path_too(pipeline):
    from scipy.interpolate import CubicHermiteSpline

    schedule = started(pipeline)
    actions = swing(pipeline, 1, 20)
    actions[:, 1] += 0.4 * (actions[:, 0] - actions[0, 0])
    schedule.add(actions, 'qpos', schedule.observe(0.0), 0.0)
    schedule.hold(0.8)
    points, (position, velocity) = schedule.points(0.8), schedule.at(0.8)
    joined = CubicHermiteSpline(
        [0, *points.times_s], [position, *points.positions], [velocity, *points.velocities]
    )
    for passed in np.linspace(0, points.times_s[-1], 50):
        assert joined(passed) == pytest.approx(schedule.at(0.8 + passed)[0], abs=1e-9)


@pytest.mark.parametrize('behind', [0.0, 0.02, 0.3])
@pytest.mark.parametrize('there', [False, True])
def test_the_point_at_which_an_arm_stops_keeps_the_limits_wherever_of_two_places_it_is(
    pipeline, behind, there
):
    from scipy.interpolate import CubicHermiteSpline

    schedule = started(pipeline)
    actions = swing(pipeline, 1, 20)
    actions[:, -1] = np.linspace(1.0, 0.0, 20)  # closing
    schedule.add(actions, 'qpos', schedule.observe(0.0), 0.0)
    (position, velocity), away = schedule.at(0.6), np.zeros(8)
    away[0] = -behind
    points = schedule.stop_points(0.6, away, there=there)
    assert not points.velocities.any() and len(points.times_s) == 1
    for start in (position, position + away):
        path = CubicHermiteSpline([0, *points.times_s], [start, *points.positions], [velocity, [0.0] * 8])
        accelerations = path(np.linspace(0, points.times_s[-1], 50), 2)[:, :6]
        if not (there and start is not position):  # what is stuck has no such velocity
            assert np.abs(accelerations).max() <= 1.2 * ACCELERATION
    onward = points.positions[0][0] - (position + away * there)[0]
    assert abs(onward) <= velocity[0] ** 2 / ACCELERATION + 1e-9  # twice the shortest way
    assert points.positions[0][6:] == pytest.approx(position[6:])  # grippers stay


def test_slow_mode_is_the_same_path_at_another_speed(pipeline):
    slow, normal = started(pipeline, speed=0.25), started(pipeline)
    for schedule in (slow, normal):
        schedule.add(swing(pipeline, 1, 20), 'qpos', schedule.observe(0.0), 0.0)
    for time_s in np.arange(0.0, 1.5, 0.03):
        assert slow.at(4 * time_s)[0] == pytest.approx(normal.at(time_s)[0], abs=1e-9)
        assert slow.at(4 * time_s)[1] == pytest.approx(normal.at(time_s)[1] / 4, abs=1e-9)
    with pytest.raises(ValueError, match='speed is 2'):
        started(pipeline, speed=2)


def test_a_first_row_too_far_away_is_refused_and_what_was_scheduled_goes_on(pipeline):
    schedule = started(pipeline)
    schedule.add(swing(pipeline, 1, 20), 'qpos', schedule.observe(0.0), 0.0)
    before = first_joint(schedule, np.arange(0.5, 2.0, 0.1))
    with pytest.raises(
        ActionError, match=r'row 0: shoulder_yaw would be .* its limit is 0\.2 rad for a first row'
    ) as caught:
        schedule.add(swing(pipeline, 1, 20, offset=-0.9), 'qpos', schedule.observe(0.5), 0.5)
    assert (caught.value.kind, caught.value.row) == ('step', 0)
    assert np.array_equal(first_joint(schedule, np.arange(0.5, 2.0, 0.1)), before)
    assert not schedule.wants_observation(0.6)


def test_a_chunk_that_could_not_stop_inside_the_workspace_is_refused(tmp_path):
    home = load('light_arm').home_qpos
    reach = Kinematics(load('light_arm')).forward('arm', home[:6])[0]
    box = {'min': [-1.0, -0.25, 0.0], 'max': [1.0, 0.25, 1.0]}
    boxed = careful(tmp_path, workspace=box)
    schedule = started(boxed)
    angle = np.arcsin(0.24 / reach)
    rows = np.tile(home, (20, 1))
    rows[:, 0] += angle * np.linspace(0.05, 1, 20) ** 2
    with pytest.raises(ActionError, match='slowing down after the last row, at its row 0') as caught:
        schedule.add(rows, 'qpos', schedule.observe(0.0), 0.0)
    assert caught.value.kind == 'workspace'
    assert schedule.resting(1.0)


def test_a_chunk_that_runs_into_a_position_limit_is_refused_or_slowed_down(tmp_path):
    rows = np.tile(load('light_arm').home_qpos, (12, 1))
    rows[:, 2] = 2.75 - 0.1 * np.arange(11, -1, -1)  # at 2 rad/s up to the limit itself
    now = rows[0] - (rows[1] - rows[0])
    refusing, clamping = careful(tmp_path), careful(tmp_path, on_limit='clamp')
    with pytest.raises(ActionError, match=r'elbow would come too fast .* stopping with 9 rad/s\^2') as caught:
        refusing.plan(rows, 'qpos', now, now - (rows[1] - rows[0]))
    assert caught.value.kind == 'step'
    plan = clamping.plan(rows, 'qpos', now, now - (rows[1] - rows[0]))
    assert plan.qpos[-1, 2] <= 2.75
    assert np.abs(np.diff(plan.qpos[:, 2], n=2)).max() <= ACCELERATION * ROW_S**2 + 1e-9
    assert plan.clamped[-1] == ('elbow',)


def test_ee_chunks_are_scheduled_too(pipeline):
    schedule, kinematics = started(pipeline), Kinematics(pipeline.embodiment)
    home = pipeline.embodiment.home_qpos
    poses = np.tile([*kinematics.forward('arm', home[:6]), 1.0], (20, 1))
    poses[:, 1] += 0.1 * (1 - np.cos(0.15 * np.arange(1, 21)))
    accepted = schedule.add(poses, 'ee', schedule.observe(0.0), 0.0)
    reached = kinematics.forward('arm', schedule.at(accepted.due_s[9])[0][:6])
    assert reached[:3] == pytest.approx(poses[9, :3], abs=2e-3)


def test_the_way_home_keeps_the_limits(pipeline):
    home = pipeline.embodiment.home_qpos
    away = np.add(home, [1.5, -0.6, -0.9, 1.0, -1.0, 2.0, -1.0])
    plan = pipeline.approach(home, away)
    assert plan.qpos[-1] == pytest.approx(home, abs=1e-12)
    path = np.stack([away, away, *plan.qpos, home, home])
    assert np.abs(np.diff(path[:, :6], axis=0)).max() <= 2.6 * ROW_S
    assert np.abs(np.diff(path[:, :6], n=2, axis=0)).max() <= ACCELERATION * ROW_S**2
    assert len(plan) < 40
    assert len(pipeline.approach(home, home)) == 1


def test_the_reference_names_the_kinds_of_errors_and_what_the_schedule_does():
    page = (Path(__file__).parents[1] / 'docs' / 'reference' / 'control.md').read_text(encoding='utf-8')
    for name in ('start', 'observe', 'wants_observation', 'add', 'at', 'points', 'hold'):
        assert f'schedule.{name}(' in page
        assert callable(getattr(ChunkSchedule, name))
    table = page[page.index('| kind |') : page.index('### Relative')]
    first_cells = ''.join(line.split(' | ')[0] for line in table.splitlines())
    assert set(re.findall(r'`(\w+)`', first_cells)) == set(re.findall(r"'(\w+)'", ActionError.__doc__ or ''))
