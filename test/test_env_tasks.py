# SPDX-License-Identifier: Apache-2.0
"""What counts as solved, and what only looks like it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from openeta_ros.envs import EnvError
from openeta_ros.envs.tasks import TASKS, SceneState, task

AWAY = np.array([0.3, 0.0, 0.5, 0.0, 1.0, 0.0, 0.0])


def start(name: str, seed: int = 0) -> SceneState:
    scene = task(name).scene(np.random.default_rng(seed))
    return SceneState(
        scene=scene,
        tool=AWAY,
        poses={box.name: np.array(box.pose) for box in scene.boxes},
        velocities={box.name: np.zeros(3) for box in scene.boxes},
    )


def moved(state: SceneState, box: str, position: np.ndarray) -> SceneState:
    return replace(state, poses={**state.poses, box: np.array([*position, 1.0, 0.0, 0.0, 0.0])})


@pytest.mark.parametrize('name', TASKS)
def test_a_scene_is_a_function_of_its_seed(name: str) -> None:
    scenes = [task(name).scene(np.random.default_rng(seed)) for seed in (5, 5, 6)]
    assert scenes[0] == scenes[1]
    assert scenes[0] != scenes[2]


@pytest.mark.parametrize('name', TASKS)
def test_no_scene_is_solved_from_the_start(name: str) -> None:
    assert not any(task(name).success(start(name, seed)) for seed in range(50))


@pytest.mark.parametrize('name', TASKS)
def test_boxes_stand_apart_and_on_the_table(name: str) -> None:
    for seed in range(50):
        boxes = start(name, seed).scene.boxes
        assert all(box.pose[2] == box.size_m[2] / 2 for box in boxes)
        for one, other in pairwise(boxes):
            assert np.linalg.norm(np.subtract(one.pose[:2], other.pose[:2])) > 0.09


def test_reach_wants_the_tool_at_the_ball() -> None:
    state = start('reach')
    goal = np.array(state.scene.markers[0].position_m)
    assert task('reach').success(replace(state, tool=np.array([*goal[:2], goal[2] + 0.01, 0, 1, 0, 0])))
    assert not task('reach').success(replace(state, tool=np.array([*goal[:2], goal[2] + 0.03, 0, 1, 0, 0])))


def test_push_wants_the_cube_at_rest_on_the_disc_and_on_the_table() -> None:
    goal = np.array(start('push_cube').scene.markers[0].position_m)
    there = moved(start('push_cube'), 'cube', np.array([goal[0], goal[1], 0.02]))
    assert task('push_cube').success(there)
    assert not task('push_cube').success(replace(there, velocities={'cube': np.array([0.1, 0.0, 0.0])}))
    assert not task('push_cube').success(moved(there, 'cube', np.array([goal[0], goal[1], 0.05])))


def test_pick_wants_the_cube_high_and_in_the_hand() -> None:
    high = np.array([0.45, 0.0, 0.2])
    state = moved(start('pick_cube'), 'cube', high)
    assert task('pick_cube').success(replace(state, tool=np.array([*high, 0, 1, 0, 0])))
    assert not task('pick_cube').success(state), 'the cube flies'
    low = moved(state, 'cube', np.array([0.45, 0.0, 0.08]))
    assert not task('pick_cube').success(replace(low, tool=np.array([0.45, 0.0, 0.08, 0, 1, 0, 0])))


def test_stack_wants_the_cube_on_the_other_let_go_and_at_rest() -> None:
    state = start('stack_cubes')
    on_top = state.poses['green'][:3] + np.array([0.0, 0.0, 0.04])
    stacked = moved(state, 'red', on_top)
    assert task('stack_cubes').success(stacked)
    assert not task('stack_cubes').success(replace(stacked, tool=np.array([*on_top, 0, 1, 0, 0])))
    assert not task('stack_cubes').success(
        replace(stacked, velocities={'red': np.array([0.0, 0.0, -0.2]), 'green': np.zeros(3)})
    )
    assert not task('stack_cubes').success(moved(state, 'red', on_top + np.array([0.03, 0.0, 0.0])))


def test_an_unknown_task_is_refused_with_what_exists() -> None:
    with pytest.raises(EnvError, match='reach, push_cube, pick_cube, stack_cubes') as caught:
        task('juggle')
    assert caught.value.kind == 'task'
