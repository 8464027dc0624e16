# SPDX-License-Identifier: Apache-2.0
"""An arm on the graph, seen from outside: what leaves for its controllers, and when it was sent.

Messages come late on a busy machine, and some of a hundred a second are lost: so nothing here goes by when
something came, but by the times at which it was sent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from arm_fakes import ACCELERATION, PERIOD_S, VELOCITY
from rclpy.node import Node
from ros_graph import wait_until
from std_msgs.msg import Float64MultiArray

from openeta_ros.embodiment import Embodiment
from openeta_ros.nodes.arm_env import ArmEnv
from openeta_ros.observation import MissingStream

TOPIC = 'arm_controller/commands'
# Longer than a busy machine makes streams and threads wait, and farther than an arm moves meanwhile.
PATIENT = {'watchdog_s': 5.0, 'max_tracking_error_rad': 3.0}
# An arm that is commanded nothing new for so long rests; what is on its way for longer is told by its time.
QUIET_S = 0.5
NS_PER_S = 1_000_000_000


class Commanded:
    """All positions that were commanded, with the times at which they were sent."""

    def __init__(self, node: Node, topic: str = TOPIC) -> None:
        self._heard: list[tuple[int, list[float]]] = []
        node.create_subscription(Float64MultiArray, topic, self._hear, 1000)

    def __len__(self) -> int:
        return len(self._heard)

    @property
    def values(self) -> np.ndarray:
        """Positions (N, J)."""
        return np.array([values for _, values in self._heard])

    def turned(self, until_ns: int | None = None) -> float:
        """Return how far the first joint was commanded to turn, by what was sent until a time."""
        sent = [values for at_ns, values in list(self._heard) if until_ns is None or at_ns <= until_ns]
        return abs(sent[-1][0] - sent[0][0]) if sent else 0.0

    def assert_comes_to_rest(self, *, silent: bool = True) -> None:
        """Wait until the arm is commanded to rest; assert that it was inside its limits all the time.

        `silent`: nothing at all is sent from then on; else it may all say the same.
        """

        def rests() -> bool:
            count = len(self)
            time.sleep(QUIET_S)
            heard = list(self._heard)
            if count < 2:
                return False
            if silent:
                steps, gaps_s = _steps(heard[-2:])
                return len(heard) == count and bool(steps[0] <= 2e-3 + ACCELERATION * gaps_s[0] ** 2 / 2)
            return all(values == heard[count - 1][1] for _, values in heard[count:])

        wait_until(rests, 120.0)
        rested_ns = time.time_ns()
        time.sleep(QUIET_S)
        heard = list(self._heard)
        if silent:
            assert not [values for at_ns, values in heard if at_ns > rested_ns]
        steps, gaps_s = _steps(heard)
        # What is sent a period late, after what was on time, is two of them further on.
        assert (steps <= (gaps_s + 2.1 * PERIOD_S) * VELOCITY).all()

    def _hear(self, message: Any, info: Any) -> None:
        self._heard.append((int(info['source_timestamp']), list(message.data)))


def _steps(heard: Sequence[tuple[int, list[float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Return how far the joint that moves most was commanded to move from each to the next, in what time."""
    steps = np.abs(np.diff([values for _, values in heard], axis=0)).max(axis=1)
    return steps, np.diff([at_ns for at_ns, _ in heard]) / NS_PER_S


def swing(embodiment: Embodiment, rows: int = 400) -> np.ndarray:
    """Return rows (H, D) from home that turn the first joint there and back, for long enough that whatever is
    to happen meanwhile does: twenty seconds."""
    actions = np.repeat(embodiment.home_qpos[None], rows, axis=0)
    actions[:, 0] += 0.4 * (1 - np.cos(1.5 * np.arange(1, rows + 1) / embodiment.rate_hz))
    return actions


def wait_for_streams(env: ArmEnv) -> None:
    """Wait until the drivers' streams come: a busy machine takes long to start a mock."""

    def come() -> bool:
        try:
            env._bridge.wait_for(0, 1.0)
        except MissingStream:
            return False
        return True

    wait_until(come, 120.0)


class Background:
    """Something that is done on a thread while the test goes on; what it raises is raised at its end."""

    def __init__(self, job: Any) -> None:
        self._error: BaseException | None = None

        def run() -> None:
            try:
                job()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(120.0)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
