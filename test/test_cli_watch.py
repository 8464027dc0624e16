# SPDX-License-Identifier: Apache-2.0
"""`openeta watch`: what it says of a graph is what goes on there."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ros_graph import environment
from test_nodes_policy import echo

from openeta_msgs.msg import ArmStatus, RecorderStatus, StepResult
from openeta_ros.cli.main import main
from openeta_ros.episodes import Demonstration
from openeta_ros.nodes.graph import claimed_domains
from openeta_ros.vector_policy import PolicyUnavailable

# For what is sure to happen, however busy the machine is.
SURE_S = 240.0


@contextlib.contextmanager
def watching(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, '-m', 'openeta_ros.cli', 'watch', *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def until(process: subprocess.Popen[str], good: Any, again: Callable[[], None]) -> dict[str, Any]:
    """Do something again and again, and read lines, until one is good."""
    deadline = time.monotonic() + SURE_S
    assert process.stdout is not None
    while time.monotonic() < deadline:
        again()
        found: dict[str, Any] = json.loads(process.stdout.readline())
        if good(found):
            return found
    raise AssertionError(f'it was not seen in time; the last was {found}')


def test_streams_policy_arm_and_episode_are_seen(tmp_path: Path) -> None:
    with echo(tmp_path) as (node, _, policy, robot), watching('--json', '--period', '0.2') as watch:
        rows = node.create_publisher(StepResult, 'env/step_result', 10)
        arm = node.create_publisher(ArmStatus, 'env/status', 10)
        recorder = node.create_publisher(RecorderStatus, 'recorder/status', 10)
        policy.reset(5)
        policy.set_demonstration(Demonstration({'actions': np.ones((2, 3))}, {}))

        def tell() -> None:
            """Do all there is to see, which who is not found yet misses."""
            with contextlib.suppress(PolicyUnavailable):
                policy.act(robot.moment(1))
            for step in (1, 2):
                rows.publish(StepResult(step=step, reward=0.5, success=step == 2, clamped=['elbow']))
            recorder.publish(
                RecorderStatus(recording=True, path='bags/1', messages=7, troubles=['the disk is full'])
            )
            arm.publish(
                ArmStatus(state='holding', reason='the camera is late', joint='elbow', tracking_error=0.2)
            )

        seen = until(
            watch,
            lambda found: (
                found['arm']
                and (found['episode'] or {}).get('step') == 2
                and found['episode']['reward'] == 1.0
                and found['chunk']
                and found['recorder']
                and any('calls' in one['values'] for one in found['statuses'])
            ),
            tell,
        )
        assert (seen['arm']['state'], seen['arm']['reason']) == ('holding', 'the camera is late')
        assert seen['episode']['success']
        assert seen['chunk']['shape'] == [1, 10] and seen['chunk']['action_type'] == 'qpos'
        assert seen['recorder']['messages'] == 7
        names = {one['name'] for one in seen['statuses']}
        assert {'policy: policy', 'policy: camera top (topic camera/top/image_raw)'} <= names
        watch.send_signal(signal.SIGINT)
        _, errors = watch.communicate(timeout=SURE_S)
        assert watch.returncode == 0 and errors == ''
        check_picture(seen)


def check_picture(seen: dict[str, Any]) -> None:
    """What is drawn of it has everything that matters."""
    from rich.console import Console

    from openeta_ros.nodes.watch import drawn

    text = io.StringIO()
    Console(file=text, width=160).print(drawn(seen))
    for words in (
        'holding',
        'the camera is late',
        'elbow is 0.2000 from',
        'step 2, reward 1, success',
        '1 x 10 qpos',
        'bags/1: 7 messages',
        'the disk is full',
    ):
        assert words in text.getvalue()


def test_the_domain_of_the_evaluation_that_runs_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv('TMPDIR', str(tmp_path))  # other tests have domains too
    monkeypatch.setattr('tempfile.tempdir', None)
    with environment():
        domain = int(os.environ['ROS_DOMAIN_ID'])
        assert claimed_domains() == [domain]
        with environment():
            assert len(claimed_domains()) == 2
            monkeypatch.delenv('ROS_DOMAIN_ID')
            assert main(['watch']) == 2
            assert f'{domain}' in capsys.readouterr().err
    assert claimed_domains() == []


def test_a_period_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['watch', '--period', '0']) == 2
    assert '--period must be between' in capsys.readouterr().err
