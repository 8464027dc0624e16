# SPDX-License-Identifier: Apache-2.0
"""A physical arm as an env: its rows pass in real time, and whatever happens, it does not leap.

Three threads meet here: who calls (reset, run), the control thread (`Motion.tick`), and whoever hears of the
robot. Nothing but the control thread sends anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openeta_ros.control import Accepted, ActionError, ActionPipeline, Execution, Seen
from openeta_ros.embodiment import Kinematics
from openeta_ros.envs.arm_motion import Motion
from openeta_ros.envs.arm_operator import Operator, refused
from openeta_ros.envs.arm_robot import Robot
from openeta_ros.envs.backend import Array, CameraPose
from openeta_ros.envs.errors import EnvError
from openeta_ros.envs.spec import EnvSpec, LiveRow, Sensors
from openeta_ros.envs.tasks import TASKS

# Rows of an episode of a task that is told in words.
MAX_STEPS = 400
# Rows that an arm at home may still settle for before its first observation.
SETTLE_ROWS = 4
# Seconds that the first sign of life of who gives chunks may take: longer than one that was killed is taken
# for alive.
HEARD_S = 15.0


class _Due(NamedTuple):
    """A row under way: when it is reached, what was clamped in it, and the wire row; None stands still."""

    due_s: float
    clamped: tuple[str, ...]
    row: Array | None


class ArmWorld:
    """The `LiveWorld` of a physical arm.

    Args:
        robot: closed with the world.
        motion: of the same robot; somebody ticks it.
        operator: of the same motion.
        stop_ticks: ends who ticks the motion.
        driven: how it is driven, in types that JSON has, for those who read results.
    """

    deterministic = False
    camera_poses: Mapping[str, CameraPose] = {}

    def __init__(
        self,
        spec: EnvSpec,
        kinematics: Kinematics,
        robot: Robot,
        motion: Motion,
        operator: Operator,
        stop_ticks: Callable[[], None] = lambda: None,
        driven: Mapping[str, Any] | None = None,
    ) -> None:
        self.driven = {**(driven or {}), 'enabled_at_start': operator.enabled}
        self._embodiment = spec.embodiment
        self._pipeline = ActionPipeline(spec.embodiment, kinematics)
        self._robot, self._motion, self._operator = robot, motion, operator
        self._stop_ticks = stop_ticks
        known = TASKS.get(spec.task)
        self.instruction = known.instruction if known else spec.task
        self.max_steps = known.max_steps if known else MAX_STEPS
        self.seed_honoured = robot.has_scene()
        self.version = robot.version
        self._due: deque[_Due] = deque()
        self._seen: Seen | None = None
        self._judged_by_node = False

    def reset(self, seed: int) -> Sensors:
        """Bring the arm home within its limits, have the scene put in order, and return what is seen."""
        self._motion.end()
        self._due.clear()
        self._check_allowed()
        self._robot.wait_ready(self._check_allowed)
        self._operator.new_episode()
        self._wait_heard(self._check_allowed)
        self._home()
        if self._robot.has_scene():
            self._robot.reset_scene(seed, self._check_allowed)
        else:
            self._operator.wait_scene(
                f'put the scene of seed {seed} in order and say so (scene_ready); the arm stands still',
                self._check_allowed,
            )
        self._judged_by_node = self._robot.judges()
        self._robot.new_episode(self._check_allowed)
        sensors = self._robot.sense(self._motion.monotonic(self._motion.now()), self._check_allowed)
        self._motion.begin(self._measured())
        self._seen = self._motion.observe()
        return sensors

    def run(
        self, actions: npt.ArrayLike, action_type: str, execution: Execution, budget: int
    ) -> Iterator[LiveRow]:
        """See `LiveWorld`."""
        self._motion.check()
        self._wait_heard(self._motion.check)
        assert self._seen is not None  # the facade resets first
        accepted = self._motion.add(actions, action_type, self._seen, execution)
        events = self._take(accepted)
        over = False
        try:
            for count in range(1, budget + 1):
                due = self._due.popleft()
                self._wait(due.due_s)
                sensors = self._robot.sense(self._motion.monotonic(due.due_s), self._motion.check)
                verdict = self._verdict()
                over = verdict is not None or count == budget
                yield LiveRow(sensors, verdict, due.clamped, events, due.row)
                events = ()
                if over or self._ends():
                    break
            if not over:
                self._seen = self._motion.observe()
        except GeneratorExit:  # who asked for rows wants no more of them
            self._due.clear()
            self._motion.end() if over else self._stop()
            raise
        except BaseException:
            self._due.clear()
            self._motion.end()
            raise
        if over:
            self._motion.end()

    def verdict(self) -> bool:
        """See `LiveWorld`."""
        self._motion.end()
        if self._judged_by_node:
            return self._robot.success()
        if self._operator.verdict is not None:
            return self._operator.verdict
        text = 'say whether the task is solved (judge); the arm stands still'
        return self._operator.wait_verdict(text, lambda: None)

    def expert(self) -> Array:
        """Return the rows of the scene's own expert."""
        return self._robot.expert(self._motion.check)

    def close(self) -> None:
        """Bring the arm to rest, and end."""
        try:
            self._motion.end()
        finally:
            self._stop_ticks()
            self._robot.close()

    def _take(self, accepted: Accepted) -> tuple[str, ...]:
        """Queue the rows of a chunk behind those that stay; return what there is to tell of it."""
        events: tuple[str, ...] = ()
        if accepted.dropped:
            reason = {'late': 'all of its rows were past', 'held': 'the arm stopped since its observation'}
            events = (f'a chunk was dropped: {reason.get(accepted.dropped, accepted.dropped)}',)
        elif accepted.skipped:
            events = (f'{accepted.skipped} rows of a chunk were past and are skipped',)
        if len(accepted.rows):
            while self._due and self._due[-1].due_s > accepted.due_s[0] - self._motion.row_s / 2:
                self._due.pop()
            self._due.extend(map(_Due, accepted.due_s, accepted.clamped, accepted.rows))
        if not self._due:  # a row of standing still, after which the policy is asked with what is seen then
            self._due.append(_Due(self._motion.now() + self._motion.row_s, (), None))
        return events

    def _ends(self) -> bool:
        """Whether the next chunk should be asked for, and all rows that have passed are told."""
        if not self._due:
            return True
        return self._due[0].due_s > self._motion.now() and self._motion.wants_observation()

    def _wait(self, due_s: float) -> None:
        while self._motion.now() < due_s:
            self._motion.check()
            self._motion.wait(due_s)
        self._motion.check()

    def _verdict(self) -> bool | None:
        """Return what is known of the task: a node tells success alone, a person either."""
        if self._operator.verdict is not None:
            return self._operator.verdict
        return True if self._judged_by_node and self._robot.success() else None

    def _wait_heard(self, check: Callable[[], None]) -> None:
        """Wait until who gives chunks has said that it lives, where it does at all: who was never heard would
        not be missed."""
        deadline_s = self._motion.now() + HEARD_S
        while self._operator.heard_s is None and (where := self._robot.driver()):
            check()
            if self._motion.now() > deadline_s:
                raise EnvError(
                    'absent',
                    f'somebody publishes {where}, and nothing came on it in {HEARD_S:g} s: the arm does not '
                    'move for who would not be missed; end who publishes it, or see why it is silent',
                )
            self._motion.wait(self._motion.now() + self._motion.row_s)

    def _home(self) -> None:
        """Move to the contract's home, within the limits, from where the arm was measured to be."""
        measured, home = self._measured(), self._embodiment.home_qpos
        try:
            plan = self._pipeline.approach(home, measured)
        except ActionError as error:
            raise EnvError(
                'absent', f'the arm cannot go home by itself: {error}; move it by hand nearer to home'
            ) from error
        self._motion.begin(measured)
        try:
            self._motion.add(plan.qpos, 'qpos', self._motion.observe(), Execution())
            while not self._motion.resting():
                self._motion.check()
                self._motion.wait(self._motion.now() + self._motion.row_s)
            self._wait(self._motion.now() + SETTLE_ROWS * self._motion.row_s)
            self._motion.check()
        finally:
            self._motion.end()

    def _measured(self) -> Array:
        """Return where the arm is as a wire row (D,): within its limits, give or take one step."""
        limits = self._pipeline.limits
        row = self._pipeline.measured_row(self._robot.vitals().positions)
        if row is None:
            raise EnvError('absent', 'not all joints of the contract have a position')
        inside = np.clip(row, limits.low, limits.high)
        outside = np.flatnonzero((np.abs(row - inside) > limits.largest_step) & limits.stepped)
        if len(outside):
            column = int(outside[0])
            raise EnvError(
                'absent',
                f'{limits.joints[column]} is at {row[column]:.4g}, outside of its limits '
                f'{limits.low[column]:.4g} to {limits.high[column]:.4g}: move the arm by hand, or correct '
                'the contract',
            )
        return inside

    def _stop(self) -> None:
        """Come to rest and stay ready, where nothing worse has happened."""
        if self._motion.trip is None:
            self._motion.rest()
            self._seen = self._motion.observe()

    def _check_allowed(self) -> None:
        forbidden = self._operator.forbids()
        if forbidden is not None:
            raise refused(*forbidden)
