# SPDX-License-Identifier: Apache-2.0
"""The example agent: each snippet is written from what came of the ones before, until the task is solved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / 'examples/agent_loop/agent_loop.py'


def remembered(folder: Path) -> list[dict[str, Any]]:
    context = json.loads((folder / 'request.json').read_text())['policy_context']
    assert len(context) == 7
    memory = context['memory']
    assert isinstance(memory, list)
    return memory


def test_two_wrong_snippets_are_read_about_and_the_third_solves_the_task(tmp_path: Path) -> None:
    pytest.importorskip('mujoco')
    done = subprocess.run(
        [sys.executable, SCRIPT, '--seed', '2', '--output', tmp_path, '--no-strict'],
        env={**os.environ, 'MUJOCO_GL': 'egl'},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'solved in turn 3' in done.stdout
    assert remembered(tmp_path / 'turn_1') == []
    [first] = remembered(tmp_path / 'turn_2')
    assert first['status'] == 'failed'
    assert 'at line 2' in first['content'] and "KeyError: 'position'" in first['content']
    assert "cube['position']" in first['code']
    again, second = remembered(tmp_path / 'turn_3')
    assert again == first
    assert second['error']['kind'] == 'action' and 'between 0.01 and 1' in second['content']
    assert any(checkpoint['label'] == 'above the cube' for checkpoint in second['checkpoints'])
    result = json.loads((tmp_path / 'turn_3/result.json').read_text())
    assert result['details']['success'] is True
    assert (tmp_path / 'turn_3/episodes/0/front.mp4').stat().st_size > 0
