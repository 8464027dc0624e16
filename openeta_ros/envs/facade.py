# SPDX-License-Identifier: Apache-2.0
"""The one way to use an env, whatever is behind it.

Invariants: every method that returns what was seen returns an `Observation`; a chunk gives one result per
row that ran, and nothing runs after the row that ended the episode; no row moves before all rows of its chunk
were checked; the observation of the last row is that of the last row, never of the next episode.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Generator, Mapping
from copy import copy
from dataclasses import asdict, dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from openeta_ros.control import ActionError, ActionPipeline, Execution
from openeta_ros.control.rows import decode_rows, labels
from openeta_ros.embodiment import Kinematics
from openeta_ros.envs import registry
from openeta_ros.envs.backend import Array, CameraPose
from openeta_ros.envs.errors import EnvError
from openeta_ros.envs.spec import EnvSpec, LiveRow, LiveWorld, Sensors, StepResult, World
from openeta_ros.observation import Observation, assemble
from openeta_ros.observation.continuity import Continuity

ActionType = Literal['qpos', 'ee']


# What of a facade changes as its env moves.
_STATE = ('_done', '_step', '_sensors', '_observation', '_commanded', '_commanded_before')


@dataclass(frozen=True)
class Snapshot:
    """Where an env was: what its world keeps, and the facade's own."""

    world: Any
    own: Mapping[str, Any]


class EnvFacade:
    """One env, one robot, one episode at a time.

    Use it as a context manager, from the thread that made it (drawing contexts belong to a thread). Rows are
    (A,) and chunks (H, A), of `action_type` 'qpos' or 'ee' as the contract lays them out, absolute targets
    in chronological order.
    """

    def __init__(self, spec: EnvSpec, kinematics: Kinematics, world: World | LiveWorld) -> None:
        self.spec = spec
        self._kinematics = kinematics
        self._world = world
        self._pipeline = ActionPipeline(spec.embodiment, kinematics)
        self._continuity = Continuity(spec.embodiment, kinematics)
        self._max_steps = spec.max_steps if spec.max_steps is not None else world.max_steps
        self._thread = threading.get_ident()
        self._closed = False
        self._done = False
        self._step = 0
        self._sensors: Sensors | None = None
        self._observation: Observation | None = None
        self._commanded: Array = np.empty(0)
        self._commanded_before: Array | None = None

    @classmethod
    def from_spec(cls, spec: EnvSpec) -> EnvFacade:
        """Make the env that the spec names.

        Raises:
            EnvError: kinds 'backend', 'missing', 'task', 'option', 'embodiment', 'model', 'graphics'.
            EmbodimentError, KinematicsError: there is no robot description, or it does not fit the contract.
        """
        kinematics = Kinematics(spec.embodiment)
        return cls(spec, kinematics, registry.make(spec, kinematics))

    def reset(self, seed: int) -> Observation:
        """Begin an episode: the scene of that seed, the robot at its home pose and at rest.

        Raises:
            EnvError: kind 'seed' unless it is an integer from 0 on.
        """
        self._check_usable()
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise EnvError('seed', f'a seed is an integer from 0 on, not {seed!r}')
        sensors = self._world.reset(int(seed))
        self._continuity.restart()  # the graph's bridge, too, begins with the scene
        observation = self._see(sensors)
        self._commanded, self._commanded_before = observation['qpos'], None
        self._step = 0
        self._done = False
        return observation

    def step(self, action: Any, action_type: ActionType = 'qpos') -> StepResult:
        """Execute one row (A,).

        Raises:
            ActionError: the row is refused; nothing moved.
            EnvError: kinds 'not_reset', 'done', 'closed', 'thread', 'physics'.
        """
        return self.chunk_step([action], action_type)[0]

    def chunk_step(
        self,
        actions: ArrayLike,
        action_type: ActionType = 'qpos',
        on_row: Callable[[StepResult, Sensors], None] | None = None,
        execution: Execution | None = None,
    ) -> list[StepResult]:
        """Execute the rows (H, A) until they end or the episode does; return one result per executed row.

        Args:
            on_row: called after each row with its result and the sensors that it was made from: for those who
                publish or record while the chunk runs.
            execution: how much of the chunk is executed (None: all). Asynchronously, which takes a real arm,
                this returns when the next chunk should be asked for, and what is left of this one goes on
                meanwhile; rows that pass until the next call are among its results.

        Raises:
            ActionError: a row is refused; none of them moved.
            EnvError: as `step`; 'option': asynchronous, and the env waits for its policy; of a real arm, that
                motion ended (`HOLDS`).
        """
        self._check_running()
        results: list[StepResult] = []
        rows = self._rows(actions, action_type, execution or Execution())
        try:
            while True:
                self._done = True  # until the row is through: an error in it leaves no episode to go on with
                try:
                    row = next(rows, None)
                except ActionError:
                    self._done = False  # nothing of it moved
                    raise
                if row is None:
                    self._done = False
                    break
                self._step += 1
                truncated = self._step >= self._max_steps
                success = bool(row.verdict)
                if truncated and row.verdict is None and isinstance(self._world, LiveWorld):
                    success = self._world.verdict()
                info = {
                    'success': success,
                    'step': self._step,
                    'clamped': row.clamped,
                    'events': row.events,
                    'executed': () if row.executed is None else tuple(map(float, row.executed)),
                }
                results.append(
                    StepResult(
                        observation=self._see(row.sensors),
                        reward=float(success),
                        terminated=success,
                        truncated=truncated or row.verdict is False,
                        info=info,
                    )
                )
                self._done = results[-1].done
                if on_row is not None:
                    on_row(results[-1], row.sensors)
                if self._done:
                    break
        finally:
            rows.close()
        return results

    def observe(self) -> Observation:
        """Return the newest observation again, without moving anything.

        Raises:
            EnvError: kinds 'not_reset', 'closed', 'thread'.
        """
        self._check_usable()
        if self._observation is None:
            raise EnvError('not_reset', 'nothing was seen yet: call reset(seed) first')
        return self._observation

    @property
    def sensors(self) -> Sensors:
        """What `observe` was assembled from, for those who publish the robot's own streams.

        Raises:
            EnvError: as `observe`.
        """
        self.observe()
        assert self._sensors is not None
        return self._sensors

    @property
    def commanded(self) -> tuple[Array, Array] | None:
        """The wire rows (D,) commanded last and before that; None where only the world knows them (an arm),
        and before the first reset."""
        if isinstance(self._world, LiveWorld) or self._observation is None:
            return None
        before = self._commanded if self._commanded_before is None else self._commanded_before
        return self._commanded, before

    @property
    def progress(self) -> tuple[int, bool]:
        """How many rows of the episode were executed, and whether it has ended."""
        return self._step, self._done

    @property
    def camera_poses(self) -> Mapping[str, CameraPose]:
        """Where cameras are in the world (the robot's base is its origin); none where that is not known."""
        return self._world.camera_poses

    def expert(self) -> Array:
        """Return (H, D) float64 `qpos` rows that solve the task from the scene as it is right after `reset`.

        Raises:
            EnvError: kind 'no_expert' when there is none, or rows were executed since the reset.
        """
        self._check_running()
        if self._step:
            raise EnvError(
                'no_expert',
                f'the expert plans from a fresh scene, {self._step} rows were executed: '
                'call reset(seed) first',
            )
        return self._world.expert()

    def snapshot(self) -> Snapshot | None:
        """Return what `restore` needs to go on from here, bit for bit; None where the env cannot go back."""
        self._check_usable()
        take = getattr(self._world, 'snapshot', None)
        world = take() if take is not None else None
        if world is None:
            return None
        own = {name: getattr(self, name) for name in _STATE}
        return Snapshot(world, {**own, '_continuity': copy(self._continuity)})

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot of this env. Stamps do not: they never go back."""
        self._check_usable()
        cast(Any, self._world).restore(snapshot.world)
        for name, value in snapshot.own.items():
            setattr(self, name, value)
        self._continuity = copy(self._continuity)  # the snapshot may be gone back to again

    def descriptor(self) -> dict[str, Any]:
        """Return what this env is, in types that JSON has; a camera's size (H, W) is None when not fixed.

        `arm` is how a physical arm is driven: `speed`, `dry_run`, `servo_hz`, `enabled_at_start` (whether
        nobody had to enable it); None of all else.
        """
        embodiment = self.spec.embodiment
        return {
            'backend': self.spec.backend,
            'task': self.spec.task,
            'instruction': self._world.instruction,
            'embodiment': embodiment.name,
            'action_sizes': {kind: embodiment.action_size(kind) for kind in ('qpos', 'ee')},
            'rate_hz': float(embodiment.rate_hz),
            'cameras': {
                name: list(camera.size) if camera.size else None
                for name, camera in embodiment.cameras.items()
            },
            'camera_poses': {name: _told(pose) for name, pose in self.camera_poses.items()},
            'max_steps': self._max_steps,
            'real_time': isinstance(self._world, LiveWorld),
            'arm': getattr(self._world, 'driven', None),
            'seed_honoured': self._world.seed_honoured,
            'deterministic': self._world.deterministic,
            'versions': {
                'backend': self._world.version,
                'numpy': version('numpy'),
                'python': platform.python_version(),
            },
        }

    def conditions(self) -> dict[str, int]:
        """Return what was wrong with its streams in this episode: nothing, it has none."""
        return {}

    def close(self) -> None:
        """Free the simulator. Every further call but `close` and `descriptor` raises EnvError 'closed'."""
        if not self._closed:
            self._closed = True
            self._sensors = self._observation = None
            self._world.close()

    def __enter__(self) -> EnvFacade:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _rows(
        self, actions: ArrayLike, action_type: ActionType, execution: Execution
    ) -> Generator[LiveRow, None, None]:
        """Yield each row of a chunk as it has been executed."""
        world, embodiment = self._world, self.spec.embodiment
        if isinstance(world, LiveWorld):
            yield from world.run(actions, action_type, execution, self._max_steps - self._step)
            return
        if execution.asynchronous:
            raise EnvError(
                'option',
                f'env {self.spec.backend!r} stands still while a policy thinks, so that nothing can be '
                'executed meanwhile: asynchronous execution is for real arms',
            )
        rows = decode_rows(actions, labels(embodiment, action_type), action_type)[: execution.horizon]
        plan = self._pipeline.plan(rows, action_type, self._commanded, self._commanded_before)
        for index in range(len(plan)):
            sensors, success = world.execute(plan, index)
            self._commanded, self._commanded_before = plan.qpos[index], self._commanded
            yield LiveRow(sensors, success or None, plan.clamped[index], executed=plan.qpos[index])

    def _see(self, sensors: Sensors) -> Observation:
        self._sensors = sensors
        self._observation = sensors.observation or assemble(
            self.spec.embodiment,
            self._kinematics,
            pictures=sensors.pictures,
            positions=sensors.positions,
            stamp_ns=sensors.stamp_ns,
            continuity=self._continuity,
        )
        return self._observation

    def _check_usable(self) -> None:
        if self._closed:
            raise EnvError('closed', f'this {self.spec.backend} env is closed: make a new one')
        if threading.get_ident() != self._thread:
            raise EnvError(
                'thread',
                f'this {self.spec.backend} env belongs to the thread that made it: call it from there',
            )

    def _check_running(self) -> None:
        self._check_usable()
        if self._observation is None:
            raise EnvError('not_reset', 'there is no episode yet: call reset(seed) first')
        if self._done:
            raise EnvError(
                'done', f'the episode ended after {self._step} rows: call reset(seed) for the next'
            )


def _told(pose: CameraPose) -> dict[str, Any]:
    return {name: list(it) if isinstance(it, tuple) else it for name, it in asdict(pose).items()}
