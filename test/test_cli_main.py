# SPDX-License-Identifier: Apache-2.0
"""What the machine refuses is one sentence of the command, whichever verb met it."""

from __future__ import annotations

from pathlib import Path

import pytest

from openeta_ros.cli.main import main
from openeta_ros.nodes import graph


@pytest.fixture
def evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    pytest.importorskip('rclpy')
    monkeypatch.delenv('ROS_DOMAIN_ID', raising=False)
    options = ['--env', 'mujoco', '--task', 'reach', '--embodiment', 'light_arm', '--episodes', '1']
    return ['eval', *options, '--output', str(tmp_path / 'out')]


def test_no_domain_is_left(
    evaluation: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(graph, 'DOMAINS', range(0))
    assert main(evaluation) == 1
    assert capsys.readouterr().err.startswith('openeta eval: all ROS domains of ')


def test_no_process_can_be_started(
    evaluation: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(graph.NodeSpec, 'command', ['/no/such/python'])
    assert main(evaluation) == 1
    assert capsys.readouterr().err == "openeta eval: [Errno 2] No such file or directory: '/no/such/python'\n"
