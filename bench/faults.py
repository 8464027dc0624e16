# SPDX-License-Identifier: Apache-2.0
"""Faults injected while an arm moves: does anything unsafe leave, is each named, is it quiet after a hold?

    python bench/faults.py [--count 200] [--seed 0] [--only 'nan,frozen camera,...']

A mock arm, the env node that drives it, and in between this program, which hands on the mock's streams, sends
chunks, and listens to all commands. Each fault is injected at a random moment of a motion, half of them with
a trajectory controller, half with a forward position controller (100 Hz). What was commanded is what a
controller that follows exactly makes of the messages, at the times at which they were sent; between numbers
that are further apart than 25 ms it stands still, which nobody asked of it, and it sets off from there. Told
are, of each kind: how the env named it, commands after the hold, and the largest step of a row, velocity and
acceleration as shares of the contract's limits. `killed policy` is an evaluation of its
own, whose policy node is killed.

The exit code is 1 when a share is above 1.25 (times of sending are not known better), a fault was not named,
or a command left after a hold.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from arm_faults.graph import Bench, contract, running
from arm_faults.injections import FAULTS, HARMLESS
from arm_faults.policy import killed_policy

INTERFACES = ('joint_trajectory', 'forward_position')
TOLERANCE = 1.25
# So long nothing may come after a hold.
QUIET_S = 0.4
KILLED_POLICY = 'killed policy'


@dataclass
class Outcome:
    """What came of one fault.

    `named` is how the env named it ('' when it did not), `holds` whether that ends motion, `after` how many
    commands came then; `shares` are the largest step, velocity and acceleration.
    """

    fault: str
    named: str = ''
    holds: bool = False
    after: int = 0
    shares: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def good(self) -> bool:
        """Whether all is as it should be."""
        named = bool(self.named) or self.fault in HARMLESS
        return named and not self.after and max(self.shares) <= TOLERANCE


def main() -> int:
    """Inject, and tell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--count', type=int, default=200, help='how many faults')
    parser.add_argument('--seed', type=int, default=0, help='of the moments and values')
    parser.add_argument('--only', default=','.join([*FAULTS, KILLED_POLICY]), help='kinds, with commas')
    arguments = parser.parse_args()
    kinds = arguments.only.split(',')
    unknown = set(kinds) - {*FAULTS, KILLED_POLICY}
    if unknown:
        parser.error(f'there are no faults {", ".join(sorted(unknown))}')
    outcomes = []
    for outcome in inject(kinds, arguments.count, arguments.seed):
        outcomes.append(outcome)
        if not outcome.good:
            print(f'  not good: {outcome}', flush=True)
    print(table(outcomes))
    return 0 if all(outcome.good for outcome in outcomes) else 1


def inject(kinds: list[str], count: int, seed: int, *, patient: bool = False) -> Iterator[Outcome]:
    """Inject `count` faults, the kinds in turn, half of them with each controller; `patient`: on a machine
    that does much else."""
    live = [kind for kind in kinds if kind in FAULTS]
    evaluations = max(1, count // 50) if KILLED_POLICY in kinds else 0
    shares = (
        [(count - evaluations) // 2, count - evaluations - (count - evaluations) // 2] if live else [0, 0]
    )
    with tempfile.TemporaryDirectory() as name:
        for interface, share in zip(INTERFACES, shares, strict=True):
            if not share:
                continue
            robot = contract(Path(name), interface, patient=patient)
            with running(Path(name), robot, seed) as bench:
                for index in range(share):
                    yield one(bench, live[index % len(live)])
        for index in range(evaluations):
            robot = contract(Path(name), INTERFACES[index % 2])
            named, after, path_shares = killed_policy(Path(name) / f'policy{index}', robot)
            yield Outcome(KILLED_POLICY, named, True, after, path_shares)


def one(bench: Bench, fault: str) -> Outcome:
    """Inject one fault into one motion."""
    bench.home()
    begin_ns, before = time.time_ns(), bench.bridge.condition_counts()
    try:
        answer = FAULTS[fault](bench)
    finally:
        bench.relay.heal()
    ended_ns = time.time_ns()
    failure = answer.failure
    events = [event for row in answer.results for event in row.events]
    clamped = {joint for row in answer.results for joint in row.clamped}
    conditions = ', '.join(bench.bridge.condition_counts() - before)
    named = failure.kind or '; '.join(events) or conditions or ('blended' if clamped else '')
    outcome = Outcome(fault, named)
    outcome.holds = failure.source == 'env'
    time.sleep(QUIET_S)
    if outcome.holds:
        outcome.after = len(bench.listener.since(ended_ns))
    outcome.shares = bench.listener.shares_since(begin_ns, ended=outcome.holds)
    return outcome


def table(outcomes: list[Outcome]) -> str:
    """Return a line for each kind, and one for all."""
    kinds = list(dict.fromkeys(outcome.fault for outcome in outcomes))
    rows = [('fault', 'times', 'good', 'after', 'step', 'velocity', 'accel.', 'named')]
    for kind in [*kinds, '']:
        own = [outcome for outcome in outcomes if kind in ('', outcome.fault)]
        largest = [f'{max(outcome.shares[index] for outcome in own):.2f}' for index in range(3)]
        names = Counter(outcome.named or 'nothing' for outcome in own) if kind else {}
        told = ', '.join(f'{name} {times}' for name, times in names.items())
        good = sum(outcome.good for outcome in own)
        after = sum(outcome.after for outcome in own)
        rows.append((kind or 'all', str(len(own)), str(good), str(after), *largest, told))
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    return '\n'.join(
        '  '.join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:7], widths[1:], strict=True)),
                row[7],
            ]
        )
        for row in rows
    )


if __name__ == '__main__':
    sys.exit(main())
