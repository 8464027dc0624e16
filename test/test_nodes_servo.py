# SPDX-License-Identifier: Apache-2.0
"""The process that commands forward controllers, killed or frozen: the env node knows, and does not wait."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arm_fakes import PERIOD_S, arm_contract, ramp
from ros_graph import environment, spinning, wait_until
from std_msgs.msg import Float64MultiArray

from openeta_ros.control import ActionPipeline, ChunkSchedule
from openeta_ros.embodiment import Kinematics
from openeta_ros.envs import EnvError
from openeta_ros.nodes.servo import RemoteFollower

TOPIC, GRIPPER = 'arm_controller/commands', 'gripper_controller/commands'
WATCHDOG_S = 1.0
SPEED = 0.8  # of the ramp, in its middle


class Rig:
    """The process, a path that it follows, and who hears what it sends, and when."""

    def __init__(self, node: Any, folder: Path) -> None:
        embodiment = arm_contract(folder, watchdog_s=WATCHDOG_S)
        self.sent: list[tuple[int, list[float]]] = []
        node.create_subscription(Float64MultiArray, TOPIC, self._hear, 1000)
        node.create_subscription(Float64MultiArray, GRIPPER, lambda message: None, 10)
        pipeline = ActionPipeline(embodiment, Kinematics(embodiment))
        self.schedule = ChunkSchedule(pipeline)
        self.follower = RemoteFollower(
            embodiment,
            self.schedule.joints,
            period_s=PERIOD_S,
            namespace='/',
            name='env_servo',
            arguments=(),
        )
        self.pid = self.follower._process.pid
        self.wait(lambda: not self.follower.unheard)
        now_s = time.monotonic()
        self.schedule.start(embodiment.home_qpos, now_s)
        self.schedule.add(ramp(embodiment, 60), 'qpos', self.schedule.observe(now_s), now_s)
        self.follower.take(self.schedule.path())
        self.wait(lambda: self.sent and self.sent[-1][1][0] - self.sent[0][1][0] > 0.1)

    def _hear(self, message: Any, info: Any) -> None:
        self.sent.append((int(info['source_timestamp']), list(message.data)))

    def wait(self, condition: Any) -> None:
        """Give signs of life until something is so."""

        def so() -> bool:
            self.follower.beat(time.monotonic(), {})
            return bool(condition())

        wait_until(so, 60.0)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with environment(), spinning('tester') as (node, _):
        made = Rig(node, tmp_path)
        yield made
        made.follower.close()


def test_killed_it_is_told_once_and_then_left_alone(rig: Rig) -> None:
    os.kill(rig.pid, signal.SIGKILL)
    with pytest.raises(EnvError, match='the process that sends commands has ended') as told:
        rig.wait(lambda: False)
    assert told.value.kind == 'fault'
    assert rig.follower.gone and rig.follower.closed
    rig.follower.beat(time.monotonic(), {})  # what still works goes on
    rig.follower.brake(time.monotonic())


def test_frozen_it_is_lost_first_and_given_up_in_the_end(rig: Rig) -> None:
    os.kill(rig.pid, signal.SIGSTOP)
    rig.wait(lambda: rig.follower.lost)
    assert not rig.follower.gone
    with pytest.raises(EnvError, match='answers no more'):
        rig.wait(lambda: False)
    rig.follower._process.wait(20.0)


def test_frozen_for_a_moment_it_sets_off_again_within_the_limits(rig: Rig) -> None:
    os.kill(rig.pid, signal.SIGSTOP)
    count = -1
    while count != len(rig.sent):
        count = len(rig.sent)
        rig.follower.beat(time.monotonic(), {})
        time.sleep(0.1)
    os.kill(rig.pid, signal.SIGCONT)
    rig.wait(lambda: len(rig.sent) > count + 50)
    values = np.array([row for _, row in rig.sent[count - 1 :]])[:, 0]
    if not rig.follower.lost:  # a busy machine may have let it sleep for longer than the watchdog's time
        assert rig.follower.lag_s >= 0.1
    # At once as fast as before, it would have gone on by twice as much at least.
    assert 0 <= values[4] - values[0] < 2 * PERIOD_S * SPEED
    assert np.diff(values).max() <= 2.1 * PERIOD_S * SPEED  # one of a hundred a second may be lost on its way
