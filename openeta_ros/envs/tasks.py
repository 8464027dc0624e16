# SPDX-License-Identifier: Apache-2.0
"""The tasks: what stands on the table, when it is solved, and by which way points an expert solves it.

A task says nothing about a simulator or a robot. Its scene is a pure function of the random generator it is
given, so that the same seed is the same scene in every backend. The world frame is that of `envs/backend.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from openeta_ros.envs.backend import Array, Box, Marker, Scene
from openeta_ros.envs.errors import EnvError

CUBE_M = 0.04
RED = (0.85, 0.13, 0.10, 1.0)
GREEN = (0.16, 0.60, 0.22, 1.0)
BLUE = (0.10, 0.35, 0.85, 1.0)
GOAL = (0.98, 0.75, 0.10, 1.0)

LIFTED_M = 0.10
HELD_WITHIN_M = 0.04
REACHED_M = 0.02
PUSHED_WITHIN_M = 0.03
STACKED_WITHIN_M = 0.02
AT_REST_M_S = 0.02


@dataclass(frozen=True)
class SceneState:
    """The world after a row: pose (7,) of the tool point, pose (7,) and linear velocity (3,) of every box."""

    scene: Scene
    tool: Array
    poses: Mapping[str, Array]
    velocities: Mapping[str, Array]


@dataclass(frozen=True)
class Waypoint:
    """Where an expert moves the tool point next, pointing straight down.

    `yaw_rad` turns the gripper about the vertical: at 0 its fingers open along y. `quarter_turns` allows any
    multiple of 90 degrees more, as a cube does. `path` 'joint' is quick, 'line' is a straight line of the
    tool point no faster than `speed_m_s`. On arrival the gripper goes to `openness`, then `hold_rows` rows
    pass without motion.
    """

    position_m: tuple[float, float, float]
    openness: float
    yaw_rad: float | None = None
    quarter_turns: bool = True
    path: Literal['joint', 'line'] = 'joint'
    speed_m_s: float = 0.4
    hold_rows: int = 0


@dataclass(frozen=True)
class Task(ABC):
    """A task: `hold_rows` rows on end must satisfy `success` for the episode to count as solved."""

    name: str
    instruction: str
    max_steps: int
    hold_rows: int = 5

    @abstractmethod
    def scene(self, rng: np.random.Generator) -> Scene:
        """Return the scene of an episode; only poses may depend on `rng`."""

    @abstractmethod
    def success(self, state: SceneState) -> bool:
        """Whether the goal is met in this state."""

    @abstractmethod
    def waypoints(self, scene: Scene) -> list[Waypoint]:
        """Return the expert's way from the home pose, gripper open, through this scene."""


class Reach(Task):
    """Move the tool point to a ball in the air."""

    def scene(self, rng: np.random.Generator) -> Scene:
        x, y, z = rng.uniform((0.36, -0.2, 0.12), (0.56, 0.2, 0.32))
        return Scene(markers=(Marker('goal', (float(x), float(y), float(z)), REACHED_M, GOAL),))

    def success(self, state: SceneState) -> bool:
        return bool(np.linalg.norm(state.tool[:3] - state.scene.markers[0].position_m) < REACHED_M)

    def waypoints(self, scene: Scene) -> list[Waypoint]:
        return [Waypoint(scene.markers[0].position_m, openness=1.0, hold_rows=self.hold_rows + 5)]


class PushCube(Task):
    """Push a cube along the table onto a disc."""

    def scene(self, rng: np.random.Generator) -> Scene:
        x, y = rng.uniform((0.36, -0.12), (0.42, 0.12))
        direction, distance = rng.uniform((-0.5, 0.10), (0.5, 0.15))
        goal = (float(x + distance * math.cos(direction)), float(y + distance * math.sin(direction)), 0.001)
        # The cube faces its goal: a push on a slanted face turns it, which is another task.
        return Scene(
            boxes=(_cube('cube', float(x), float(y), float(direction), RED),),
            markers=(Marker('goal', goal, 0.045, GOAL, height_m=0.002),),
        )

    def success(self, state: SceneState) -> bool:
        away = state.poses['cube'][:2] - state.scene.markers[0].position_m[:2]
        at_rest = np.linalg.norm(state.velocities['cube']) < AT_REST_M_S
        on_table = abs(state.poses['cube'][2] - CUBE_M / 2) < 0.005
        return bool(np.linalg.norm(away) < PUSHED_WITHIN_M and on_table and at_rest)

    def waypoints(self, scene: Scene) -> list[Waypoint]:
        cube, goal = scene.boxes[0], scene.markers[0]
        start = np.array(cube.pose[:2])
        along = np.array(goal.position_m[:2]) - start
        direction = math.atan2(along[1], along[0])
        along /= np.linalg.norm(along)
        # Both fingers, a little apart, push the rear face: two points of contact do not let the cube turn.
        # Half a cube and half a finger lie between the tool point and the centre of the cube.
        touch = CUBE_M / 2 + 0.011
        behind = start - along * (touch + 0.03)
        end = np.array(goal.position_m[:2]) - along * touch
        low = 0.018
        opening = 0.35
        return [
            Waypoint((*_xy(behind), 0.09), opening, direction, quarter_turns=False),
            Waypoint((*_xy(behind), low), opening, direction, quarter_turns=False, path='line'),
            Waypoint(
                (*_xy(end), low),
                opening,
                direction,
                quarter_turns=False,
                path='line',
                speed_m_s=0.2,
                hold_rows=self.hold_rows + 7,
            ),
        ]


class PickCube(Task):
    """Grasp a cube and lift it."""

    def scene(self, rng: np.random.Generator) -> Scene:
        x, y = rng.uniform((0.38, -0.2), (0.56, 0.2))
        yaw = rng.uniform(-math.pi, math.pi)
        return Scene(boxes=(_cube('cube', float(x), float(y), float(yaw), RED),))

    def success(self, state: SceneState) -> bool:
        cube = state.poses['cube'][:3]
        lifted = cube[2] - CUBE_M / 2 > LIFTED_M
        return bool(lifted and np.linalg.norm(cube - state.tool[:3]) < HELD_WITHIN_M)

    def waypoints(self, scene: Scene) -> list[Waypoint]:
        x, y, z = scene.boxes[0].pose[:3]
        return [
            *_grasp(scene.boxes[0]),
            Waypoint((x, y, z + LIFTED_M + 0.08), 0.0, path='line', hold_rows=self.hold_rows + 5),
        ]


class StackCubes(Task):
    """Put one cube on another and let go."""

    def scene(self, rng: np.random.Generator) -> Scene:
        # One on each side: never so near that the gripper cannot pass between them.
        side = rng.choice((-1.0, 1.0))
        red_x, green_x = rng.uniform(0.38, 0.54, size=2)
        red_y, green_y = side * rng.uniform(0.05, 0.15, size=2) * (1.0, -1.0)
        red_yaw, green_yaw = rng.uniform(-math.pi, math.pi, size=2)
        return Scene(
            boxes=(
                _cube('red', float(red_x), float(red_y), float(red_yaw), RED),
                _cube('green', float(green_x), float(green_y), float(green_yaw), GREEN),
            )
        )

    def success(self, state: SceneState) -> bool:
        red, green = state.poses['red'][:3], state.poses['green'][:3]
        offset = red - green
        on_top = np.linalg.norm(offset[:2]) < STACKED_WITHIN_M and abs(offset[2] - CUBE_M) < 0.006
        at_rest = all(np.linalg.norm(velocity) < AT_REST_M_S for velocity in state.velocities.values())
        let_go = np.linalg.norm(red - state.tool[:3]) > HELD_WITHIN_M
        return bool(on_top and at_rest and let_go)

    def waypoints(self, scene: Scene) -> list[Waypoint]:
        red, green = scene.boxes
        x, y, z = red.pose[:3]
        onto_x, onto_y, onto_z = green.pose[:3]
        yaw = _yaw(green)
        return [
            *_grasp(red),
            Waypoint((x, y, z + 0.09), 0.0, path='line'),
            Waypoint((onto_x, onto_y, onto_z + CUBE_M + 0.05), 0.0, yaw),
            Waypoint(
                (onto_x, onto_y, onto_z + CUBE_M + 0.001), 0.6, yaw, path='line', speed_m_s=0.2, hold_rows=1
            ),
            Waypoint(
                (onto_x, onto_y, onto_z + CUBE_M + 0.08), 1.0, yaw, path='line', hold_rows=self.hold_rows + 5
            ),
        ]


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Reach('reach', 'Move the gripper to the yellow ball.', max_steps=60),
        PushCube('push_cube', 'Push the red cube onto the yellow disc.', max_steps=100),
        PickCube('pick_cube', 'Pick up the red cube.', max_steps=100),
        StackCubes('stack_cubes', 'Put the red cube on the green cube.', max_steps=120),
    )
}


def task(name: str) -> Task:
    """Return the task of that name.

    Raises:
        EnvError: kind 'task', listing what exists.
    """
    if name not in TASKS:
        raise EnvError('task', f'there is no task {name!r}; there are {", ".join(TASKS)}')
    return TASKS[name]


def _grasp(box: Box) -> list[Waypoint]:
    x, y, z = box.pose[:3]
    yaw = _yaw(box)
    return [
        Waypoint((x, y, z + 0.08), 1.0, yaw),
        Waypoint((x, y, z), 0.0, yaw, path='line', hold_rows=4),
    ]


def _cube(name: str, x: float, y: float, yaw: float, rgba: tuple[float, float, float, float]) -> Box:
    pose = (x, y, CUBE_M / 2, math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))
    return Box(name, (CUBE_M, CUBE_M, CUBE_M), pose, rgba)


def _yaw(box: Box) -> float:
    w, x, y, z = box.pose[3:]
    return math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def _xy(point: Array) -> tuple[float, float]:
    return float(point[0]), float(point[1])
