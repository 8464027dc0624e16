# SPDX-License-Identifier: Apache-2.0
"""Who reads what `openeta eval` prints goes away: the evaluation ends, and its graph with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_cli_eval import QUICK, SURE_S, Run

pytest.importorskip('rclpy')


def test_an_evaluation_ends_when_nobody_reads_what_it_tells(tmp_path: Path) -> None:
    run = Run(tmp_path / 'out', *QUICK, '--transport', 'ros', '--episodes', '50')
    assert run.process.stdout is not None and run.process.stderr is not None
    run.process.stdout.close()
    run.process.stderr.close()
    assert run.process.wait(SURE_S) != 0
    assert run.left_behind() == []
    assert run.output.is_dir()  # it had begun
