# SPDX-License-Identifier: Apache-2.0
"""The measurement of the protocol runs, with every peer that is installed."""

from __future__ import annotations

import importlib.util
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[1] / 'bench' / 'vector_policy.py'


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip('vector_policy', reason='the peer robotensor-vector-policy is not installed')
    monkeypatch.setattr(sys, 'path', ['', *sys.path])  # of which it takes the first for its own folder
    spec = importlib.util.spec_from_file_location('bench_of_vector_policy', FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pair_is_measured(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = dict(zip(bench.TRANSPORTS, (['unix'], ['tcp']) * len(bench.TRANSPORTS), strict=False))
    monkeypatch.setattr(bench, 'TRANSPORTS', pairs)
    figures = bench.measure('small', 'default', rounds=1, calls=2)
    wanted = {f'{pair}, {transport}' for pair, [transport] in pairs.items() if pair != 'openpi-client'}
    assert wanted <= set(figures)
    assert all(0 < row['p50'] <= row['p90'] for row in figures.values())


def test_the_figures_are_told_side_by_side(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    milliseconds = {'raw socket': 1.0, 'ours': 2.0, 'reference': 6.0}
    rows = {
        f'{pair}, {transport}': {'p50': milliseconds.get(pair, 3.0), 'p90': 4.0}
        for pair in ('raw socket', *bench.PAIRS)
        for transport in ('unix', 'tcp')
    }
    bench.report('default', {'full': rows, 'small': rows})
    told = capsys.readouterr().out
    assert 'full, tcp: 2.00 times the raw socket; 3.0 times as fast as the reference' in told


def test_a_port_that_a_server_is_told_is_given_to_nobody_else_before_it_listens(bench: ModuleType) -> None:
    with bench.address('tcp', '/nowhere') as where:
        host, _, port = where.rpartition(':')
        with socket.socket() as other, pytest.raises(OSError, match='in use'):
            other.bind((host, int(port)))
        with socket.create_server((host, int(port))), bench.connect(where):
            pass
