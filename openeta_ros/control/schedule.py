# SPDX-License-Identifier: Apache-2.0
"""When the rows of chunks are executed, and where the arm is commanded to be at any time between.

No ROS and no clock in here: every time is passed in, in monotonic seconds. Not for several threads at once.

Rows are control points of a spline (`spline`), one each row time, so that what leaves is smooth and inside
the limits at any servo rate. Behind the last row always stands the way to rest: a chunk that does not come
in time needs no reaction, the arm slows down within its limits and holds. Two points ahead of the present
are settled; a new chunk takes over behind them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from openeta_ros.control.errors import ActionError
from openeta_ros.control.path import Path
from openeta_ros.control.pipeline import ActionPipeline, clamped_names
from openeta_ros.control.rows import decode_rows, labels
from openeta_ros.control.spline import Array, Brake

# Points of a path that are nearer to each other in time say the same.
SHORTEST_S = 1e-3
# The first point of a path comes no sooner, and where the arm is behind, no later than so many rows: to catch
# up with 10 ms at 1 rad/s takes an acceleration of 24 rad/s^2 in 50 ms, of 96 in 25.
SOONEST_S, LATEST_ROWS = 0.05, 3
# Who follows may be so much behind what is planned: a stall that a watchdog would not notice.
BEHIND_S = 1.0
# Control points from the present on that a new chunk cannot change.
SETTLED = 2
# Rows over which a chunk fades in where it replaces another one that is still being executed.
FADE_ROWS = 4
# The first answer of a policy takes as long as its loading and compiling; it says nothing of those to come.
WARM_UP = 1
LATENCIES, LATENCY_PERCENTILE = 20, 90


@dataclass(frozen=True)
class Execution:
    """How much of a chunk is executed before the next one: its first `horizon` rows, or all of them (None).

    `asynchronous`: the next chunk is asked for while rows are executed, early enough to arrive when
    `horizon` of them were. Then what is left of the old chunk is dropped, and what of the new one is past
    already is skipped.
    """

    horizon: int | None = None
    asynchronous: bool = False


class Seen(NamedTuple):
    """How far the schedule was when an observation was taken; goes with the chunk that answers to it."""

    time_s: float
    rows: float
    holds: int


@dataclass(frozen=True)
class Accepted:
    """What becomes of a chunk.

    `rows` (H', D) are the wire rows that will be executed, `due_s` when each is reached, `clamped` what was
    clamped in each. `skipped` counts the rows at its beginning that are past. `dropped` says why nothing is
    executed: 'late' (all rows are past) or 'held' (the arm was held since the observation).
    """

    rows: Array
    due_s: tuple[float, ...]
    clamped: tuple[tuple[str, ...], ...]
    skipped: int = 0
    dropped: str = ''


@dataclass(frozen=True)
class Points:
    """A path as joint_trajectory_controller takes it, with cubics between the points.

    `times_s` (K,) from now, strictly rising and above zero; `positions` and `velocities` (K, J), of which the
    last is zero.
    """

    times_s: Array
    positions: Array
    velocities: Array


class ChunkSchedule:
    """The rows to execute, in time.

    `joints` are all commanded joints, `mimics` those that may follow by themselves, `row_s` a row time.

    Args:
        pipeline: of the robot; its contract's `rate_hz` is the rate of rows.
        execution: how much of each chunk is executed.
        speed: 1.0 is the contract's rate; below it rows take longer, and velocities are as much smaller.
    """

    def __init__(
        self, pipeline: ActionPipeline, execution: Execution | None = None, speed: float = 1.0
    ) -> None:
        if not 0 < speed <= 1:
            raise ValueError(f'the speed is {speed}; it must be above 0 and at most 1')
        self.execution = execution or Execution()
        self.joints, self.mimics = pipeline.native.joints, pipeline.native.mimics
        self._pipeline, self._limits = pipeline, pipeline.limits
        self.row_s = 1 / (pipeline.embodiment.rate_hz * speed)
        self._deceleration = self._limits.largest_change * pipeline.embodiment.rate_hz**2
        self._strongest = np.abs(pipeline.native.rates(self._deceleration))
        self._fastest = np.abs(pipeline.native.rates(self._limits.largest_step / self.row_s))
        self._stepped = pipeline.native.rates(self._limits.stepped.astype(np.float64)) != 0
        ends = np.sort(
            [pipeline.native.targets(self._limits.low), pipeline.native.targets(self._limits.high)], 0
        )
        self._low, self._high = ends
        self._holds = 0
        self._answers = 0
        self._latencies_s: tuple[float, ...] = ()
        self._waiting = False
        self._brake: Brake | None = None
        self._base_s = 0.0

    def start(self, qpos: npt.ArrayLike, time_s: float) -> None:
        """Begin at rest where the arm was measured to be, a wire row (D,); everything before is forgotten."""
        self._holds += 1
        self._answers = 0
        self._latencies_s = ()
        self._rest(self._pipeline.wire_row(qpos, 'qpos'), 0, time_s)

    def observe(self, time_s: float) -> Seen:
        """Note that a policy is asked with an observation of this time."""
        self._waiting = True
        return Seen(time_s, self._index(time_s), self._holds)

    def wants_observation(self, time_s: float) -> bool:
        """Whether the next chunk should be asked for now; not while one is awaited."""
        if self._waiting:
            return False
        if self.resting(time_s) or not self.execution.asynchronous:
            return self._index(time_s) >= self._last
        rows = min(self.execution.horizon or self._taken, self._taken)
        ahead = math.ceil(self.latency_s() / self.row_s) + SETTLED
        return self._index(time_s) >= self._begin + rows - 1 - ahead

    def latency_s(self) -> float:
        """Return how long answers take: a high percentile of the newest, not the warm-up; 0 when unknown."""
        return float(np.percentile(self._latencies_s, LATENCY_PERCENTILE)) if self._latencies_s else 0.0

    def add(self, actions: npt.ArrayLike, action_type: str, seen: Seen, time_s: float) -> Accepted:
        """Take a chunk of absolute actions, (A,) or (H, A), and say what becomes of it.

        Args:
            actions: as `ActionPipeline.plan`.
            action_type: 'qpos' or 'ee'.
            seen: what `observe` returned for the observation that the chunk answers to.
            time_s: now.

        Raises:
            ActionError: the chunk is refused; what was scheduled before goes on, and ends in rest.
        """
        self._waiting = False
        self._answers += 1
        if self._answers > WARM_UP:
            self._latencies_s = (*self._latencies_s[1 - LATENCIES :], time_s - seen.time_s)
        if seen.holds != self._holds:
            return self._nothing('held')
        begin = self._next(time_s)
        now, before = self._control[begin - 1 - self._first], self._control[begin - 2 - self._first]
        if not self.execution.asynchronous and self.execution.horizon:
            actions = decode_rows(actions, labels(self._pipeline.embodiment, action_type), action_type)
            actions = actions[: self.execution.horizon]
        asked, moved = self._pipeline.joint_rows(actions, action_type, now)
        offset = self._offset(seen, begin, time_s)
        if offset > len(asked) - 1:
            return self._nothing('late', len(asked))
        rows, which = self._taken_rows(asked, offset)
        due = self._control[begin - self._first :][:FADE_ROWS] if self._fades(begin, time_s) else rows[:0]
        rows, changed = self._limits.blend(rows, due, now, before)
        tail = self._limits.stop(rows[-1], rows[-2] if len(rows) > 1 else now)
        self._pipeline.workspace.check(rows)
        try:
            self._pipeline.workspace.check(tail)
        except ActionError as error:
            raise ActionError('workspace', f'slowing down after the last row, at its {error}') from error
        self._put(rows, tail, begin, time_s)
        masks = {name: mask[which] for name, mask in moved.items()}
        if self._pipeline.embodiment.safety.on_limit == 'clamp':
            masks |= dict(zip(self._limits.joints, changed.T, strict=True))
        due_s = tuple(self._time(begin + row) for row in range(len(rows)))
        return Accepted(rows, due_s, clamped_names(masks, len(rows)), math.floor(offset))

    def hold(self, time_s: float) -> None:
        """Stop at once: slow down within the limits of acceleration, then stand.

        Chunks on their way, which answer to observations from before, will be dropped. Where the contract
        gives no acceleration the joints stand still at once.
        """
        self._holds += 1
        self._waiting = False
        if not self.resting(time_s):
            position, velocity = self._evaluate(time_s)
            brake = Brake(time_s, position, velocity, self._deceleration)
            end_s = float(brake.stops_s.max())
            self._rest(brake.evaluate(end_s)[0], math.ceil(self._index(time_s)), end_s)
            self._brake = brake

    def resting(self, time_s: float) -> bool:
        """Whether the arm is commanded to stand still, until a chunk is added."""
        return self._through(time_s) and time_s >= self._base_s

    def qpos_at(self, time_s: float) -> Array:
        """Return the wire row (D,) that is commanded at a time, the present or later."""
        return self._evaluate(time_s)[0]

    def at(self, time_s: float | Array) -> tuple[Array, Array]:
        """Return positions and velocities (J,) of all commanded joints at a time, the present or later.

        Or those (K, J) at times (K,), none of which is in the slowing down after a hold.
        """
        position, velocity = self._evaluate(time_s)
        native = self._pipeline.native
        return native.targets(position), native.rates(velocity)

    def path(self) -> Path:
        """Return where the arm is commanded to be from now on, as far as that is known."""
        return Path(
            self._pipeline.native,
            self._control,
            self._first,
            self._base,
            self._base_s,
            self._end,
            self.row_s,
            self._limits.largest_step / self.row_s,
            self._deceleration,
            self._brake,
        )

    def same_path(self, other: ChunkSchedule) -> bool:
        """Whether the arm is commanded the same by a copy of this one that was changed since."""
        return self._control is other._control and self._brake is other._brake

    def set_off(self, time_s: float) -> None:
        """Have an arm that rests set off at a time, if it should have done so before."""
        self._base_s = max(self._base_s, time_s)

    def points(self, time_s: float, away: Array | float = 0.0) -> Points:
        """Return the whole path from now until rest, to be sent at once; one point when the arm rests.

        Who measures the arm elsewhere, `away` (J,), catches up until the first point: that comes later then.
        """
        ahead = [self._time(index) for index in range(math.floor(self._index(time_s)), self._end + 1)]
        braking = self._brake is not None and time_s < self._base_s
        soonest_s = max(self.row_s / 2, SOONEST_S)
        catch_up_s = float(np.sqrt(6 * np.abs(away) / self._strongest).max())
        soonest_s = max(soonest_s, min(catch_up_s, LATEST_ROWS * self.row_s))
        knots = np.unique([*ahead, *(self._brake.stops_s if self._brake and braking else ())])
        rests_s = max(knots[-1], time_s + max(self.row_s, SOONEST_S))
        knots = knots[np.append(np.diff(knots) > SHORTEST_S, True) & (knots > time_s + soonest_s)]
        knots = knots if len(knots) else np.array([rests_s])
        slowing, going = np.split(knots, [np.searchsorted(knots, self._base_s)])
        states = np.stack([*map(self.at, slowing), *zip(*self.at(going), strict=True)])
        positions, velocities = states.swapaxes(0, 1)
        velocities[-1] = 0.0
        return Points(knots - time_s, positions, velocities)

    def stop_points(self, time_s: float, away: Array, *, there: bool) -> Points:
        """Return the one point at which an arm comes to rest whose controller measures it `away` (J,).

        It comes to rest straight on from where it is commanded to be, or (`there`) where it is measured, as
        soon as it can wherever of the two it is.
        """
        position, velocity = self.at(time_s)
        speed, distance = np.abs(velocity), np.abs(away)
        # Of cubics from velocity v to rest: v / t all the time over v t / 2, +- 6 d / t^2 for d more or less.
        share = 4 if there else 1
        times_s = share * speed + np.sqrt((share * speed) ** 2 + 24 * self._strongest * distance)
        times_s = np.maximum(times_s / (2 * self._strongest), 1.5 * distance / self._fastest)
        rest_s = max(float(times_s.max()), SOONEST_S)
        # An arm that takes longer must not go on for as much longer.
        onward_s = min(rest_s, 2 * float((speed / self._strongest).max()))
        end = position + (away if there else np.where(self._stepped, velocity, 0.0) * onward_s / 2)
        end = np.clip(end, np.minimum(self._low, position), np.maximum(self._high, position))
        return Points(np.array([rest_s]), end[None], np.zeros((1, len(end))))

    # Indices count row times from `start` on. The point at `_first` is the first that is kept, the one at
    # `_last` the newest row of a chunk, which the way to rest follows. The arm is at index `_base` from
    # `_base_s` on, and comes to rest at `_end`.

    def _rest(self, qpos: Array, index: int, time_s: float) -> None:
        self._brake = None
        self._waiting = False
        self._control: Array = np.tile(qpos, (4, 1))
        self._first = index - 1
        self._base = self._end = self._last = self._begin = index
        self._taken = 0
        self._base_s = time_s

    def _through(self, time_s: float) -> bool:
        """Whether no rows are left; the arm may still be slowing down after a hold."""
        return self._index(time_s) >= self._end

    def _index(self, time_s: float) -> float:
        return min(max(self._base, self._base + (time_s - self._base_s) / self.row_s), self._end)

    def _time(self, index: int) -> float:
        return self._base_s + (index - self._base) * self.row_s

    def _evaluate(self, time_s: float | Array) -> tuple[Array, Array]:
        return self.path().row_at(time_s)

    def _next(self, time_s: float) -> int:
        """Return the index of the first row of a chunk that comes now."""
        free = math.ceil(self._index(time_s)) + SETTLED
        return free if self.execution.asynchronous else max(free, self._last + 1)

    def _offset(self, seen: Seen, begin: int, time_s: float) -> float:
        """Return how many rows of the chunk are past: those that were executed since its observation.

        While the arm rests nothing passes, however long the policy takes.
        """
        if not self.execution.asynchronous:
            return 0.0
        return self._end - seen.rows if self._through(time_s) else begin - 1 - seen.rows

    def _taken_rows(self, asked: Array, offset: float) -> tuple[Array, npt.NDArray[np.int_]]:
        """Return the rows from an offset on, which may lie between two rows, and which rows these were."""
        places = np.minimum(np.arange(offset, len(asked)), len(asked) - 1)
        numbers = np.arange(len(asked))
        rows = np.stack([np.interp(places, numbers, column) for column in asked.T], axis=1)
        return rows, np.floor(places).astype(int)

    def _fades(self, begin: int, time_s: float) -> bool:
        return self.execution.asynchronous and not self._through(time_s) and begin <= self._last

    def _put(self, rows: Array, tail: Array, begin: int, time_s: float) -> None:
        """Place rows from an index on, and the way to rest behind them."""
        if self._through(time_s):
            self._base_s = max(time_s, self._base_s)
            self._base = self._end
            if time_s >= self._base_s:
                self._brake = None
        kept = math.floor(self._index(time_s) - BEHIND_S / self.row_s) - 1
        head = self._control[max(kept - self._first, 0) : begin - self._first]
        self._first = max(kept, self._first)
        path = np.concatenate([head, rows, tail])
        self._control = np.concatenate([path, path[-1:], path[-1:]])
        self._begin, self._taken = begin, len(rows)
        self._last = begin + len(rows) - 1
        self._end = self._first + len(self._control) - 2

    def _nothing(self, why: str, skipped: int = 0) -> Accepted:
        return Accepted(np.empty((0, self._control.shape[1])), (), (), skipped, why)
