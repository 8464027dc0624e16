# SPDX-License-Identifier: Apache-2.0
"""What is printed: whole plain lines into a file, a live line and a table on a terminal."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from point_env import PointEnv, ReplayPolicy, settings
from rich.console import Console

from openeta_ros.episodes import Report, Results, evaluate
from openeta_ros.episodes.report import summary
from openeta_ros.episodes.results import Latency


def printed(output: Path, policy: ReplayPolicy, *, terminal: bool) -> tuple[str, Results]:
    file = io.StringIO()
    with Report(Console(file=file, force_terminal=terminal, width=120), 2) as report:
        results = evaluate(PointEnv(), policy, settings(output), [report])
    report.finished(results)
    return file.getvalue(), results


def test_into_a_file_one_plain_line_per_episode_and_the_closing_lines(tmp_path: Path) -> None:
    text, _ = printed(tmp_path, ReplayPolicy(), terminal=False)
    lines = text.splitlines()
    assert '\x1b' not in text and '\r' not in text
    assert lines[0].startswith('episode 1/2  seed 0  success  step 8  reward 1  policy p50 ')
    assert lines[1].startswith('episode 2/2  seed 1  success  step 8  reward 1  policy p50 ')
    assert 'success rate    100.0 % (2 of 2), 95 % interval 34.2 to 100.0 %' in lines
    assert 'steps           8.0 on average, 8 to 8' in lines
    assert lines[-1] == f'results         {tmp_path / "results.json"}'


def test_a_lost_episode_says_why(tmp_path: Path) -> None:
    text, _ = printed(tmp_path, ReplayPolicy(poison=np.nan), terminal=False)
    assert 'failed  step 0  reward 0' in text
    assert '(not_finite: row 2, joint shoulder_yaw: not finite)' in text
    assert '0.0 % (0 of 2)' in text


def test_on_a_terminal_the_line_is_live_and_the_end_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TERM', 'xterm')
    text, _ = printed(tmp_path, ReplayPolicy(), terminal=True)
    assert '\x1b' in text
    assert 'episode 1/2  seed 0  the policy acts' in text
    assert 'success rate' in text and '│' in text
    # The live line is wiped before the episode's own is printed, and not drawn again after it.
    after = text.partition('episode 1/2  seed 0  success')[2].partition('episode 2/2')[0]
    assert 'the policy acts' not in after


def test_a_slow_first_call_is_told_apart(tmp_path: Path) -> None:
    _, results = printed(tmp_path, ReplayPolicy(), terminal=False)
    slow = results.model_copy(update={'latency_ms': Latency.of([900.0, 2.0, 2.0, 2.0])})
    assert ('first call', '900.0 ms (warm-up; counted above)') in summary(slow)
    even = results.model_copy(update={'latency_ms': Latency.of([2.0, 2.0, 2.0, 2.0])})
    assert 'first call' not in dict(summary(even))
