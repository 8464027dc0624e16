# SPDX-License-Identifier: Apache-2.0
"""What a run has used of its budgets, and the one way in which it is stopped."""

from __future__ import annotations

from collections.abc import Callable

from openeta_ros.code_policy.types import Budgets

#: What is counted call by call; the others are limits of the process.
COUNTED = ('calls', 'rows', 'resets', 'checkpoints', 'sent_bytes')
#: The kind of error that is of another budget than its own name.
KINDS = {'checkpoints': 'calls', 'sent_bytes': 'output'}


class Stop(Exception):
    """The run is over; `kind` is one of `ERROR_KINDS`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Meter:
    """Counts what is used. `check` raises Stop when the run is to end: it is called before calls and between
    rows."""

    def __init__(self, budgets: Budgets, check: Callable[[], None] = lambda: None) -> None:
        self.budgets = budgets
        self.check = check
        self.used = dict.fromkeys(COUNTED, 0)

    def spend(self, what: str, count: int) -> None:
        """Count; refuse what would go beyond the budget, before any of it is done.

        Raises:
            Stop: of the kind that is spent, or that `KINDS` names for it.
        """
        limit = getattr(self.budgets, what)
        if self.used[what] + count > limit:
            asked = f'{count} more were asked for' if count > 1 else 'one more was asked for'
            raise Stop(
                KINDS.get(what, what),
                f'the budget of {limit} {what} is used up ({self.used[what]} used; {asked})',
            )
        self.used[what] += count
