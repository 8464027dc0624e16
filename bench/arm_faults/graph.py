# SPDX-License-Identifier: Apache-2.0
"""The graph that faults are injected into: a mock arm, the env node that drives it, a relay between them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import yaml
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Empty, Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from openeta_msgs.srv import Reset, Step
from openeta_ros.control.path import SAME
from openeta_ros.embodiment import Embodiment, Kinematics, load
from openeta_ros.envs import EnvError
from openeta_ros.envs.arm_servo import raise_priority
from openeta_ros.nodes import messages
from openeta_ros.nodes.graph import NodeSpec, graph_environment
from openeta_ros.nodes.messages import NS_PER_S
from openeta_ros.nodes.peer import Peer, bring_up
from openeta_ros.nodes.runtime import Process
from openeta_ros.nodes.streams import Bridge

COMMANDS = 'arm/commands'
TICK_S = 0.01
# Velocities are taken over so many ticks, accelerations over twice as many: what is sent a millisecond late
# is no acceleration.
WINDOW = 5
# Numbers further apart than so many ticks have a gap between them; equal ones also when so many apart.
GAP, GAP_STOOD = 2.5, 1.5
# A motion may take so long to end.
PATIENCE_S = 60.0
ROWS, HORIZON = 60, 20
WATCHDOG_S = 0.4
# On a machine that does much else: who trips when that stands still, and chunks that last longer than that.
PATIENT_WATCHDOG_S, PATIENT_ROWS = 3.0, 200
ATTEMPTS = 20
# The directions in which the light arm's joints lift its tool.
UP = np.array([1.0, -1.0, -0.5, 1.0, 0.5, 1.0])


def contract(folder: Path, interface: str, *, patient: bool = False) -> Embodiment:
    """Return the light arm with a controller of a kind.

    `patient`: for a machine that does much else; pictures cost little then, too.
    """
    data = yaml.safe_load(load('light_arm').path.read_text(encoding='utf-8'))
    arm = data['arms']['arm']
    if patient:
        del data['simulation']
        for camera in data['cameras'].values():
            camera['size'] = [60, 80]
    arm['limits']['acceleration'] = [8.0] * len(arm['joints'])
    arm['command'] = {'interface': interface, 'topic': COMMANDS}
    arm['gripper']['command'] = {'interface': 'forward_position', 'topic': 'gripper/commands'}
    watchdog_s = PATIENT_WATCHDOG_S if patient else WATCHDOG_S
    data['safety'] |= {'watchdog_s': watchdog_s, 'stop_topic': 'stop', 'first_row_rad': 0.1}
    data['safety']['max_tracking_error_rad'] = 3.0 if patient else 0.4
    path = folder / f'{interface}.yaml'
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding='utf-8')
    return load(path)


class Relay:
    """Hands on the mock's streams, as faults want them: `frozen` and `silent` topics, joints left out, stamps
    shifted."""

    def __init__(self, node: Node, topics: dict[str, Any]) -> None:
        self.heal()
        quality = QoSProfile(depth=5, reliability=ReliabilityPolicy.RELIABLE)
        for topic, kind in topics.items():
            publisher = node.create_publisher(kind, topic, quality)
            hand_on = self._handing(topic, publisher)
            node.create_subscription(kind, f'raw/{topic}', hand_on, quality)

    def heal(self) -> None:
        """Hand on everything as it is."""
        self.frozen: str = ''
        self.silent: tuple[str, ...] = ()
        self.dropped: str = ''
        self.shift_ns = 0
        self._kept: dict[str, Any] = {}

    def _handing(self, topic: str, publisher: Any) -> Callable[[Any], None]:
        def hand_on(message: Any) -> None:
            if any(topic.startswith(one) for one in self.silent):
                return
            if self.frozen and topic.startswith(self.frozen):
                message = self._kept.setdefault(topic, message)
            if self.dropped and isinstance(message, JointState):
                index = list(message.name).index(self.dropped)
                for values in (message.name, message.position, message.velocity, message.effort):
                    del values[index]
            if self.shift_ns:
                stamp = messages.time_ns(message.header.stamp) + self.shift_ns
                message.header.stamp = messages.time_message(stamp)
            publisher.publish(message)

        return hand_on


class Listener:
    """All commands of the arm, with the times at which they were sent."""

    def __init__(self, node: Node, embodiment: Embodiment) -> None:
        self.arm = embodiment.arms['arm']
        self._rate_hz, self._home = embodiment.rate_hz, np.array(embodiment.home_qpos[:-1])
        self.heard: list[tuple[int, Any]] = []
        kind = JointTrajectory if self.paths else Float64MultiArray
        node.create_subscription(kind, COMMANDS, self._hear, 100)

    @property
    def paths(self) -> bool:
        """Whether whole paths are commanded."""
        assert self.arm.command is not None
        return self.arm.command.interface == 'joint_trajectory'

    def since(self, begin_ns: int) -> list[tuple[int, Any]]:
        """Return what was sent since then."""
        return [one for one in list(self.heard) if one[0] >= begin_ns]

    def shares_since(self, begin_ns: int, *, ended: bool) -> tuple[float, float, float]:
        """Return the largest step of a row, velocity and acceleration since then, as shares of the limits.

        `ended`: motion is over, so that what was commanded last stays.
        """
        heard = self.since(begin_ns)
        if not heard:
            return 0.0, 0.0, 0.0
        pieces = [self._along_paths(heard)] if self.paths else list(self._between_numbers(heard))
        stays = [False] * (len(pieces) - 1) + [ended or self.paths]
        shares = [self._shares(rows, stays=stay) for rows, stay in zip(pieces, stays, strict=True)]
        step, velocity, acceleration = np.max(shares, axis=0)
        return float(step), float(velocity), float(acceleration)

    def _shares(self, rows: np.ndarray, *, stays: bool) -> tuple[float, float, float]:
        """Return the shares of positions (N, J) every 10 ms, which begin at rest, and `stays`: end so."""
        still = 4 * WINDOW
        after = [rows[-1:]] * (still if stays else 0)
        padded = np.concatenate([rows[:1]] * still + [rows, *after])
        per_row = round(1 / self._rate_hz / TICK_S)
        limits = self.arm.limits
        step = np.abs(padded[per_row:] - padded[:-per_row]) * self._rate_hz / np.array(limits.velocity)
        velocity = (padded[WINDOW:] - padded[:-WINDOW]) / (WINDOW * TICK_S)
        change = np.abs(velocity[2 * WINDOW :] - velocity[: -2 * WINDOW]) / (2 * WINDOW * TICK_S)
        fastest = np.abs(velocity) / np.array(limits.velocity)
        return float(step.max()), float(fastest.max()), float((change / np.array(limits.acceleration)).max())

    def _hear(self, message: Any, info: Any) -> None:
        self.heard.append((int(info['source_timestamp']), message))

    def _between_numbers(self, heard: Sequence[tuple[int, Any]]) -> Iterator[np.ndarray]:
        """Yield the positions (N, J) every 10 ms, straight between what was sent.

        An arm that is told nothing for a while stands still: nobody asked that of it, and a piece ends there.
        The next one begins where it stands. Who sends late says by the same number again that it stood.
        """
        times = np.array([one[0] - heard[0][0] for one in heard]) / NS_PER_S
        values = np.array([one[1].data for one in heard])
        stood = np.abs(np.diff(values, axis=0)).max(axis=1) < SAME
        gaps = np.flatnonzero(np.diff(times) > np.where(stood, GAP_STOOD, GAP) * TICK_S) + 1
        for piece in np.split(np.arange(len(times)), gaps):
            first = max(piece[0] - 1, 0)
            at = np.concatenate([[times[piece[0]] - TICK_S], times[piece]])
            rows = np.concatenate([values[first : first + 1], values[piece]])
            grid = np.arange(at[0], at[-1] + TICK_S, TICK_S)
            yield np.stack([np.interp(grid, at, column) for column in rows.T], axis=1)

    def _along_paths(self, heard: Sequence[tuple[int, Any]]) -> np.ndarray:
        """Return the positions (N, J) every 10 ms of who follows each path, from where the last was."""
        position, velocity = self._home, np.zeros(len(self._home))
        rows, begin_ns = [], heard[0][0]
        for index, (sent_ns, message) in enumerate(heard):
            last = index == len(heard) - 1
            points = message.points
            times = [0.0, *(p.time_from_start.sec + p.time_from_start.nanosec / NS_PER_S for p in points)]
            positions = np.array([position, *(point.positions for point in points)])
            velocities = np.array([velocity, *(point.velocities for point in points)])
            end_s = times[-1] if last else (heard[index + 1][0] - sent_ns) / NS_PER_S
            offset_s = (-((sent_ns - begin_ns) % round(TICK_S * NS_PER_S)) / NS_PER_S) % TICK_S
            for time_s in np.arange(offset_s, end_s, TICK_S):
                rows.append(_cubic(times, positions, velocities, time_s)[0])
            position, velocity = _cubic(times, positions, velocities, end_s)
        return np.array(rows)


def _cubic(
    times: Sequence[float], positions: np.ndarray, velocities: np.ndarray, time_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return position and velocity of the cubics through points, which stay at the last."""
    index = int(np.searchsorted(times, time_s, side='right'))
    if index == len(times):
        return positions[-1], np.zeros(positions.shape[1])
    span = times[index] - times[index - 1]
    part, way = (time_s - times[index - 1]) / span, positions[index] - positions[index - 1]
    start, end = velocities[index - 1] * span, velocities[index] * span
    square, cube = 3 * way - 2 * start - end, start + end - 2 * way
    here = positions[index - 1] + part * (start + part * (square + part * cube))
    return here, (start + part * (2 * square + 3 * part * cube)) / span


class Bench:
    """One graph of mock, env and this program, for one kind of controller."""

    def __init__(self, node: Node, process: Process, embodiment: Embodiment, mock: Any, seed: int) -> None:
        self.node, self._process, self.embodiment, self.mock = node, process, embodiment, mock
        self.random = np.random.default_rng(seed)
        patient = embodiment.safety.watchdog_s > WATCHDOG_S
        self._count = PATIENT_ROWS if patient else ROWS
        topics = {camera.topic: Image for camera in embodiment.cameras.values()}
        self.relay = Relay(node, {'joint_states': JointState, **topics})
        self.listener = Listener(node, embodiment)
        self.bridge = Bridge(node, embodiment, Kinematics(embodiment), history=8)
        self.peer = Peer(node, process, 'env', RuntimeError)
        self.reset = node.create_client(Reset, 'env/reset')
        self._step = node.create_client(Step, 'env/step')
        self.stop = node.create_publisher(Empty, 'stop', 10)

    def begin(self) -> None:
        """Have the env ready."""
        ready = [self.reset.service_is_ready, self._step.service_is_ready]
        self.peer.wait_until_found(time.monotonic() + 60.0, ready)
        for attempt in range(ATTEMPTS):
            try:
                bring_up([self.peer], 60.0, print)
                return
            except EnvError:  # a busy machine was too slow for it
                if attempt == ATTEMPTS - 1:
                    raise

    def rows(self, phase: float = 0.0) -> np.ndarray:
        """Return the chunk of a motion, from a phase of it in seconds on."""
        first = round(phase * self.embodiment.rate_hz)
        return motion(self.embodiment, first + self._count)[first:]

    def home(self) -> None:
        """Have the arm at rest at home; again where a busy machine held it on the way."""
        for attempt in range(ATTEMPTS):
            try:
                self.peer.call(self.reset, Reset.Request(seed=int(self.random.integers(1000))), 60.0)
                return
            except EnvError:
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(1.0)

    def send(self, rows: Any, *, asynchronous: bool = False) -> Any:
        """Send a chunk; return the future of its answer."""
        chunk = messages.chunk_message(rows, 'qpos', embodiment=self.embodiment.name)
        chunk.asynchronous, chunk.horizon = asynchronous, HORIZON if asynchronous else 0
        return self._step.call_async(Step.Request(chunk=chunk))

    def answer(self, future: Any) -> Any:
        """Wait for an answer."""
        return self.peer.wait(future, PATIENCE_S, 'the step')

    def moment(self) -> None:
        """Wait for a random moment of a motion."""
        time.sleep(float(self.random.uniform(0.3, 0.9)))


def motion(embodiment: Embodiment, count: int) -> np.ndarray:
    """Return rows (H, D) from home on and on, with 60 % of the velocities and of the accelerations."""
    limits = embodiment.arms['arm'].limits
    fastest, strongest = 0.6 * np.array(limits.velocity), 0.6 * np.array(limits.acceleration)
    turn = strongest / fastest
    times = np.arange(1, count + 1)[:, None] / embodiment.rate_hz
    rows = np.tile(np.array(embodiment.home_qpos), (count, 1))
    rows[:, :-1] += UP * fastest / turn * (1 - np.cos(turn * times))
    return rows


@contextlib.contextmanager
def running(folder: Path, embodiment: Embodiment, seed: int) -> Iterator[Bench]:
    """Run the graph for a contract, and yield the bench when it is ready."""
    robot = str(embodiment.path)
    streams = ['joint_states', *(camera.topic for camera in embodiment.cameras.values())]
    mock = NodeSpec('mock', {'embodiment': robot, 'camera_hz': 20.0}).command
    for topic in streams:
        mock += ['-r', f'{topic}:=raw/{topic}']
    env = NodeSpec('env', {'env': 'arm', 'embodiment': robot, 'enabled': True}).command
    with graph_environment() as environment, contextlib.ExitStack() as stack:
        before = dict(os.environ)
        stack.callback(os.environ.update, before)
        stack.callback(os.environ.clear)
        os.environ.update(environment)  # this program is one of the graph's
        processes = []
        for name, command in (('mock', mock), ('env', env)):
            log = stack.enter_context((folder / f'{name}_{embodiment.path.stem}.log').open('wb'))
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            stack.callback(_end, processes[-1])
        node, process = stack.enter_context(spinning('bench'))
        bench = Bench(node, process, embodiment, processes[0], seed)
        bench.begin()
        yield bench


@contextlib.contextmanager
def spinning(name: str) -> Iterator[tuple[Node, Process]]:
    """Yield a node whose executor spins on a thread, and the process that waits look at."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = Node(name, context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    stop = threading.Event()

    def spin() -> None:
        raise_priority()  # streams are not to come late because of who hands them on
        while not stop.is_set():
            executor.spin_once(timeout_sec=0.2)

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield node, Process()
    finally:
        stop.set()
        executor.wake()
        thread.join(5.0)
        node.destroy_node()
        rclpy.shutdown(context=context)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
