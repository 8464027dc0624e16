# SPDX-License-Identifier: Apache-2.0
"""The launch files under the real launch, where there is one: they run, end, and tell by their exit code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip('launch_ros.actions')

from openeta_ros.nodes.graph import graph_environment
from openeta_ros.nodes.launching import arguments, default_text

LAUNCH = Path(__file__).parents[2] / 'launch'
# What `ros2 launch FILE NAME:=VALUE...` does, without ros2cli.
RUN = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
service = LaunchService()
given = [argument.split(':=') for argument in sys.argv[2:]]
source = PythonLaunchDescriptionSource(sys.argv[1])
included = IncludeLaunchDescription(source, launch_arguments=given)
service.include_launch_description(LaunchDescription([included]))
sys.exit(service.run())
"""


class Launched:
    """One launch, in a domain of its own."""

    def __init__(self, file: str, *given: str) -> None:
        self._claimed = contextlib.ExitStack()
        environment = self._claimed.enter_context(graph_environment())
        self.process = subprocess.Popen(
            [sys.executable, '-c', RUN, str(LAUNCH / file), *given],
            env={'MUJOCO_GL': 'egl', **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end(self) -> tuple[int, str]:
        with self._claimed:
            output, _ = self.process.communicate(timeout=90.0)
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)
        return self.process.returncode, output


QUICK = ['env:=mujoco', 'task:=reach', 'embodiment:=light_arm']


def test_arguments_and_defaults_are_declared() -> None:
    from launch.actions import DeclareLaunchArgument

    from launch import LaunchContext
    from openeta_ros.nodes.launching import description

    declared = [
        entity
        for entity in description(['env', 'policy', 'eval']).entities
        if isinstance(entity, DeclareLaunchArgument)
    ]
    context = LaunchContext()
    found = {
        argument.name: (
            ''.join(text.perform(context) for text in argument.default_value),
            argument.description,
        )
        for argument in declared
    }
    expected = arguments(['env', 'policy', 'eval'])
    assert found == {entry.name: (default_text(entry.default), entry.description) for entry in expected}


def test_an_evaluation_runs_and_everything_ends_with_it(tmp_path: Path) -> None:
    code, output = Launched('eval.launch.py', *QUICK, 'episodes:=2', f'output:={tmp_path}').end()
    assert code == 0, output
    results = json.loads((tmp_path / 'results.json').read_text())
    assert [episode['success'] for episode in results['episodes']] == [True, True]


def test_an_evaluation_that_is_not_carried_out_ends_with_an_error(tmp_path: Path) -> None:
    code, output = Launched('eval.launch.py', *QUICK, 'task:=fold_laundry', f'output:={tmp_path}').end()
    assert code != 0
    assert 'fold_laundry' in output and 'Traceback' not in output


def test_ctrl_c_ends_the_launch_without_a_traceback(tmp_path: Path) -> None:
    launched = Launched('eval.launch.py', *QUICK, 'episodes:=500', f'output:={tmp_path}')
    while not (tmp_path / 'results.json').exists():
        assert launched.process.poll() is None
        time.sleep(0.05)
    launched.process.send_signal(signal.SIGINT)
    _, output = launched.end()
    assert 'Traceback' not in output
    assert json.loads((tmp_path / 'results.json').read_text())['status'] == 'interrupted'
