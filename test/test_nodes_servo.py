# SPDX-License-Identifier: Apache-2.0
"""The process that commands forward controllers, killed or frozen: the env node knows, and does not wait."""

from __future__ import annotations

import math
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
from openeta_ros.nodes import servo
from openeta_ros.nodes.servo import RemoteFollower

TOPIC, GRIPPER = 'arm_controller/commands', 'gripper_controller/commands'
WATCHDOG_S = 3.0
SPEED = 0.8  # of the ramp, in its middle
NS_PER_S = 1_000_000_000


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

    def freeze(self) -> int:
        """Stop the process, and return the time (ns) from which on it stands still."""
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: Path(f'/proc/{self.pid}/stat').read_text().rpartition(')')[2].split()[0] == 'T')
        return time.time_ns()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(servo, 'GONE_S', math.inf)  # until a test has it otherwise
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


def test_frozen_it_is_lost_first_and_given_up_in_the_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.freeze()
    rig.wait(lambda: rig.follower.lost)
    assert not rig.follower.gone
    monkeypatch.setattr(servo, 'GONE_S', WATCHDOG_S)
    with pytest.raises(EnvError, match='answers no more'):
        rig.wait(lambda: False)
    assert rig.follower._process.wait(60.0) == -signal.SIGKILL


def test_frozen_for_a_moment_it_sets_off_again_within_the_limits(rig: Rig) -> None:
    frozen_ns = rig.freeze()
    end_ns = frozen_ns + NS_PER_S // 4
    rig.wait(lambda: time.time_ns() > end_ns)
    os.kill(rig.pid, signal.SIGCONT)
    rig.wait(lambda: len([at_ns for at_ns, _ in rig.sent if at_ns > frozen_ns]) > 50)
    sent = [(at_ns, values[0]) for at_ns, values in rig.sent]
    before = max(one for one in sent if one[0] <= frozen_ns)
    after = [one for one in sent if one[0] > frozen_ns]
    if not rig.follower.lost:  # a busy machine may have let it sleep for longer than the watchdog's time
        assert rig.follower.lag_s >= 0.2
    # At once as fast as before, it would have gone on by twice as much at least.
    soon = [value for at_ns, value in after if at_ns <= after[0][0] + 4 * PERIOD_S * NS_PER_S]
    assert 0 <= soon[-1] - before[1] < 2 * PERIOD_S * SPEED
    # What is sent late, after what was on time, is two periods further on.
    times_s, values = np.array([at_ns for at_ns, _ in after]) / NS_PER_S, np.array([one for _, one in after])
    assert (np.diff(values) <= (np.diff(times_s) + 2.1 * PERIOD_S) * SPEED).all()
