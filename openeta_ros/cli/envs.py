# SPDX-License-Identifier: Apache-2.0
"""`openeta envs`: what can be evaluated in, here."""

from __future__ import annotations

import argparse
import json

HELP = 'list the envs, their tasks, and what is missing for those that cannot run here; and the embodiments'

EPILOG = """\
example:
  openeta envs --json | python -m json.tool
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta envs`."""
    parser.add_argument('--json', action='store_true', help='print JSON instead of a table')


def main(args: argparse.Namespace) -> int:
    """Print the table; always 0."""
    from openeta_ros.embodiment import available
    from openeta_ros.envs import EnvError, registry

    rows = []
    for name in registry.names():
        row: dict[str, object] = {'env': name, 'summary': '', 'tasks': [], 'missing': registry.missing(name)}
        try:
            known = registry.kind(name)
        except EnvError:  # another package's, which does not import: `missing` says why
            pass
        else:
            row |= {'summary': known.summary, 'tasks': list(known.tasks)}
        rows.append(row)
    embodiments = available()
    if args.json:
        print(json.dumps({'envs': rows, 'embodiments': embodiments}, indent=2))
    else:
        _print_table(rows, embodiments)
    return 0


def _print_table(rows: list[dict[str, object]], embodiments: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        for row in rows:
            print(f'{row["env"]}: {row["summary"]}; tasks {_tasks(row)}; {row["missing"] or "ready"}')
    else:
        table = Table()
        for title in ('env', 'what it is', 'tasks', 'here'):
            table.add_column(title)
        for row in rows:
            state = Text(str(row['missing']), 'yellow') if row['missing'] else Text('ready', 'green')
            table.add_row(Text(str(row['env'])), Text(str(row['summary'])), Text(_tasks(row)), state)
        console.print(table)
    print(f'embodiments: {", ".join(embodiments)}')


def _tasks(row: dict[str, object]) -> str:
    tasks = row['tasks']
    assert isinstance(tasks, list)
    return ', '.join(tasks)
