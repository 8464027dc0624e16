# SPDX-License-Identifier: Apache-2.0
"""A task played in any simulator: the row loop, the clock and the success rule that all backends share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np

from openeta_ros.control import ActionPipeline, JointPlan
from openeta_ros.embodiment import Embodiment, Kinematics
from openeta_ros.envs.backend import Array, Backend, Picture, Scene
from openeta_ros.envs.errors import EnvError
from openeta_ros.envs.expert import expert_rows
from openeta_ros.envs.spec import EnvSpec, Sensors
from openeta_ros.envs.tasks import SceneState, Task, task

# Boxes are placed touching the table; this long they and the servos come to rest before the first picture.
SETTLE_S = 0.25
# Whatever is beyond this (rad or m, and per second) left the robot long ago, and soon is no number at all.
LARGEST = 1e6

BackendFactory = Callable[[Embodiment, tuple[str, ...], Scene, Mapping[str, Any]], Backend]


class SimulatedWorld:
    """The `World` of a simulator: a `Task` in a `Backend`.

    Raises:
        EnvError: the task is unknown, or the embodiment has not exactly one arm with a gripper.
    """

    seed_honoured = True
    deterministic = True

    def __init__(self, spec: EnvSpec, kinematics: Kinematics, make_backend: BackendFactory) -> None:
        self._embodiment = spec.embodiment
        self._kinematics = kinematics
        self._task: Task = task(spec.task)
        self._arm = _only_arm(spec.embodiment)
        home = spec.embodiment.home_qpos
        home_plan = ActionPipeline(spec.embodiment, kinematics).plan(home, 'qpos', home)
        self._joints = home_plan.joints
        self._home = home_plan.targets[0]
        self._period_ns = round(1e9 / spec.embodiment.rate_hz)
        self._stamp_ns = 0
        self._scene = self._task.scene(np.random.default_rng(0))
        self.camera_poses = self._scene.cameras
        self._held_rows = 0
        self._targets = self._home
        self.instruction = self._task.instruction
        self.max_steps = self._task.max_steps
        self._backend = make_backend(spec.embodiment, self._joints, self._scene, spec.options)
        self.version = self._backend.version
        self._steps_per_row = round(1.0 / (spec.embodiment.rate_hz * self._backend.physics_dt_s))

    def reset(self, seed: int) -> Sensors:
        self._scene = self._task.scene(np.random.default_rng(seed))
        self._backend.reset(self._scene, self._home)
        self._targets = self._home
        self._held_rows = 0
        for _ in range(round(SETTLE_S / self._backend.physics_dt_s)):
            self._backend.step_physics()
        return self._sense()

    def execute(self, plan: JointPlan, row: int) -> tuple[Sensors, bool]:
        start, end = self._targets, np.asarray(plan.targets[row], dtype=np.float64)
        for step in range(1, self._steps_per_row + 1):
            # The end itself at the last step, so that the next row begins exactly at this row's target.
            weight = step / self._steps_per_row
            self._backend.set_targets(end if weight == 1.0 else start + weight * (end - start))
            self._backend.step_physics()
        self._targets = end
        sensors = self._sense()
        self._held_rows = self._held_rows + 1 if self._task.success(self._state(sensors)) else 0
        return sensors, self._held_rows >= self._task.hold_rows

    def expert(self) -> Array:
        scene = self._scene.with_box_poses(self._backend.object_poses())
        return expert_rows(self._embodiment, self._kinematics, self._arm, self._task.waypoints(scene))

    def snapshot(self) -> tuple[Any, ...] | None:
        """Return what `restore` goes back to; None where the backend cannot (`snapshot` and `restore`)."""
        take = getattr(self._backend, 'snapshot', None)
        return None if take is None else (take(), self._scene, self._targets, self._held_rows)

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Go back to a snapshot. Time does not."""
        kept, self._scene, self._targets, self._held_rows = snapshot
        cast(Any, self._backend).restore(kept)

    def close(self) -> None:
        self._backend.close()

    def _sense(self) -> Sensors:
        self._stamp_ns += self._period_ns
        positions = self._backend.joint_positions()
        velocities = self._backend.joint_velocities()
        self._check_physics(zip(self._joints, np.stack([positions, velocities], axis=1), strict=True))
        return Sensors(
            stamp_ns=self._stamp_ns,
            pictures={name: self._picture(name) for name in self._embodiment.cameras},
            positions=dict(zip(self._joints, positions.tolist(), strict=True)),
            velocities=dict(zip(self._joints, velocities.tolist(), strict=True)),
        )

    def _picture(self, camera: str) -> Picture:
        """Return what a camera mounted as the contract says delivers: its turn makes it upright."""
        quarter_turns = self._embodiment.cameras[camera].rotate // 90
        return np.ascontiguousarray(np.rot90(self._backend.picture(camera), -quarter_turns))

    def _state(self, sensors: Sensors) -> SceneState:
        joints = np.array([sensors.positions[name] for name in self._embodiment.arms[self._arm].joints])
        poses, velocities = self._backend.object_poses(), self._backend.object_velocities()
        self._check_physics((name, np.append(pose, velocities[name])) for name, pose in poses.items())
        return SceneState(
            scene=self._scene,
            tool=self._kinematics.forward(self._arm, joints),
            poses=poses,
            velocities=velocities,
        )

    def _check_physics(self, named: Iterable[tuple[str, Array]]) -> None:
        bad = [name for name, numbers in named if not (np.abs(numbers) < LARGEST).all()]
        if bad:
            raise EnvError(
                'physics',
                f'{self.version} diverged at {", ".join(bad)}: reset, and check the gains '
                f'in the simulation section of {self._embodiment.path}',
            )


def _only_arm(embodiment: Embodiment) -> str:
    arms = [name for name, arm in embodiment.arms.items() if arm.gripper is not None]
    if len(embodiment.arms) != 1 or len(arms) != 1:
        raise EnvError(
            'embodiment',
            f'{embodiment.name}: the simulated tasks need exactly one arm with a '
            f'gripper, this contract has arms {list(embodiment.arms)}',
        )
    return arms[0]
