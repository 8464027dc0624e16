# SPDX-License-Identifier: Apache-2.0
"""The measurement of the protocol runs, with every peer that is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_bench_measures_every_pair_side_by_side(tmp_path):
    pytest.importorskip('vector_policy', reason='the peer robotensor-vector-policy is not installed')
    command = [sys.executable, ROOT / 'bench' / 'vector_policy.py', '--short', '--malloc', 'default']
    done = subprocess.run(
        [*command, '--json', tmp_path / 'figures'], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / 'figures').read_text())['default']
    pairs = {'raw socket', 'ours', 'reference', 'ours -> reference', 'reference -> ours'}
    for payload in ('full', 'small'):
        assert {f'{pair}, {transport}' for pair in pairs for transport in ('unix', 'tcp')} <= set(
            figures[payload]
        )
        assert all(0 < row['p50'] <= row['p90'] for row in figures[payload].values())
    assert 'times the raw socket' in done.stdout and 'times as fast as the reference' in done.stdout
