# SPDX-License-Identifier: Apache-2.0
"""Observations of an env continue each other within an episode, as those of the graph's bridge do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from contracts import contract, written

from openeta_ros.embodiment import Kinematics
from openeta_ros.envs import EnvFacade, EnvSpec, Sensors, StepResult
from openeta_ros.observation import Assembler, image_message, joint_state_message

TURN = 2 * np.pi


class Turning:
    """A world whose first joint turns on and on; an episode begins where it is asked to."""

    instruction, max_steps, seed_honoured, deterministic, version = 'turn', 100, True, True, 'test'
    camera_poses: dict[str, Any] = {}

    def __init__(self, names: list[str], cameras: list[str], home: np.ndarray) -> None:
        self._names, self._cameras, self._home, self._now = names, cameras, home, 0

    def reset(self, seed: int) -> Sensors:
        return self._sensors(self._home[:-1] * 1.0)

    def execute(self, plan: Any, row: int) -> tuple[Sensors, bool]:
        return self._sensors(plan.qpos[row][:-1]), False

    def snapshot(self) -> str:
        return 'it remembers nothing'

    def restore(self, snapshot: str) -> None:
        pass

    def close(self) -> None:
        pass

    def _sensors(self, joints: np.ndarray) -> Sensors:
        self._now += 50_000_000
        positions = dict(zip(self._names, [*joints.tolist(), 0.0], strict=True))
        pictures = {name: np.zeros((240, 320, 3), np.uint8) for name in self._cameras}
        return Sensors(self._now, pictures, positions, dict.fromkeys(positions, 0.0))


def turning(tmp_path: Path) -> tuple[EnvFacade, np.ndarray]:
    """Return an env of that world, and rows (60, 7) that turn the tool by one and a half turns."""
    data = contract('light_arm')
    arm = data['arms']['arm']
    arm['limits'] |= {'position': [[-10, 10]] * 6, 'velocity': [100] * 6}
    arm['limits'].pop('acceleration', None)
    data['safety'] = {'on_limit': 'refuse'}
    robot = written(data, tmp_path)
    world = Turning(robot.wire_joints, list(robot.cameras), robot.home_qpos)
    rows = np.repeat(robot.home_qpos[None], 60, axis=0)
    rows[:, 0] += np.linspace(0.15, 9.0, 60)
    return EnvFacade(EnvSpec('turning', 'turn', robot), Kinematics(robot), world), rows


def test_quaternions_keep_their_sign_along_an_episode_as_on_the_graph(tmp_path: Path) -> None:
    facade, rows = turning(tmp_path)
    robot, kinematics = facade.spec.embodiment, Kinematics(facade.spec.embodiment)
    with facade:
        graph = Assembler(robot, kinematics)
        for _ in range(2):
            seen = [(facade.reset(0), facade.sensors)]
            told: list[tuple[StepResult, Sensors]] = []
            facade.chunk_step(rows, 'qpos', lambda *row, told=told: told.append(row))
            seen += [(result.observation, sensors) for result, sensors in told]
            graph.new_episode()
            for observation, now in seen:
                for name, picture in now.pictures.items():
                    graph.add_image(name, image_message(picture, now.stamp_ns))
                graph.add_joint_state(joint_state_message(now.positions, {}, now.stamp_ns))
                assert graph.at(now.stamp_ns)['endpose'].tobytes() == observation['endpose'].tobytes()
            poses = np.array([observation['endpose'][3:7] for observation, _ in seen])
            assert (np.sum(poses[1:] * poses[:-1], axis=1) > 0).all()
            assert not np.array_equal(poses[-1], kinematics.forward('arm', rows[-1, :-1])[3:])


def test_an_env_that_goes_back_sees_the_signs_that_it_saw(tmp_path: Path) -> None:
    facade, rows = turning(tmp_path)
    with facade:
        facade.reset(0)
        kept = facade.snapshot()
        assert kept is not None
        seen = []
        for _ in range(3):
            facade.restore(kept)
            results = facade.chunk_step(rows[:40])
            seen.append([result.observation['endpose'].tobytes() for result in results])
        first, last = (np.frombuffer(seen[0][row])[3:7] for row in (0, -1))
        assert first @ last < 0, 'it was not turned far enough to tell'
        assert seen[0] == seen[1] == seen[2]
