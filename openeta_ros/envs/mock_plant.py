# SPDX-License-Identifier: Apache-2.0
"""What the controllers of the mock move: drives alone, or drives in MuJoCo with the scene of a task.

One thread steps, another one draws (the one that made the plant): drawing in software takes ten times as long
as a tick of the controllers, and needs a thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import cv2
import numpy as np

from openeta_ros.embodiment import Embodiment, Kinematics
from openeta_ros.envs.backend import Array, CameraPose, Picture, picture_size
from openeta_ros.envs.errors import EnvError
from openeta_ros.envs.expert import expert_rows
from openeta_ros.envs.mock_drives import Drives
from openeta_ros.envs.tasks import SceneState, Task, task

# Boxes of a new scene come to rest in so long.
SETTLE_S = 0.25
# What a plant makes up for at most of a moment in which it was not stepped.
LONGEST_STEP_S = 0.1
# Edges are not smoothed: pictures that come late stop an arm, as a camera's would.
SAMPLES = 0


class Plant(Protocol):
    """The joints of an arm, and what is around it."""

    joints: tuple[str, ...]
    """Names of all joints that move; the order of every (J,) array, in the joints' own units."""

    camera_poses: Mapping[str, CameraPose]
    """Where cameras are, by name; none where that is not known."""

    told: str
    """What it is, in a few words."""

    def step(self, targets: Array, period_s: float) -> None:
        """Go on by a period, towards targets (J,); NaN: as before."""

    def positions(self) -> Array:
        """Return the measured positions (J,)."""

    def velocities(self) -> Array:
        """Return the measured velocities (J,)."""

    def reset(self, seed: int) -> None:
        """Put the scene of a seed around the arm, which stays where it is."""

    def success(self) -> bool:
        """Whether the task is done."""

    def expert(self) -> Callable[[], Array]:
        """Return who plans (H, D) rows that do it, from the home pose and the scene as it is now.

        It takes its time, in which the plant may be stepped. It raises EnvError, kind 'no_expert'.
        """

    def look(self) -> Any:
        """Return what there is to see now."""

    def picture(self, camera: str, look: Any) -> Picture:
        """Draw it, upright, at the camera's `picture_size`."""

    def close(self) -> None:
        """Free everything."""


class BarePlant:
    """Drives and nothing else. Its pictures are test patterns that say so."""

    camera_poses: Mapping[str, CameraPose] = {}
    told = 'joints without a scene, synthetic pictures (the contract has no simulation section)'

    def __init__(self, embodiment: Embodiment) -> None:
        self._drives = Drives(embodiment)
        self._cameras = embodiment.cameras
        self.joints = self._drives.joints

    def step(self, targets: Array, period_s: float) -> None:
        self._drives.step(targets, period_s)

    def positions(self) -> Array:
        return self._drives.positions.copy()

    def velocities(self) -> Array:
        return self._drives.velocities.copy()

    def reset(self, seed: int) -> None:
        pass

    def success(self) -> bool:
        return False

    def expert(self) -> Callable[[], Array]:
        raise EnvError('no_expert', 'the mock has no scene of a task: its contract has no simulation section')

    def look(self) -> Array:
        return self.positions()

    def picture(self, camera: str, look: Array) -> Picture:
        height, width = picture_size(self._cameras[camera])
        picture = np.full((height, width, 3), 48, np.uint8)
        # A bar per joint, so that what moves is seen to move.
        bar = max(1, width // (2 * len(look) + 1))
        for index, value in enumerate(look):
            left = bar * (2 * index + 1)
            length = int(height / 2 * (0.5 + 0.45 * np.sin(value)))
            picture[height - length :, left : left + bar] = (90, 150, 210)
        size = width / 640
        for line, text in enumerate(('SYNTHETIC PICTURE', camera)):
            place = (int(16 * size), int((40 + 40 * line) * size))
            cv2.putText(picture, text, place, cv2.FONT_HERSHEY_SIMPLEX, size, (255, 255, 255))
        return picture

    def close(self) -> None:
        pass


class ScenePlant:
    """The arm and the scene of a task in MuJoCo. Made, drawn and closed on one thread; stepped on any.

    Raises:
        EnvError: as `MujocoBackend`; 'task': there is none of that name.
    """

    def __init__(self, embodiment: Embodiment, kinematics: Kinematics, task_name: str, seed: int) -> None:
        from openeta_ros.envs.mujoco import MujocoBackend

        self._embodiment, self._kinematics = embodiment, kinematics
        self._task: Task = task(task_name)
        self._arm = next(iter(embodiment.arms))
        self._drives = Drives(embodiment)
        self.joints = self._drives.joints
        self._scene = self._task.scene(np.random.default_rng(seed))
        self.camera_poses = self._scene.cameras
        self._backend = MujocoBackend(embodiment, self.joints, self._scene, {'samples': SAMPLES})
        self.told = f'task {task_name} in {self._backend.version}'
        gains = embodiment.simulation.gains
        # A servo lags kv / kp seconds behind a moving target, unless it is given one that is as much ahead.
        self._lead_s = np.array([gains[name].kv / gains[name].kp for name in self.joints])
        self._left_s = 0.0  # of time that was not stepped through
        self._row_s, self._held_s = 1 / embodiment.rate_hz, 0.0
        self._place(self._drives.home)

    def step(self, targets: Array, period_s: float) -> None:
        self._drives.step(targets, period_s)
        self._backend.set_targets(self._drives.positions + self._lead_s * self._drives.velocities)
        self._left_s = min(self._left_s + period_s, LONGEST_STEP_S)
        while self._left_s >= self._backend.physics_dt_s:
            self._backend.step_physics()
            self._left_s -= self._backend.physics_dt_s
        self._held_s = self._held_s + period_s if self._task.success(self._state()) else 0.0

    def positions(self) -> Array:
        return self._backend.joint_positions()

    def velocities(self) -> Array:
        return self._backend.joint_velocities()

    def reset(self, seed: int) -> None:
        self._scene = self._task.scene(np.random.default_rng(seed))
        self._place(self.positions())

    def success(self) -> bool:
        # As in the simulators, where this many rows on end must be so.
        return self._held_s >= self._task.hold_rows * self._row_s

    def expert(self) -> Callable[[], Array]:
        waypoints = self._task.waypoints(self._scene.with_box_poses(self._backend.object_poses()))
        # Kinematics of its own: those that tell success are used at every step meanwhile.
        return lambda: expert_rows(self._embodiment, Kinematics(self._embodiment), self._arm, waypoints)

    def look(self) -> Any:
        return self._backend.look()

    def picture(self, camera: str, look: Any) -> Picture:
        return self._backend.picture_of(camera, look)

    def close(self) -> None:
        self._backend.close()

    def _place(self, positions: Array) -> None:
        self._backend.reset(self._scene, positions)
        self._drives.place(positions)
        for _ in range(round(SETTLE_S / self._backend.physics_dt_s)):
            self._backend.step_physics()
        self._held_s = 0.0

    def _state(self) -> SceneState:
        positions = dict(zip(self.joints, self.positions(), strict=True))
        joints = [positions[name] for name in self._embodiment.arms[self._arm].joints]
        return SceneState(
            scene=self._scene,
            tool=self._kinematics.forward(self._arm, joints),
            poses=self._backend.object_poses(),
            velocities=self._backend.object_velocities(),
        )
