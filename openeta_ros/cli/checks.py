# SPDX-License-Identifier: Apache-2.0
"""What `openeta doctor` and `openeta check` say: one line for each thing that was looked at."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal['ok', 'warning', 'missing', 'refused', 'failed']

COLOURS = {'ok': 'green', 'warning': 'yellow', 'missing': 'red', 'refused': 'red', 'failed': 'red'}


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, how it is, what was found, and what to do when it is not ok; `log` holds
    the lines of a log that tell more."""

    name: str
    status: Status
    found: str
    remedy: str = ''
    log: str = ''


def tell(checks: Iterable[Check], *, as_json: bool) -> list[Check]:
    """Print each check as soon as it is made, or all of them as JSON; return them."""
    from rich.console import Console

    console = Console()
    made = []
    for check in checks:
        made.append(check)
        if as_json:
            continue
        console.print(f'{check.status:<8}', style=COLOURS[check.status], end='')
        remedy = f' ({check.remedy})' if check.remedy else ''
        lines = [f'{check.name}: {check.found}{remedy}', *check.log.splitlines()]
        console.print('\n    | '.join(lines), markup=False, highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps([asdict(check) for check in made], indent=2))
    return made
