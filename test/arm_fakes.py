# SPDX-License-Identifier: Apache-2.0
"""An arm without ROS and without time: controllers, joints and streams of a contract, stepped by a clock that
only moves when somebody waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from contracts import contract, small_pictures, written
from scipy.interpolate import CubicHermiteSpline

from openeta_ros.control import ActionPipeline
from openeta_ros.control.commands import Command, Commands, PathCommand
from openeta_ros.embodiment import Embodiment, Kinematics
from openeta_ros.envs import EnvError, EnvFacade, EnvSpec, Sensors
from openeta_ros.envs.arm import ArmWorld
from openeta_ros.envs.arm_motion import Motion
from openeta_ros.envs.arm_operator import Operator
from openeta_ros.envs.arm_robot import Vitals

PERIOD_S = 0.01
FRAME_S = 0.04
VELOCITY, ACCELERATION = 2.0, 8.0


def arm_contract(folder: Path, interface: str = 'forward_position', **safety: Any) -> Embodiment:
    """Return the light arm's contract as that of a real arm, whose mock is joints without a scene: cheap."""
    data = small_pictures(contract('light_arm'))
    del data['simulation']
    arm = data['arms']['arm']
    arm['command'] = {'interface': interface, 'topic': 'arm_controller/commands'}
    arm['gripper']['command'] = {'interface': 'forward_position', 'topic': 'gripper_controller/commands'}
    arm['limits'] |= {'velocity': [VELOCITY] * 6, 'acceleration': [ACCELERATION] * 6}
    data['safety'] = {
        'on_limit': 'refuse',
        'first_row_rad': 0.2,
        'max_tracking_error_rad': 0.3,
        'watchdog_s': 0.2,
        'stop_topic': 'stop',
        **safety,
    }
    return written(data, folder)


class _Following:
    """A path as joint_trajectory_controller follows it: cubics, the first one from where the arm is."""

    def __init__(self, command: PathCommand, robot: FakeRobot, before: _Following | None) -> None:
        self.channel, self._begin_s = command.channel, robot.time_s
        start = [robot.positions[joint] for joint in command.channel.joints]
        velocity = np.zeros(len(start)) if before is None else before(robot.time_s, 1)
        times_s = np.array([0.0, *command.times_s])
        self._spline = CubicHermiteSpline(
            times_s, np.array([start, *command.positions]), np.array([velocity, *command.velocities])
        )
        self._end_s = times_s[-1]

    def __call__(self, time_s: float, derivative: int = 0) -> np.ndarray:
        passed_s = time_s - self._begin_s
        if derivative and passed_s >= self._end_s:
            return np.zeros(len(self.channel.joints))
        return np.asarray(self._spline(min(passed_s, self._end_s), derivative))


class FakeRobot:
    """A robot whose joints follow their controllers at once, as fast as `follow` lets them.

    `log` holds (time, command) of everything that was sent, `trace` where the arms' joints were each period.
    Streams named in `silent` do not come.
    """

    version = 'fake'

    def __init__(self, embodiment: Embodiment, time_s: float = 1000.0) -> None:
        self.embodiment = embodiment
        self.time_s = time_s
        self.positions = {'finger_left': 0.04}
        for arm in embodiment.arms.values():
            self.positions |= dict(zip(arm.joints, arm.home, strict=False))
        self.log: list[tuple[float, Command]] = []
        self.shown: list[str] = []
        self.silent: set[str] = set()
        self.faults: dict[str, str] = {}
        self.blocked: set[str] = set()
        self.is_solved = False
        self.scene = True
        self.seeds: list[int] = []
        self._paths: dict[str, _Following] = {}
        self.trace: list[tuple[float, list[float]]] = []
        self._heard = {('stale_state', joint): time_s for joint in embodiment.wire_joints}
        self._heard |= {('stale_camera', name): time_s for name in embodiment.cameras}
        self._frames = [time_s]
        self.send_error: Exception | None = None
        self.alive = ''  # where who gives chunks says that it lives

    def advance(self, duration_s: float) -> None:
        """Let time pass for controllers and streams."""
        end_s = self.time_s + duration_s
        while self.time_s < end_s - 1e-9:
            self.time_s = min(self.time_s + PERIOD_S, end_s)
            for path in self._paths.values():
                for joint, value in zip(path.channel.joints, path(self.time_s), strict=True):
                    self._move(joint, float(value))
            joints = [joint for arm in self.embodiment.arms.values() for joint in arm.joints]
            self.trace.append((self.time_s, [self.positions[joint] for joint in joints]))
        for key in self._heard:
            if key[1] not in self.silent:
                self._heard[key] = self.time_s
        if self.time_s - self._frames[-1] >= FRAME_S and not self.silent & set(self.embodiment.cameras):
            self._frames.append(self.time_s)

    def vitals(self) -> Vitals:
        known = {name: value for name, value in self.positions.items() if name not in self.silent}
        return Vitals(dict(known), dict(self._heard), dict(self.faults))

    def prepared(self, commands: Sequence[Command]) -> Callable[[], None]:
        return lambda: self.send(commands)

    def send(self, commands: Sequence[Command]) -> None:
        if self.send_error is not None:
            raise self.send_error
        for command in commands:
            self.log.append((self.time_s, command))
            if isinstance(command, PathCommand):
                before = self._paths.get(command.channel.topic)
                self._paths[command.channel.topic] = _Following(command, self, before)
            elif command.channel.interface == 'forward_position':
                for joint, value in zip(command.channel.joints, command.values, strict=True):
                    self._move(joint, float(value))
            elif command.channel.interface == 'forward_velocity':
                for joint, value in zip(command.channel.joints, command.values, strict=True):
                    self._move(joint, self.positions[joint] + float(value) * PERIOD_S)

    def show(self, text: str) -> None:
        self.shown.append(text)

    def wait_ready(self, check: Callable[[], None]) -> None:
        check()
        for kind, text in self.faults.items():
            raise EnvError(kind, text)

    def driver(self) -> str:
        return self.alive

    def new_episode(self, check: Callable[[], None]) -> None: ...

    def sense(self, time_s: float, check: Callable[[], None]) -> Sensors:
        check()
        stamp_s = next(frame for frame in reversed(self._frames) if frame <= time_s + 1e-9)
        shape = (60, 80, 3)
        return Sensors(
            stamp_ns=round(stamp_s * 1e9),
            pictures={name: np.zeros(shape, np.uint8) for name in self.embodiment.cameras},
            positions=dict(self.positions),
            velocities={},
        )

    def has_scene(self) -> bool:
        return self.scene

    def reset_scene(self, seed: int, check: Callable[[], None]) -> None:
        self.seeds.append(seed)

    def expert(self, check: Callable[[], None]) -> np.ndarray:
        raise EnvError('no_expert', 'nobody knows')

    def judges(self) -> bool:
        return self.scene

    def success(self) -> bool:
        return self.is_solved

    def close(self) -> None: ...

    def _move(self, joint: str, value: float) -> None:
        if joint not in self.blocked:
            self.positions[joint] = value


class Bench:
    """An `EnvFacade` over a `FakeRobot`. `at(time, job)` has something happen while the env waits."""

    def __init__(
        self, embodiment: Embodiment, *, task: str = 'reach', max_steps: int | None = None, **options: Any
    ) -> None:
        kinematics = Kinematics(embodiment)
        self.robot = FakeRobot(embodiment)
        self.operator = Operator(enabled=True)
        self.operator.active = True
        pipeline = ActionPipeline(embodiment, kinematics)
        joints = pipeline.native.joints
        self.motion = Motion(
            pipeline,
            Commands(embodiment, Kinematics(embodiment), joints),
            self.robot,
            self.operator,
            period_s=PERIOD_S,
            clock=lambda: self.robot.time_s,
            **options,
        )
        self.motion.wait = self.wait  # type: ignore[method-assign]
        self._jobs: list[tuple[float, Callable[[], None]]] = []
        world = ArmWorld(EnvSpec('arm', task, embodiment), kinematics, self.robot, self.motion, self.operator)
        self.env = EnvFacade(EnvSpec('arm', task, embodiment, max_steps), kinematics, world)

    def at(self, time_s: float, job: Callable[[], None]) -> None:
        """Have a job done when so much more time has passed."""
        self._jobs.append((self.robot.time_s + time_s, job))

    def wait(self, until_s: float) -> None:
        """Let a period pass."""
        self.tick()

    def tick(self, duration_s: float = PERIOD_S) -> None:
        """Let time pass, and then tick once."""
        self.robot.advance(duration_s)
        for job in [job for job in self._jobs if job[0] <= self.robot.time_s]:
            self._jobs.remove(job)
            job[1]()
        self.motion.tick()

    def assert_limits(self, share: float = 1.0, since_s: float = 0.0) -> None:
        """Assert that an arm which follows exactly was inside its limits, at the times of the commands.

        One that is told where to be stands still when it is told nothing: that it stops then is not asked of
        it, but how it sets off again is. `share` of the acceleration is allowed.
        """
        paths = any(isinstance(command, PathCommand) for _, command in self.robot.log)
        found = self.robot.trace if paths else list(zip(*self.sent(), strict=True))
        times = np.array([time_s for time_s, _ in found])
        values = np.array([value for _, value in found])
        gaps = np.flatnonzero(np.diff(times) > 2.5 * PERIOD_S) + 1
        for piece in np.split(np.arange(len(times)), gaps):
            first = max(piece[0] - 1, 0)
            rows = np.concatenate([values[first : first + 1]] * 2 + [values[piece]])
            velocity = np.diff(rows, axis=0) / PERIOD_S
            accelerations = np.abs(np.diff(velocity, axis=0))[times[piece] >= since_s] / PERIOD_S
            assert np.abs(velocity).max() <= VELOCITY + 1e-6
            assert accelerations.max(initial=0.0) <= share * ACCELERATION + 1e-3
        assert np.abs(velocity[-1]).max() < ACCELERATION * PERIOD_S

    def run(self, duration_s: float) -> None:
        """Let ticks pass."""
        end = self.robot.time_s + duration_s
        while self.robot.time_s < end:
            self.tick()

    def sent(self, topic: str = 'arm_controller/commands') -> tuple[np.ndarray, np.ndarray]:
        """Return the times (N,) and values (N, J) that a forward controller was sent."""
        found = [(time_s, one) for time_s, one in self.robot.log if one.channel.topic == topic]
        return np.array([time_s for time_s, _ in found]), np.array([one.values for _, one in found])


def ramp(embodiment: Embodiment, rows: int, step: float = 0.04) -> np.ndarray:
    """Return rows (H, D) from home on that turn the first joint, smoothly, by `step` a row at most."""
    actions = np.repeat(embodiment.home_qpos[None], rows, axis=0)
    steps = np.minimum(np.minimum(np.arange(1, rows + 1), np.arange(rows, 0, -1)) * 0.01, step)
    actions[:, 0] += np.cumsum(steps)
    return actions
