# SPDX-License-Identifier: Apache-2.0
"""A joint_trajectory_controller without ros2_control: it takes, refuses and follows trajectories as that one
was seen to, so that what a user learns on the mock holds on the arm.

No ROS in here: the time is handed in, ROS time in nanoseconds. All arrays are in the controller's own order
of joints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from openeta_ros.envs.backend import Array
from openeta_ros.observation import NS_PER_S

NOTHING = np.empty(0)
# A last velocity above this is no rest: what is left of zero in a message of another precision.
AT_REST = 1e-6
# As in action_msgs/GoalStatus, and FollowJointTrajectory's own codes.
SUCCEEDED, CANCELED, ABORTED = 4, 5, 6
SUCCESSFUL, INVALID_GOAL, PATH_TOLERANCE, GOAL_TOLERANCE = 0, -1, -4, -5


class Rejected(Exception):
    """A message that a controller does not take; the text says why. Nothing of it is executed."""


@dataclass(frozen=True)
class Point:
    """One point of a trajectory: seconds from its start, and one number per named joint, or none."""

    time_s: float
    positions: Array
    velocities: Array = field(default_factory=lambda: NOTHING)
    accelerations: Array = field(default_factory=lambda: NOTHING)
    efforts: Array = field(default_factory=lambda: NOTHING)


@dataclass(frozen=True)
class Trajectory:
    """A trajectory_msgs/JointTrajectory; `start_ns` is its stamp, 0 for at once."""

    joints: tuple[str, ...]
    points: tuple[Point, ...]
    start_ns: int = 0

    @property
    def end_ns(self) -> int:
        """When it ends, if its stamp is not 0."""
        return self.start_ns + round(self.points[-1].time_s * NS_PER_S)


@dataclass(frozen=True)
class Outcome:
    """How a goal ended: its status (`SUCCEEDED`, `CANCELED`, `ABORTED`), error code and text."""

    status: int
    error_code: int
    text: str = ''


class Goal:
    """A goal of the action; `outcome` is None while it runs.

    Tolerances are by joint: zero is not checked, and joints that the controller has not are passed over.
    `goal_time_s` 0 waits for ever for the goal tolerance.
    """

    def __init__(
        self,
        trajectory: Trajectory,
        path_tolerance: Mapping[str, float] | None = None,
        goal_tolerance: Mapping[str, float] | None = None,
        goal_time_s: float = 0.0,
    ) -> None:
        self.trajectory = trajectory
        self.path_tolerance = path_tolerance or {}
        self.goal_tolerance = goal_tolerance or {}
        self.goal_time_s = goal_time_s
        self.outcome: Outcome | None = None


class TrajectoryController:
    """Follows the newest trajectory, and holds its end.

    `joints` are its own names in its own order; messages may name them in any. With `allow_partial` a message
    may name some of them, and the others hold.
    """

    def __init__(self, joints: tuple[str, ...], *, allow_partial: bool = False) -> None:
        self.joints = joints
        self.active = True
        self._allow_partial = allow_partial
        self._waiting: Trajectory | None = None  # taken at the next tick
        self._path: _Path | None = None
        self._goal: Goal | None = None
        self._command: Array | None = None
        self._hold = False

    def accept(self, trajectory: Trajectory, now_ns: int) -> None:
        """Take a message of the topic; it replaces what runs at the next tick. A running goal goes on with
        it.

        Raises:
            Rejected: all of it is refused, and what runs goes on.
        """
        self.check(trajectory, now_ns)
        self._waiting, self._hold = trajectory, False

    def accept_goal(self, goal: Goal, now_ns: int) -> None:
        """Take a goal of the action, which aborts the one that runs.

        Raises:
            Rejected: the goal is refused, and what runs goes on.
        """
        self.accept(goal.trajectory, now_ns)
        self._end_goal(Outcome(ABORTED, INVALID_GOAL, 'Current goal preempted by new incoming action.'))
        self._goal = goal

    @property
    def commanded(self) -> Array | None:
        """The positions (J,) of the last tick; None when there were none."""
        return self._command

    def cancel(self, goal: Goal) -> None:
        """End a goal where it is; the arm holds."""
        if goal is self._goal:
            self._end_goal(Outcome(CANCELED, SUCCESSFUL))
            self._waiting, self._hold = None, True

    def activate(self) -> None:
        """Take messages from now on, and hold until there is one."""
        self.active, self._hold = True, True

    def deactivate(self) -> None:
        """Take no more messages: a goal is aborted, and the arm holds, since nobody commands it any more."""
        self.active, self._hold = False, False
        self._waiting = self._path = self._command = None
        self._end_goal(Outcome(ABORTED, INVALID_GOAL, 'The controller was deactivated.'))

    def update(self, now_ns: int, positions: Array, velocities: Array) -> Array:
        """Return the commanded positions (J,) of this tick; NaN where nothing was ever commanded, or NaN was.

        Args:
            positions: measured now (J,).
            velocities: measured now (J,).
        """
        if self._hold:
            self._path, self._hold = None, False
            self._command = positions.copy()
        if self._waiting is not None:
            self._path = self._begun(self._waiting, now_ns, positions, velocities)
            self._waiting = None
        if self._path is not None:
            self._command = self._path.at(now_ns)
            self._watch(self._path, now_ns, positions)
        return np.full(len(self.joints), np.nan) if self._command is None else self._command

    def _begun(self, trajectory: Trajectory, now_ns: int, positions: Array, velocities: Array) -> _Path:
        places = [self.joints.index(name) for name in trajectory.joints]
        resting = positions if self._command is None else self._command

        def ordered(values: Array, others: Array) -> Array:
            if not len(values):
                return NOTHING
            result = others.copy()
            result[places] = values
            return result

        still = np.zeros(len(self.joints))
        points = [
            Point(
                point.time_s,
                ordered(point.positions, resting),
                ordered(point.velocities, still),
                ordered(point.accelerations, still),
            )
            for point in trajectory.points
        ]
        return _Path(points, trajectory.start_ns or now_ns, now_ns, positions.copy(), velocities.copy())

    def _watch(self, path: _Path, now_ns: int, positions: Array) -> None:
        goal = self._goal
        if goal is None:
            return
        assert self._command is not None
        error = dict(zip(self.joints, np.abs(self._command - positions), strict=True))
        if now_ns < path.end_ns:
            if _violated(goal.path_tolerance, error):
                self._end_goal(Outcome(ABORTED, PATH_TOLERANCE, 'Aborted due to path tolerance violation'))
                self._hold = True
        elif not _violated(goal.goal_tolerance, error):
            self._end_goal(Outcome(SUCCEEDED, SUCCESSFUL, 'Goal successfully reached!'))
        elif 0 < goal.goal_time_s * NS_PER_S < now_ns - path.end_ns:
            self._end_goal(Outcome(ABORTED, GOAL_TOLERANCE, 'Aborted due to goal tolerance violation'))
            self._hold = True

    def _end_goal(self, outcome: Outcome) -> None:
        if self._goal is not None:
            self._goal.outcome, self._goal = outcome, None

    def check(self, trajectory: Trajectory, now_ns: int) -> None:
        """Raise Rejected when a trajectory cannot be taken now."""
        names, points = trajectory.joints, trajectory.points
        if not self.active:
            raise Rejected('the controller is not active')
        if not names:
            raise Rejected('no joint names')
        unknown = [name for name in names if name not in self.joints]
        if unknown:
            raise Rejected(f'joints {unknown} are not of this controller, which has {list(self.joints)}')
        # Counted, not compared: a name given twice passes in the place of one that is missing.
        if len(names) != len(self.joints) and (not self._allow_partial or len(names) > len(self.joints)):
            raise Rejected(f'{len(names)} joints are named, this controller has {list(self.joints)}')
        if not points:
            raise Rejected('no points')
        for index, point in enumerate(points):
            self._check_point(index, point, len(names))
            if index and point.time_s <= points[index - 1].time_s:
                raise Rejected(f'the time of point {index} does not come after that of point {index - 1}')
        last = points[-1].velocities
        if (np.abs(last) > AT_REST).any():
            raise Rejected(f'the velocity of the last point is {last.tolist()}, and must be zero')
        if trajectory.start_ns and trajectory.end_ns < now_ns:
            late_s = (now_ns - trajectory.end_ns) / NS_PER_S
            raise Rejected(f'it ended {late_s:.3f} s ago: its stamp is in the past')

    def _check_point(self, index: int, point: Point, count: int) -> None:
        for what in ('positions', 'velocities', 'accelerations'):
            size = len(getattr(point, what))
            if size != count and (size or what == 'positions'):
                raise Rejected(f'point {index} has {size} {what} for {count} joints')
        if len(point.efforts):
            raise Rejected(f'point {index} has efforts, which a position controller does not take')


class _Path:
    """A trajectory under way: points in time, the first of them the measured state while it lies ahead."""

    def __init__(
        self, points: list[Point], start_ns: int, begin_ns: int, positions: Array, velocities: Array
    ) -> None:
        self._begin_ns = begin_ns
        offset_s = (start_ns - begin_ns) / NS_PER_S
        measured = Point(0.0, positions, velocities, np.zeros(len(positions)))
        # Points whose time has passed are not made up for.
        ahead = offset_s + points[0].time_s > 0
        self._points = [measured, *points] if ahead else points
        self._times = [0.0] * ahead + [offset_s + point.time_s for point in points]
        self.end_ns = begin_ns + round(self._times[-1] * NS_PER_S)

    def at(self, now_ns: int) -> Array:
        time_s = (now_ns - self._begin_ns) / NS_PER_S
        index = int(np.searchsorted(self._times, time_s, side='right'))
        if index == len(self._times):
            return self._points[-1].positions.copy()
        before = max(index - 1, 0)
        duration_s = self._times[index] - self._times[before]
        return _between(self._points[before], self._points[index], time_s - self._times[before], duration_s)


def _between(a: Point, b: Point, time_s: float, duration_s: float) -> Array:
    """Return the positions (J,) on the way from a to b: quintic, cubic or straight, by what both give."""
    if duration_s <= 0:
        return b.positions.copy()
    part, way = time_s / duration_s, b.positions - a.positions
    if not (len(a.velocities) and len(b.velocities)):
        return np.asarray(a.positions + part * way)
    start, end = a.velocities * duration_s, b.velocities * duration_s
    if not (len(a.accelerations) and len(b.accelerations)):
        return np.asarray(
            a.positions + part * (start + part * (3 * way - 2 * start - end + part * (start + end - 2 * way)))
        )
    bend, unbend = a.accelerations * duration_s**2, b.accelerations * duration_s**2
    third = 10 * way - 6 * start - 4 * end - 1.5 * bend + 0.5 * unbend
    fourth = -15 * way + 8 * start + 7 * end + 1.5 * bend - unbend
    fifth = 6 * way - 3 * start - 3 * end - 0.5 * bend + 0.5 * unbend
    return np.asarray(
        a.positions + part * (start + part * (0.5 * bend + part * (third + part * (fourth + part * fifth))))
    )


def _violated(tolerance: Mapping[str, float], error: Mapping[str, float]) -> bool:
    """Whether a joint is further off than it may be. What is no number is not."""
    return any(
        tolerance[name] > 0 and not math.isnan(away) and away > tolerance[name]
        for name, away in error.items()
        if name in tolerance
    )
