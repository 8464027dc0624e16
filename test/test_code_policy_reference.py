# SPDX-License-Identifier: Apache-2.0
"""docs/reference/code_policy.md names what there is, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from openeta_ros.code_policy import Budgets, CodePolicyStatus
from openeta_ros.code_policy.api import METHODS
from openeta_ros.code_policy.types import ERROR_KINDS

TEXT = (Path(__file__).parents[1] / 'docs/reference/code_policy.md').read_text(encoding='utf-8')


def table(heading: str) -> list[str]:
    """Return the first column of the table below a line."""
    rows = TEXT[TEXT.index(heading) :].split('\n\n')[0].splitlines()[2:]
    return [name for row in rows for name in re.findall(r'`([^`]+)`', row.split('|')[1])]


def test_calls() -> None:
    assert sorted(name.split('(')[0].removeprefix('api.') for name in table('| call | does |')) == sorted(
        METHODS
    )


def test_statuses_and_kinds_of_errors() -> None:
    assert sorted(table('| status | |')) == sorted(status.value for status in CodePolicyStatus)
    assert sorted(table('| kind of error | |')) == sorted(ERROR_KINDS)


def test_budgets_and_their_defaults() -> None:
    units = {'GiB': 1 << 30, 'MiB': 1 << 20, 'KiB': 1 << 10}
    rows = re.findall(r'^\| `(\w+)` \| (\d+)(?: (\w+))? \|', TEXT, re.MULTILINE)
    told = {name: float(number) * units.get(unit, 1) for name, number, unit in rows}
    assert told == {name: float(value) for name, value in Budgets().to_dict().items()}
