# SPDX-License-Identifier: Apache-2.0
"""A few of the faults of bench/faults.py: named, quiet after a hold, and nothing beyond the limits."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip('rclpy')

BENCH = str(Path(__file__).parents[1] / 'bench')
FAULTS = {
    'nan': ('not_finite',),
    'jump of 180 degrees': ('step', 'limit'),
    'wrong width': ('shape',),
    'frozen camera': ('stale_camera',),
    'killed bridge': ('stale_',),
    'stop topic': ('stop',),
}
# What a busy machine is named for.
BUSY = ('stale_', 'late', 'tracking', 'no_observation')
# Of the limits, by the times of sending: those of a busy machine are off by tens of milliseconds. A leap is
# ten times beyond; to the hundredth the limits are looked at in test_arm_guard and test_arm_late.
TOLERANCE = 2.5


@pytest.mark.slow
def test_faults_are_named_and_nothing_unsafe_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    import faults

    outcomes = list(faults.inject(list(FAULTS), 2 * len(FAULTS), seed=1, patient=True))
    assert len(outcomes) == 2 * len(FAULTS)
    told = faults.table(outcomes)
    # On a busy machine a stream may fall silent before the fault comes: then that is what is named.
    for outcome in outcomes:
        assert outcome.named.startswith((*FAULTS[outcome.fault], *BUSY)), told
        assert outcome.after == 0, told
        assert max(outcome.shares) <= TOLERANCE, told


def test_the_table_counts_what_is_good_and_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    import faults

    good = faults.Outcome('nan', 'not_finite', shares=(0.5, 0.5, 1.0))
    unnamed = faults.Outcome('nan', shares=(0.5, 0.5, 1.0))
    beyond = faults.Outcome('late chunk', 'late', shares=(0.5, 1.5, 1.0))
    told = faults.Outcome('late chunk', 'late', holds=True, after=1)
    assert [one.good for one in (good, unnamed, beyond, told)] == [True, False, False, False]
    lines = faults.table([good, unnamed, beyond, told]).splitlines()
    assert lines[1].split()[:4] == ['nan', '2', '1', '0'] and lines[1].endswith('not_finite 1, nothing 1')
    assert lines[-1].split()[:7] == ['all', '4', '1', '1', '0.50', '1.50', '1.00']
