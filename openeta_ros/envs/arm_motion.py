# SPDX-License-Identifier: Apache-2.0
"""What leaves for an arm: one schedule, one guard, one gate.

The control thread calls `tick`, and nothing else sends anything. The gate is open from `begin` to `end`, or
until the guard trips. Then the arm slows down within its limits, the last command stands, and the gate is
closed: nothing leaves until `begin`.

A schedule is never changed where `tick` could see it half done: a copy is, and takes its place.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from openeta_ros.control import Accepted, ActionPipeline, ChunkSchedule, Execution, Points, Seen
from openeta_ros.control.commands import Commands
from openeta_ros.envs.arm_follow import Follower, PathFollower
from openeta_ros.envs.arm_grips import Grips
from openeta_ros.envs.arm_guard import Guard, Trip
from openeta_ros.envs.arm_operator import Operator, refused
from openeta_ros.envs.arm_robot import ArmStatus, Robot, Vitals
from openeta_ros.envs.arm_sender import Sender
from openeta_ros.envs.errors import EnvError

Array = npt.NDArray[np.float64]

# Seconds that the control thread takes at most, beside those in which the arm slows down; else it is dead.
REST_S = 5.0
POLL_S = 0.005
# A hold that leaves the gate open begins so many periods ahead, so that whoever follows has it by then.
AHEAD_PERIODS = 2.0
LOST = Trip('late', 'the process that sends commands stood still, or heard nothing of the guard')
# What was commanded is known for so long.
MEASURED_S = 0.9


class Motion:
    """The arm's motion. `tick` is for the control thread, `begin` and `add` for one other; all else for any.

    Args:
        period_s: of ticks.
        speed: as `ChunkSchedule`.
        dry_run: everything but sending; what would be sent is shown.
        follower: follows the path at the servo rate; None: `tick` does.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        pipeline: ActionPipeline,
        commands: Commands,
        robot: Robot,
        operator: Operator,
        *,
        period_s: float,
        speed: float = 1.0,
        dry_run: bool = False,
        follower: Follower | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        embodiment = pipeline.embodiment
        self._pipeline, self._robot, self._operator = pipeline, robot, operator
        self._commands, self._clock, self._period_s = commands, clock, period_s
        self._dry_run = dry_run
        self._sender = Sender(commands, robot, dry_run=dry_run, clock=clock)
        slowest_rows = (pipeline.limits.largest_step / pipeline.limits.largest_change).max()
        operator.rest_s = REST_S + float(slowest_rows) / embodiment.rate_hz
        schedule = ChunkSchedule(pipeline, speed=speed)
        self._guard = Guard(embodiment, operator, schedule.joints, tracking=not dry_run)
        self._grips = Grips(embodiment)
        schedule.start(embodiment.home_qpos, clock())
        self._schedule = self._under_way = schedule
        self._swap = threading.Lock()
        self._gate: Literal['closed', 'open', 'braking'] = 'closed'
        self._asked: Trip | None = None
        self.trip: Trip | None = None
        self._dead = ''
        self._path_due = self._take_due = self._rest_asked = self._sets_off = False
        self._before: ChunkSchedule | None = None  # what is followed until the path to rest leaves
        self._planning_s = self._hold_s = 0.0
        self._away: Array = np.zeros(len(schedule.joints))
        self._stuck = False
        self._rests_s = 0.0
        self._last_s = clock()
        patience_s = embodiment.safety.watchdog_s
        self._follower = follower or PathFollower(commands, period_s, patience_s)

    def now(self) -> float:
        """Return the time that the schedule goes by: monotonic, less what the control thread was late."""
        return self._clock() - self._follower.lag_s

    def monotonic(self, time_s: float) -> float:
        """Return the monotonic time of a time of `now`."""
        return time_s + self._follower.lag_s

    @property
    def row_s(self) -> float:
        """Seconds of a row."""
        return self._schedule.row_s

    def begin(self, qpos: Array) -> None:
        """Open the gate, with the arm at rest where it was measured to be, a wire row (D,).

        Raises:
            EnvError: it must not move.
        """
        forbidden = self._operator.forbids()
        if forbidden is not None:
            raise refused(*forbidden)
        if self._dead:
            raise EnvError('closed', f'the control thread has ended: {self._dead}')
        schedule = copy.copy(self._schedule)
        schedule.start(qpos, self.now())
        self._grips.forget()
        self._asked = self.trip = None
        self._path_due = self._rest_asked = self._sets_off = False
        self._before = None
        self._take_due = True
        self._schedule = self._under_way = schedule
        self._operator.idle.clear()
        self._gate = 'open'

    def observe(self) -> Seen:
        """Note that a policy is asked now."""
        seen: Seen = self._changed(lambda schedule, now: schedule.observe(now))
        return seen

    def wants_observation(self) -> bool:
        """Whether the next chunk should be asked for now."""
        return self._schedule.wants_observation(self.now())

    def resting(self) -> bool:
        """Whether the arm is commanded to stand still."""
        return self._schedule.resting(self.now())

    def add(self, actions: npt.ArrayLike, action_type: str, seen: Seen, execution: Execution) -> Accepted:
        """Take a chunk; see `ChunkSchedule.add`.

        Raises:
            ActionError: it is refused, also because the arm is not where it is commanded to be.
            EnvError: motion ended.
        """

        def change(schedule: ChunkSchedule, now_s: float) -> Accepted:
            schedule.execution = execution
            if schedule.resting(now_s):
                self._check_first(schedule.qpos_at(now_s))
            return schedule.add(actions, action_type, seen, now_s)

        accepted: Accepted = self._changed(change)
        self._grips.add(accepted, self.row_s)
        return accepted

    def rest(self) -> None:
        """Come to rest, and stay ready for the next chunk."""
        self._rest_asked = self._gate == 'open'
        while self._rest_asked:
            self.check()
            self.wait(self.now() + POLL_S)

    def end(self, trip: Trip | None = None) -> None:
        """Come to rest and close the gate; return when nothing leaves any more."""
        self._asked = trip or Trip('', '')
        rest_s = self._operator.rest_s
        deadline = self._clock() + rest_s
        while not self._operator.idle.is_set():
            if self._clock() > deadline:
                raise EnvError('fault', f'the arm did not come to rest in {rest_s:.3g} s: no control thread')
            self.wait(self.now() + POLL_S)

    def wait(self, until_s: float) -> None:
        """Let time pass, until a time of `now` at most. Tests put another in its place."""
        time.sleep(min(max(until_s - self.now(), 0.0), 0.02))

    def check(self) -> None:
        """Raise EnvError when motion ended, or must not be."""
        if self.trip is not None:
            raise EnvError(self.trip.kind, f'motion ended: {self.trip.text}')

    def tick(self) -> None:
        """Send what is due, or end motion. On the control thread, once each period."""
        time_s = self._clock()
        late_s = time_s - self._last_s - self._period_s
        self._last_s = time_s
        vitals = self._robot.vitals()
        self._follower.beat(time_s, vitals.positions)
        if self._gate == 'closed':
            return
        self._go_over(self.now())
        now_s = self.now()
        if self._gate == 'open':
            commanded = self._under_way.at(now_s)[0]
            trip = self._asked or self._guard.trip(time_s, late_s, vitals, commanded)
            if trip is None and self._follower.lost:
                trip = LOST
            if trip is not None:
                self._brake(trip, now_s, vitals)
            elif self._rest_asked:
                self._hold(now_s + AHEAD_PERIODS * self._period_s, 'open')
        self._send_now(vitals)
        rests = self._clock() >= self._rests_s and self._under_way.resting(self.now())
        if self._gate == 'braking' and rests and self._follower.closed:
            self.shut()

    def failed(self, error: BaseException) -> None:
        """Come to rest as well as can be done with what still works, and close the gate for good. On the
        control thread, which ends with it."""
        self._dead = f'{type(error).__name__}: {error}'
        with contextlib.suppress(Exception):
            if self._gate != 'closed':
                self._brake(Trip('fault', self._dead), self.now(), Vitals({}, {}))
                while not self._under_way.resting(self.now()):
                    self._last_s = self._clock()
                    self._send_now(Vitals({}, {}))
                    time.sleep(self._period_s)
                self._last_s = self._clock()
                self._send_now(Vitals({}, {}))
        with contextlib.suppress(Exception):
            if self._follower.gone:
                self._sender.stand_still(self._period_s)
        self.trip = Trip('fault', self._dead)
        self.shut()

    def shut(self) -> None:
        """Close the gate as it is. On the control thread."""
        self._gate = 'closed'
        self._operator.idle.set()

    def status(self) -> ArmStatus:
        """Return what there is to tell."""
        forbidden = self._operator.forbids()
        error, joint = self._guard.tracking_error(self._robot.vitals(), self._schedule.at(self.now())[0])
        open_ = self._gate != 'closed'
        if not open_:
            error, joint = 0.0, ''
        if forbidden is not None:
            state = {'stop': 'stopped'}.get(forbidden[0], forbidden[0])
            return ArmStatus(state, forbidden[1], error, joint, self._commands_sent())
        if self.trip is not None:
            return ArmStatus(
                'holding', f'{self.trip.kind}: {self.trip.text}', error, joint, self._commands_sent()
            )
        if self._operator.waiting:
            return ArmStatus('waiting', self._operator.waiting, error, joint, self._commands_sent())
        return ArmStatus(
            'moving' if open_ and not self.resting() else 'ready', '', error, joint, self._commands_sent()
        )

    def _commands_sent(self) -> int:
        own = self._follower.sent if not isinstance(self._follower, PathFollower) else 0
        return self._sender.sent + own

    def _changed(self, change: Callable[[ChunkSchedule, float], Any]) -> Any:
        """Return what a change of the schedule returns, when it is under way; only a finished one is seen.

        It is made for the time at which it will be finished, and made again when it was not in time. From
        rest it need not be: then it begins when it is there.
        """
        ahead_s = 0.0 if self.resting() else self._planning_s
        while True:
            self.check()
            if self._gate != 'open':
                raise EnvError('not_reset', 'the arm is at rest and is sent nothing: call reset(seed) first')
            before, begin_s = self._schedule, self.now()
            after = copy.copy(before)
            answer = change(after, begin_s + ahead_s)
            with self._swap:
                took_s = self.now() - begin_s
                in_time = took_s <= ahead_s + self._period_s or before.resting(begin_s)
                swapped = self._schedule is before and in_time
                if swapped:
                    self._schedule = after
            if swapped and after.same_path(before):
                return answer
            self._planning_s = took_s if took_s > self._period_s else 0.0
            if swapped and self._is_followed(after):
                return answer
            ahead_s = 2 * (self.now() - begin_s)

    def _is_followed(self, schedule: ChunkSchedule) -> bool:
        """Wait until the control thread goes over to a schedule, and return whether it does."""
        deadline = self._clock() + REST_S
        while self._schedule is schedule and self._under_way is not schedule:
            self.check()
            if self._clock() > deadline:
                raise EnvError('fault', f'no command left for {REST_S:g} s: no control thread')
            self.wait(self.now() + POLL_S)
        return self._under_way.same_path(schedule)

    def _go_over(self, now_s: float) -> None:
        """Go over to the schedule that has taken the place of the one under way.

        One that would have the arm leap, because it comes too late, is not followed.
        """
        with self._swap:
            new, before = self._schedule, self._under_way
            if new.same_path(before):
                self._under_way = new
                return
            wait_s = new.path().wait_s(before.path(), now_s, AHEAD_PERIODS * self._period_s)
            if wait_s is None:
                self._schedule = before
                return
            if wait_s:
                new = copy.copy(new)
                new.set_off(now_s)
            self._sets_off = new.path().sets_off(before.path(), now_s)
            self._before = None
            self._schedule = self._under_way = new
        self._path_due = self._take_due = True

    def _begin(self, time_s: float) -> None:
        """Have the path under way begin when it leaves, however long that takes to be made: an arm that rests
        sets off then, and one that comes to rest slows down from then on."""
        with self._swap:
            before = self._under_way
            if self._before is not None:
                self._under_way = _held(self._before, max(self._hold_s, time_s))
            elif self._sets_off:
                self._under_way = copy.copy(before)
                self._under_way.set_off(time_s)
            if self._schedule is before:
                self._schedule = self._under_way

    def _hold(self, time_s: float, gate: Literal['open', 'braking']) -> None:
        """Have the schedule come to rest from a time on."""
        with self._swap:
            moves = not self._under_way.resting(time_s)
            self._before, self._hold_s = self._under_way, time_s
            self._schedule = self._under_way = _held(self._before, time_s)
            self._gate = gate
            self._grips.drop()
            self._rest_asked = self._sets_off = False
        self._path_due = self._take_due = moves

    def _brake(self, trip: Trip, now_s: float, vitals: Vitals) -> None:
        # An arm that something is in the way of must not push on: it comes to rest where it was measured.
        self._stuck = trip.kind == 'tracking'
        self._away = self._measured_away(vitals, since_heard=not self._stuck)
        self._hold(now_s, 'braking')
        self._rests_s = self._clock()
        self.trip = trip if trip.kind else None
        self._follower.brake(self._last_s)

    def _points(self, now_s: float, vitals: Vitals) -> Points:
        """Return the path to send. A controller begins it where it measures the arm."""
        self._begin(now_s)
        if self._gate == 'open':
            return self._under_way.points(now_s, self._measured_away(vitals))
        return self._under_way.stop_points(now_s, self._away, there=self._stuck)

    def _measured_away(self, vitals: Vitals, *, since_heard: bool = True) -> Array:
        """Return how far the arm was measured from where it was commanded to be then, (J,)."""
        heard_s = [
            at_s for (kind, _), at_s in vitals.heard_s.items() if kind == 'stale_state' and since_heard
        ]
        ago_s = np.clip(self._last_s - min(heard_s, default=self._last_s), 0.0, MEASURED_S)
        commanded = self._under_way.at(self._last_s - self._follower.lag_s - ago_s)[0]
        joints = zip(self._under_way.joints, commanded, strict=True)
        return np.array([vitals.positions.get(joint, value) - value for joint, value in joints])

    def _check_first(self, commanded: Array) -> None:
        """Refuse to start where the arm is not; the guard ends motion where nobody knows where it is."""
        measured = self._pipeline.measured_row(self._robot.vitals().positions)
        if measured is not None and not self._dry_run:
            self._pipeline.limits.check_start(measured, commanded)

    def _send_now(self, vitals: Vitals) -> None:
        """Send what is due."""
        if self._path_due:
            self._path_due = False
            takes_s = self._sender.send_path(lambda later_s: self._points(self.now() + later_s, vitals))
            if takes_s is not None:
                self._rests_s = self._clock() + takes_s
        if self._take_due and self._gate == 'open':
            self._take_due = False
            self._follower.take(self._under_way.path())
        commands = self._follower.step(self._last_s)
        self._sender.send(commands + self._commands.grippers(self._grips.due(self.now())))


def _held(schedule: ChunkSchedule, time_s: float) -> ChunkSchedule:
    """Return a schedule that comes to rest from a time on."""
    held = copy.copy(schedule)
    held.hold(time_s)
    return held
