# SPDX-License-Identifier: Apache-2.0
"""Who reads what `openeta eval` prints goes away: the evaluation ends, and its graph with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('rclpy')


def test_an_evaluation_ends_when_nobody_reads_what_it_tells(tmp_path: Path) -> None:
    options = ['--env', 'mujoco', '--task', 'reach', '--embodiment', 'light_arm', '--episodes', '1']
    command = [sys.executable, '-m', 'openeta_ros.cli', 'eval', *options, '--output', str(tmp_path / 'out')]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        run = subprocess.run(command, stdout=writing, stderr=writing, timeout=300)
    finally:
        os.close(writing)
    assert run.returncode != 0
