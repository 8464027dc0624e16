# SPDX-License-Identifier: Apache-2.0
"""The mock's joint_trajectory_controller does what the real one was seen to do (ros2_controllers 4.42)."""

from __future__ import annotations

import numpy as np
import pytest

from openeta_ros.envs.mock_trajectory import (
    ABORTED,
    CANCELED,
    SUCCEEDED,
    Goal,
    Point,
    Rejected,
    Trajectory,
    TrajectoryController,
)

JOINTS = ('a', 'b')
T0 = 1_700_000_000_000_000_000
TICK = 10_000_000


class Arm:
    """A controller and joints that are where they are commanded, as the real mock components."""

    def __init__(self, *, allow_partial: bool = False) -> None:
        self.controller = TrajectoryController(JOINTS, allow_partial=allow_partial)
        self.now = T0
        self.positions, self.velocities = np.zeros(2), np.zeros(2)

    def send(self, *points: Point, joints: tuple[str, ...] = JOINTS, start_ns: int = 0) -> None:
        self.controller.accept(Trajectory(joints, points, start_ns), self.now)

    def goal(self, *points: Point, **tolerances: object) -> Goal:
        goal = Goal(Trajectory(JOINTS, points), **tolerances)  # type: ignore[arg-type]
        self.controller.accept_goal(goal, self.now)
        return goal

    def run(self, seconds: float, *, stuck: bool = False) -> np.ndarray:
        """Tick for so long; return the commands."""
        commands = []
        for _ in range(round(seconds * 1e9) // TICK):
            command = self.controller.update(self.now, self.positions, self.velocities)
            commands.append(command)
            reached = np.where(np.isnan(command) | stuck, self.positions, command)
            self.velocities = (reached - self.positions) / (TICK / 1e9)
            self.positions = reached
            self.now += TICK
        return np.array(commands)


def point(time_s: float, *positions: float, v: tuple[float, ...] = (), a: tuple[float, ...] = ()) -> Point:
    return Point(time_s, np.array(positions, float), np.array(v, float), np.array(a, float))


@pytest.fixture
def arm() -> Arm:
    return Arm()


def test_nothing_is_commanded_before_the_first_message(arm: Arm) -> None:
    assert np.isnan(arm.run(0.05)).all()


def test_stamp_0_starts_at_the_next_tick_and_positions_alone_go_straight(arm: Arm) -> None:
    arm.run(0.05)
    arm.send(point(1.0, 1.0, -1.0))
    commands = arm.run(1.5)
    np.testing.assert_allclose(commands[:100, 0], np.arange(100) / 100, atol=1e-9)
    np.testing.assert_allclose(commands[100:], [[1.0, -1.0]] * 50)
    np.testing.assert_allclose(commands[:, 0], -commands[:, 1], atol=1e-12)


def test_with_velocities_it_is_cubic(arm: Arm) -> None:
    arm.send(point(1.0, 1.0, 0.0, v=(0.0, 0.0)))
    part = np.arange(100) / 100
    np.testing.assert_allclose(arm.run(1.0)[:, 0], 3 * part**2 - 2 * part**3, atol=1e-9)


def test_with_accelerations_it_is_quintic(arm: Arm) -> None:
    arm.send(point(1.0, 1.0, 0.0, v=(0.0, 0.0), a=(0.0, 0.0)))
    part = np.arange(100) / 100
    np.testing.assert_allclose(arm.run(1.0)[:, 0], 10 * part**3 - 15 * part**4 + 6 * part**5, atol=1e-9)


def test_between_points_velocities_are_met(arm: Arm) -> None:
    arm.send(point(0.5, 0.5, 0.0, v=(1.0, 0.0)), point(1.0, 1.0, 0.0, v=(0.0, 0.0)))
    commands = arm.run(1.0)[:, 0]
    assert commands[50] == pytest.approx(0.5)
    assert (commands[51] - commands[49]) / 0.02 == pytest.approx(1.0, abs=0.03)


def test_the_first_segment_starts_with_the_measured_velocity_only_if_the_point_has_one(arm: Arm) -> None:
    arm.velocities = np.array([0.5, 0.0])
    arm.send(point(1.0, 0.0, 0.0, v=(0.0, 0.0)))
    assert arm.run(0.1)[-1, 0] > 0.03
    other = Arm()
    other.velocities = np.array([0.5, 0.0])
    other.send(point(1.0, 0.0, 0.0))
    assert not other.run(0.1).any()


def test_time_from_start_0_is_a_step(arm: Arm) -> None:
    arm.send(point(0.0, 2.0, -2.0))
    assert arm.run(0.02).tolist() == [[2.0, -2.0]] * 2


def test_a_past_stamp_is_pressed_into_the_time_that_is_left(arm: Arm) -> None:
    arm.send(point(1.0, 1.0, 0.0), start_ns=T0 - 500_000_000)
    commands = arm.run(0.6)[:, 0]
    assert commands[0] == 0.0 and commands[25] == pytest.approx(0.5) and commands[50] == 1.0


def test_a_past_stamp_whose_end_is_past_is_rejected(arm: Arm) -> None:
    with pytest.raises(Rejected, match=r'ended 0\.500 s ago'):
        arm.send(point(1.0, 1.0, 0.0), start_ns=T0 - 1_500_000_000)


def test_with_a_future_stamp_it_moves_at_once_and_arrives_in_time(arm: Arm) -> None:
    arm.send(point(0.5, 1.0, 0.0), start_ns=T0 + 500_000_000)
    commands = arm.run(1.1)[:, 0]
    assert commands[50] == pytest.approx(0.5) and commands[99] < 1.0 and commands[100] == 1.0


def test_replacement_is_immediate_and_from_the_measured_state(arm: Arm) -> None:
    arm.send(point(1.0, 1.0, 0.0))
    arm.run(0.5)
    arm.positions = np.array([0.3, 0.0])  # behind its command
    arm.send(point(1.0, 0.3, 0.0))
    assert arm.run(0.5)[:, 0] == pytest.approx(0.3)


def test_joints_in_any_order_are_found_by_name(arm: Arm) -> None:
    arm.send(point(0.0, -2.0, 1.0), joints=('b', 'a'))
    assert arm.run(0.01)[0].tolist() == [1.0, -2.0]


@pytest.mark.parametrize(
    ('points', 'joints', 'reason'),
    [
        ([point(1.0, 1.0)], ('a',), '1 joints are named'),
        ([point(1.0, 1.0, 1.0, 1.0)], ('a', 'b', 'c'), "joints \\['c'\\] are not of this controller"),
        ([point(1.0, 1.0, 1.0)], ('a', 'x'), "joints \\['x'\\]"),
        ([point(1.0, 1.0)], JOINTS, 'has 1 positions for 2 joints'),
        ([point(1.0, 1.0, 1.0, v=(0.0,))], JOINTS, 'has 1 velocities for 2 joints'),
        ([point(1.0, 1.0, 1.0, a=(0.0,))], JOINTS, 'has 1 accelerations for 2 joints'),
        ([], JOINTS, 'no points'),
        ([point(1.0)], (), 'no joint names'),
        ([point(1.0, 1.0, 1.0, v=(0.0, 0.1))], JOINTS, 'velocity of the last point'),
        ([point(1.0, 1.0, 1.0), point(1.0, 1.0, 1.0)], JOINTS, 'does not come after'),
        ([Point(1.0, np.ones(2), efforts=np.ones(2))], JOINTS, 'has efforts'),
    ],
)
def test_a_whole_message_is_rejected_and_what_runs_goes_on(
    points: list[Point], joints: tuple[str, ...], reason: str
) -> None:
    arm = Arm()
    arm.send(point(1.0, 1.0, 0.0))
    arm.run(0.5)
    with pytest.raises(Rejected, match=reason):
        arm.send(*points, joints=joints)
    assert arm.run(0.6)[-1].tolist() == [1.0, 0.0]


def test_part_of_the_joints_is_taken_where_that_is_allowed_and_the_others_hold() -> None:
    arm = Arm(allow_partial=True)
    arm.send(point(0.0, 0.5, 0.7))
    arm.run(0.05)
    arm.send(point(0.5, 1.0), joints=('b',))
    np.testing.assert_allclose(arm.run(0.6)[-1], [0.5, 1.0])


def test_a_name_given_twice_is_not_noticed(arm: Arm) -> None:
    arm.send(point(0.0, 1.0, 2.0), joints=('a', 'a'))
    assert arm.run(0.01)[0].tolist() == [2.0, 0.0]


def test_nan_passes_never_moves_and_the_goal_succeeds(arm: Arm) -> None:
    goal = arm.goal(point(0.2, np.nan, 1.0), goal_tolerance={'a': 0.01})
    commands = arm.run(0.3)
    assert np.isnan(commands[1:, 0]).all() and arm.positions.tolist() == [0.0, 1.0]
    assert goal.outcome is not None and goal.outcome.status == SUCCEEDED


def test_a_goal_succeeds_at_its_end_and_one_of_no_time_at_once(arm: Arm) -> None:
    goal = arm.goal(point(0.5, 1.0, 0.0))
    arm.run(0.4)
    assert goal.outcome is None
    arm.run(0.2)
    assert goal.outcome is not None and (goal.outcome.status, goal.outcome.error_code) == (SUCCEEDED, 0)
    step = arm.goal(point(0.0, 0.0, 0.0))
    arm.run(0.05)
    assert step.outcome is not None and step.outcome.status == SUCCEEDED


def test_a_new_goal_aborts_the_old_one(arm: Arm) -> None:
    old = arm.goal(point(1.0, 1.0, 0.0))
    arm.run(0.5)
    new = arm.goal(point(0.5, 0.0, 0.0))
    assert old.outcome is not None and (old.outcome.status, old.outcome.error_code) == (ABORTED, -1)
    assert old.outcome.text == 'Current goal preempted by new incoming action.'
    arm.run(0.6)
    assert new.outcome is not None and new.outcome.status == SUCCEEDED


def test_a_rejected_goal_leaves_the_old_one_running(arm: Arm) -> None:
    old = arm.goal(point(0.5, 1.0, 0.0))
    with pytest.raises(Rejected):
        arm.goal()
    arm.run(0.6)
    assert old.outcome is not None and old.outcome.status == SUCCEEDED


def test_a_message_does_not_abort_a_goal_which_succeeds_with_its_end(arm: Arm) -> None:
    goal = arm.goal(point(0.5, 1.0, 0.0))
    arm.run(0.2)
    arm.send(point(1.0, 0.0, 0.0))
    arm.run(0.9)
    assert goal.outcome is None
    arm.run(0.2)
    assert goal.outcome is not None and goal.outcome.status == SUCCEEDED
    assert arm.positions.tolist() == [0.0, 0.0]


def test_cancelled_it_holds(arm: Arm) -> None:
    goal = arm.goal(point(1.0, 1.0, 0.0))
    arm.run(0.5)
    arm.controller.cancel(goal)
    assert goal.outcome is not None and (goal.outcome.status, goal.outcome.error_code) == (CANCELED, 0)
    held = arm.positions.copy()
    assert (arm.run(0.5) == held).all() and held[0] < 0.6


def test_deactivated_it_aborts_and_takes_nothing_until_it_is_activated(arm: Arm) -> None:
    goal = arm.goal(point(1.0, 1.0, 0.0))
    arm.run(0.5)
    held = arm.positions.copy()
    arm.controller.deactivate()
    assert goal.outcome is not None and (goal.outcome.status, goal.outcome.error_code) == (ABORTED, -1)
    with pytest.raises(Rejected, match='not active'):
        arm.send(point(0.0, 1.0, 0.0))
    with pytest.raises(Rejected, match='not active'):
        arm.goal(point(0.0, 1.0, 0.0))
    arm.run(0.5)
    assert (arm.positions == held).all()
    arm.controller.activate()
    assert (arm.run(0.1) == held).all()
    arm.send(point(0.0, 1.0, 0.0))
    assert arm.run(0.01)[0].tolist() == [1.0, 0.0]


def test_tolerances_of_zero_and_of_unknown_joints_are_not_checked(arm: Arm) -> None:
    goal = arm.goal(point(0.2, 1.0, 0.0), path_tolerance={'a': 0.0, 'x': 0.1}, goal_tolerance={'a': 0.0})
    arm.run(0.3, stuck=True)
    assert goal.outcome is not None and goal.outcome.status == SUCCEEDED


def test_a_violated_goal_tolerance_aborts_after_goal_time(arm: Arm) -> None:
    goal = arm.goal(point(0.2, 1.0, 0.0), goal_tolerance={'a': 0.1}, goal_time_s=0.3)
    arm.run(0.45, stuck=True)
    assert goal.outcome is None
    arm.run(0.1, stuck=True)
    assert goal.outcome is not None and (goal.outcome.status, goal.outcome.error_code) == (ABORTED, -5)


def test_goal_time_0_waits_for_ever(arm: Arm) -> None:
    goal = arm.goal(point(0.2, 1.0, 0.0), goal_tolerance={'a': 0.1})
    arm.run(30.0, stuck=True)
    assert goal.outcome is None


def test_a_violated_path_tolerance_aborts_and_holds(arm: Arm) -> None:
    goal = arm.goal(point(1.0, 1.0, 0.0), path_tolerance={'a': 0.1})
    arm.run(0.3, stuck=True)
    assert goal.outcome is not None and (goal.outcome.status, goal.outcome.error_code) == (ABORTED, -4)
    assert arm.run(0.1)[-1].tolist() == [0.0, 0.0]


def test_there_are_no_position_limits(arm: Arm) -> None:
    arm.send(point(0.5, 40.0, 0.0))
    assert arm.run(0.6)[-1, 0] == 40.0
