# SPDX-License-Identifier: Apache-2.0
"""The env side of a snippet's api: calls become checked rows, rows become steps, and what is known is kept.

Every row of a call is planned, and so checked, before any of it goes to the env, which checks it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from openeta_ros.code_policy.meter import Meter
from openeta_ros.code_policy.motion import gripper_rows, line_rows
from openeta_ros.code_policy.values import Array, Step
from openeta_ros.control import ActionError, ActionPipeline, JointPlan
from openeta_ros.embodiment import Embodiment, Kinematics
from openeta_ros.embodiment.arm import POSE_SIZE
from openeta_ros.envs import EnvError, Sensors, StepResult
from openeta_ros.episodes.runner import EpisodeEnv, EpisodeObserver
from openeta_ros.observation import Observation

# Of the largest change of step: the next motion, which keeps to 0.8 of it, may begin from there.
NEARLY_AT_REST = 0.15


@dataclass
class State:
    """Where an episode is.

    `now` and `before` are the wire rows (D,) commanded last and before that; `observation` is None, and they
    are empty, before the first reset.
    """

    observation: Observation | None
    now: Array
    before: Array
    step: int = 0
    done: bool = False


@dataclass(frozen=True)
class Snapshot:
    """Where a mover and its env were; `env` is None where the env cannot keep its state."""

    env: Any
    state: State

    @property
    def env_kept(self) -> bool:
        """Whether the env can go back, too."""
        return self.env is not None


class Mover:
    """Drives one env for the api.

    Attributes:
        observers: are told of every reset and row, as in an episode.
        pretend: check rows, and do as if they had moved: where a dry run has no copy to run on.
        executed: the rows that went to the env in the call under way.
        reward, success: of the episode, or the part of it since the run began.
    """

    def __init__(
        self,
        env: EpisodeEnv,
        embodiment: Embodiment,
        kinematics: Kinematics,
        observation: Observation | None,
        rows_per_call: int | None,
    ) -> None:
        self.env, self.embodiment, self.kinematics = env, embodiment, kinematics
        self.pipeline = ActionPipeline(embodiment, kinematics)
        self.observers: list[EpisodeObserver] = []
        self.pretend = False
        self.executed: list[Array] = []
        self.reward, self.success = 0.0, False
        self._rows_per_call = rows_per_call
        self.state = State(None, np.empty(0), np.empty(0))
        if observation is not None:
            self.state = self._at_rest(observation)

    def observe(self) -> Observation:
        """Return what was seen last."""
        if self.state.observation is None:
            raise EnvError('not_reset', 'nothing was seen yet: call api.reset(seed) first')
        return self.state.observation

    def reset(self, seed: int) -> Observation:
        """Begin an episode."""
        if self.pretend:
            home = np.array(self.embodiment.home_qpos)
            self.state = State(self._pretended(home), home, home)
        else:
            self.state = self._at_rest(self.env.reset(seed))
            for observer in self.observers:
                observer.started(self.env.sensors)
        self.reward, self.success = 0.0, False
        return self.observe()

    def plan(self, name: str, keywords: Mapping[str, Any]) -> JointPlan:
        """Return what a call that moves would do.

        Raises:
            ActionError: it is refused.
            EnvError: there is no episode to move in.
            TypeError: the keywords are not those of the call.
        """
        self.observe()
        if self.state.done:
            raise EnvError('done', f'the episode ended after {self.state.step} rows; only api.reset goes on')
        planned: JointPlan = getattr(self, f'_plan_{name}')(**keywords)
        return planned

    def execute(self, plan: JointPlan, meter: Meter | None) -> list[Step]:
        """Let planned rows run until they end or the episode does; return a step for each.

        Args:
            meter: asked between rows whether to go on; None goes on.
        """
        if self.pretend:
            return self._pretend(plan)
        steps: list[Step] = []

        def on_row(result: StepResult, sensors: Sensors) -> None:
            steps.append(self._took(result, plan, len(steps)))
            for observer in self.observers:
                observer.row(result, sensors)
            if meter is not None:
                meter.check()

        for observer in self.observers:
            observer.chunk(plan.qpos, 'qpos', self.observe().stamp_ns, 0.0)
        size = self._rows_per_call or len(plan)
        for start in range(0, len(plan), size):
            self.env.chunk_step(plan.qpos[start : start + size], 'qpos', on_row)
            if self.state.done:
                break
            if meter is not None:
                meter.check()
        return _last_with_pictures(steps)

    def rest(self) -> Array:
        """Return the rows (K, D) that bring the arm to rest; none where it all but rests already."""
        limits, state = self.pipeline.limits, self.state
        if np.all(np.abs(state.now - state.before) <= NEARLY_AT_REST * limits.largest_change):
            return np.empty((0, len(state.now)))
        return limits.stop(state.now, state.before)

    def snapshot(self) -> Snapshot:
        """Return where things are, for `restore`."""
        take = getattr(self.env, 'snapshot', None)
        return Snapshot(take() if take is not None else None, self.state)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to where things were; the env as well, where its state was kept."""
        if snapshot.env_kept:
            cast(Any, self.env).restore(snapshot.env)
        self.state = snapshot.state

    def _at_rest(self, observation: Observation) -> State:
        """Return the state of an arm that rests where it was seen; no finger is beyond its limits."""
        limits = self.pipeline.limits
        rests = np.clip(observation['qpos'], limits.low, limits.high)
        return State(observation, rests, rests)

    def _took(self, result: StepResult, plan: JointPlan, row: int) -> Step:
        self.executed.append(plan.qpos[row])
        terminated, truncated = bool(result.terminated), bool(result.truncated)
        self.state = State(
            result.observation,
            plan.qpos[row],
            self.state.now,
            int(result.info['step']),
            terminated or truncated,
        )
        self.reward += float(result.reward)
        self.success = bool(result.info['success'])
        # Rows come to the env as they were planned, so that it has nothing left to clamp.
        info = {**result.info, 'clamped': list(plan.clamped[row] or result.info['clamped'])}
        return Step(result.observation, float(result.reward), terminated, truncated, info)

    def _plan_step(self, action: Any, action_type: str = 'qpos') -> JointPlan:
        if np.ndim(action) != 1:
            raise ActionError('shape', f'a step takes one row (A,), not shape {np.shape(action)}')
        return self._plan_chunk_step(action, action_type)

    def _plan_chunk_step(self, actions: Any, action_type: str = 'qpos') -> JointPlan:
        return self.pipeline.plan(actions, action_type, self.state.now, self.state.before)

    def _plan_move_arm(self, pose: Any, arm: str | None = None, speed: float = 1.0) -> JointPlan:
        name = self._arm(arm)
        values = _numbers(pose, 'pose')
        if values.shape == (3,):
            place = self.embodiment.slices('qpos')[name]
            joints = self.state.now[place][: len(self.embodiment.arms[name].joints)]
            values = np.array([*values, *self.kinematics.forward(name, joints)[3:]])
        if values.shape != (POSE_SIZE,) or np.linalg.norm(values[3:]) < 1e-3:
            raise ActionError(
                'shape', f'a pose is x y z, or x y z qw qx qy qz with a quaternion of length 1; not {values}'
            )
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0.01 <= speed <= 1.0:
            raise ActionError('limit', f'speed is {speed!r}; it is between 0.01 and 1')
        # A point outside the workspace is refused with the pipeline's own words, before its line is sought.
        values = values[None].copy()
        self.pipeline.workspace.enter(name, values)
        stop, start = self._stopped()
        rows = line_rows(self.pipeline, self.kinematics, name, values[0], start, float(speed))
        return self._plan_chunk_step(np.vstack([stop, rows]))

    def _plan_open_gripper(self, arm: str | None = None) -> JointPlan:
        return self._plan_gripper(arm, 1.0)

    def _plan_close_gripper(self, arm: str | None = None) -> JointPlan:
        return self._plan_gripper(arm, 0.0)

    def _plan_gripper(self, arm: str | None, openness: float) -> JointPlan:
        name = self._arm(arm)
        if self.embodiment.arms[name].gripper is None:
            raise ActionError('limit', f'the arm {name} has no gripper')
        stop, start = self._stopped()
        return self._plan_chunk_step(np.vstack([stop, gripper_rows(self.pipeline, name, openness, start)]))

    def _stopped(self) -> tuple[Array, Array]:
        """Return the rows that bring the arm to rest, and the row it then rests at."""
        stop = self.rest()
        return stop, stop[-1] if len(stop) else self.state.now

    def _arm(self, arm: str | None) -> str:
        names = list(self.embodiment.arms)
        if arm is None and len(names) == 1:
            return names[0]
        if arm not in names:
            raise ActionError('shape', f'arm is {arm!r}; it is one of {", ".join(names)}')
        return str(arm)

    def _pretend(self, plan: JointPlan) -> list[Step]:
        steps = []
        for qpos, clamped in zip(plan.qpos, plan.clamped, strict=True):
            step = self.state.step + 1
            self.state = State(self._pretended(qpos), qpos, self.state.now, step)
            info = {'success': False, 'step': step, 'clamped': list(clamped), 'pretended': True}
            steps.append(Step(self.observe(), info=info))
        return _last_with_pictures(steps)

    def _pretended(self, qpos: Array) -> Observation:
        """Return the newest observation with the arm elsewhere; its pictures are still the old ones."""
        seen = self.state.observation
        arrays = {} if seen is None else dict(seen)
        numbers: list[float] = []
        for name, place in self.embodiment.slices('qpos').items():
            joints = qpos[place][: len(self.embodiment.arms[name].joints)]
            numbers += [*self.kinematics.forward(name, joints), *qpos[place][len(joints) :]]
        arrays |= {'qpos': qpos.copy(), 'endpose': np.array(numbers)}
        return Observation(arrays, 0 if seen is None else seen.stamp_ns)


def _last_with_pictures(steps: list[Step]) -> list[Step]:
    """Return steps of which only the last has pictures: what was seen on the way is not worth its bytes."""
    on_the_way = [
        Step(
            {name: array for name, array in step.observation.items() if array.ndim == 1},
            step.reward,
            step.terminated,
            step.truncated,
            step.info,
        )
        for step in steps[:-1]
    ]
    return [*on_the_way, *steps[-1:]]


def _numbers(values: Any, name: str) -> Array:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ActionError('dtype', f'{name} is no array of numbers: {error}') from error
    if not np.isfinite(array).all():
        raise ActionError('not_finite', f'{name} is {array.tolist()}; send finite numbers')
    return array
