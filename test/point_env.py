# SPDX-License-Identifier: Apache-2.0
"""The smallest env and policy that the runner can run: the arm's joints go where they are told, at once.

The task: bring the first joint to a goal drawn from the seed, which is drawn into the pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from openeta_ros.control import ActionError, Execution
from openeta_ros.embodiment import Kinematics, load
from openeta_ros.envs import Sensors, StepResult
from openeta_ros.episodes import Demonstration, EvalSettings
from openeta_ros.observation import Observation, assemble

PERIOD_NS = 50_000_000
MAX_STEPS = 12


class PointEnv:
    """`before_row(number)` is called before each row of all episodes, from 0: for what may go wrong there."""

    def __init__(
        self, *, expert_offset_rad: float = 0.0, before_row: Callable[[int], None] | None = None
    ) -> None:
        self.embodiment = load('light_arm')
        self._kinematics = Kinematics(self.embodiment)
        self._expert_offset_rad = expert_offset_rad
        self._before_row = before_row or (lambda number: None)
        self._rows_of_all = 0
        self._stamp_ns = 0
        self.clamped: tuple[str, ...] = ()

    def reset(self, seed: int) -> Observation:
        self._goal_rad = 0.2 + 0.2 * float(np.random.default_rng(seed).random())
        self._qpos = self.embodiment.home_qpos
        self._step = 0
        return self._observe()

    def chunk_step(
        self,
        actions: np.ndarray,
        action_type: str,
        on_row: Any = None,
        execution: Execution | None = None,
    ) -> list[StepResult]:
        if not np.isfinite(actions).all():
            row, joint = np.argwhere(~np.isfinite(actions))[0]
            name = self.embodiment.wire_joints[joint]
            raise ActionError('not_finite', f'row {row}, joint {name}: not finite', row=int(row), joint=name)
        results = []
        for action in actions[: execution.horizon if execution else None]:
            self._rows_of_all += 1
            self._before_row(self._rows_of_all - 1)
            self._qpos = np.asarray(action, dtype=np.float64)
            self._step += 1
            observation = self._observe()
            success = abs(self._qpos[0] - self._goal_rad) < 0.01
            truncated = self._step >= MAX_STEPS
            info = {'success': success, 'step': self._step, 'clamped': self.clamped}
            results.append(StepResult(observation, float(success), success, truncated, info))
            if on_row is not None:
                on_row(results[-1], self.sensors)
            if success or truncated:
                break
        return results

    def expert(self) -> np.ndarray:
        rows = np.repeat(self._qpos[None], 8, axis=0)
        rows[:, 0] = np.linspace(0.0, self._goal_rad + self._expert_offset_rad, 8)
        return rows

    def conditions(self) -> dict[str, int]:
        return {}

    def descriptor(self) -> dict[str, Any]:
        return {
            'backend': 'point',
            'task': 'point',
            'instruction': 'bring the first joint to its goal',
            'embodiment': self.embodiment.name,
            'action_sizes': {'qpos': 7, 'ee': 8},
            'rate_hz': 20.0,
        }

    def _observe(self) -> Observation:
        self._stamp_ns += PERIOD_NS
        picture = np.zeros((240, 320, 3), dtype=np.uint8)
        picture[100:140, int(400 * self._goal_rad) :, 1] = 255
        picture[110:130, : int(400 * abs(self._qpos[0])), 0] = 255
        arm = self.embodiment.arms['arm']
        values = [*self._qpos[:-1], arm.gripper.to_native(self._qpos[-1])]
        positions = dict(zip(self.embodiment.wire_joints, map(float, values), strict=True))
        self.sensors = Sensors(
            stamp_ns=self._stamp_ns,
            pictures={name: picture.copy() for name in self.embodiment.cameras},
            positions=positions,
            velocities=dict.fromkeys(positions, 0.0),
        )
        return assemble(
            self.embodiment,
            self._kinematics,
            pictures=self.sensors.pictures,
            positions=positions,
            stamp_ns=self._stamp_ns,
        )


class ReplayPolicy:
    """Replays the demonstration three rows at a time; `before_act(number)` as above, from 0 per object."""

    action_type = 'qpos'

    def __init__(
        self, before_act: Callable[[int], None] | None = None, *, poison: float | None = None
    ) -> None:
        self._before_act = before_act or (lambda number: None)
        self._poison = poison
        self._acts = 0
        self.seeds: list[int] = []

    def reset(self, seed: int) -> None:
        self.seeds.append(seed)
        self._next = 0

    def set_demonstration(self, demonstration: Demonstration) -> None:
        self._rows = demonstration.arrays['actions']

    def act(self, observation: Observation) -> np.ndarray:
        self._acts += 1
        self._before_act(self._acts - 1)
        rows = np.array(self._rows[self._next : self._next + 3])
        self._next += 3
        if self._poison is not None:
            rows[-1, 0] = self._poison
        return rows if len(rows) else self._rows[-1:]

    def descriptor(self) -> Mapping[str, Any]:
        return {'policy': 'point_env:ReplayPolicy', 'action_type': 'qpos'}


def settings(output: Any, **changes: Any) -> EvalSettings:
    values: dict[str, Any] = {
        'env': 'point',
        'task': 'point',
        'embodiment': 'light_arm',
        'policy': 'localhost:1',
        'output': str(output),
        'episodes': 2,
        'transport': 'local',
    }
    return EvalSettings(**{**values, **changes})
