# SPDX-License-Identifier: Apache-2.0
"""What goes into an env and what comes out of it, as plain frozen data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from openeta_ros.control import Execution, JointPlan
from openeta_ros.embodiment import Embodiment
from openeta_ros.envs.backend import Array, CameraPose, Picture
from openeta_ros.envs.errors import EnvError
from openeta_ros.observation import Observation


@dataclass(frozen=True)
class EnvSpec:
    """Which env to make.

    `backend` is a name of `registry.names()`, `task` one of the backend's tasks. `max_steps` rows end an
    episode (None: the task's own number). `options` are the backend's own; unknown ones are refused.

    Raises:
        EnvError: kind 'option': `max_steps` is no number of rows.
    """

    backend: str
    task: str
    embodiment: Embodiment
    max_steps: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = self.max_steps
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
            raise EnvError('option', f'max_steps is {rows!r}; it is an integer from 1 on')


@dataclass(frozen=True)
class StepResult:
    """What one executed row led to.

    `observation` is the one after the row, also when the row ended the episode. `reward` is 1.0 in the row
    that reached success, else 0.0. `terminated` means success, `truncated` that `max_steps` rows are used up.
    `info` holds `success` (bool), `step` (1-based row of the episode), `clamped` (names of what the
    contract's `on_limit: clamp` changed in this row; see `JointPlan`), `events` (sentences on what happened
    to a real arm in it, such as a chunk that came too late), `executed` ((D,) `qpos` as it was commanded,
    after inverse kinematics and clamping; () when the arm stood still).
    """

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]

    @property
    def done(self) -> bool:
        """Whether the episode ended with this row."""
        return self.terminated or self.truncated

    def to_dict(self) -> dict[str, Any]:
        """Return the five values by name: arrays as they are, everything else in types that JSON has."""
        return {
            'observation': dict(self.observation),
            'reward': self.reward,
            'terminated': self.terminated,
            'truncated': self.truncated,
            'info': {key: list(it) if isinstance(it, tuple) else it for key, it in self.info.items()},
        }


@dataclass(frozen=True)
class Sensors:
    """What the robot's streams say at one moment, before it becomes an observation.

    `stamp_ns` is simulated (or ROS) time and never goes back, also not across resets. `pictures` are
    (H, W, 3) uint8 RGB by camera; `positions` and `velocities` are by joint name, in the joint's own unit.
    `observation` is what they are where whoever received them has made it already.
    """

    stamp_ns: int
    pictures: Mapping[str, Picture]
    positions: Mapping[str, float]
    velocities: Mapping[str, float]
    observation: Observation | None = None


class AnyWorld(Protocol):
    """What `EnvFacade` drives: a simulated scene, an arm, a recorded episode. It is one of the two below."""

    instruction: str
    """The task in one sentence, as a policy may read it."""

    max_steps: int
    """Rows of an episode when the spec names none."""

    seed_honoured: bool
    """Whether equal seeds give equal scenes."""

    deterministic: bool
    """Whether equal rows from equal seeds give bit-equal results."""

    version: str
    """The simulator or robot and its version."""

    camera_poses: Mapping[str, CameraPose]
    """Where cameras are, by name; none where that is not known."""

    def reset(self, seed: int) -> Sensors:
        """Begin an episode at the contract's home pose, everything at rest."""

    def expert(self) -> Array:
        """Return (H, D) float64 `qpos` rows solving the task from the scene as `reset` left it.

        Raises:
            EnvError: kind 'no_expert'.
        """

    def close(self) -> None:
        """Free everything; called once."""


@dataclass(frozen=True)
class LiveRow:
    """What one row of a `LiveWorld` led to.

    `verdict` is whether the task is solved (True) or lost for good (False); None: not yet known. `executed`
    (D,) is the wire row as it was commanded; None: the arm stood still.
    """

    sensors: Sensors
    verdict: bool | None
    clamped: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    executed: Array | None = None


class World(AnyWorld, Protocol):
    """A world that stands still between rows.

    It executes rows that were already checked, one at a time, and knows when its task is done.
    """

    def execute(self, plan: JointPlan, row: int) -> tuple[Sensors, bool]:
        """Carry out row `row` of the plan; return the sensors after it and whether the task is solved."""


@runtime_checkable
class LiveWorld(AnyWorld, Protocol):
    """A world whose time goes on by itself: it schedules whole chunks, and its rows pass in real time."""

    def run(
        self, actions: npt.ArrayLike, action_type: str, execution: Execution, budget: int
    ) -> Iterator[LiveRow]:
        """Take a chunk and yield each row as it has passed, at most `budget` of them, and at least one.

        Asynchronous, it ends as soon as the next chunk should be asked for, while what is left of this one
        goes on; rows that pass until the next call are yielded by that one. Left early, the world stops.

        Raises:
            ActionError: the chunk is refused; nothing of it moves.
            EnvError: kinds of `HOLDS`: motion ended, and why.
        """

    def verdict(self) -> bool:
        """Return whether the task is solved after the last row of an episode's budget; a person is asked
        where only a person knows."""
