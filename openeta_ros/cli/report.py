# SPDX-License-Identifier: Apache-2.0
"""`openeta report`: report.html of an evaluation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from openeta_ros.cli.errors import UsageError

HELP = 'make report.html of an evaluation: success, videos, plots'

EPILOG = """\
example:
  openeta report results/2025-01-01
      `openeta eval` has made it already; this makes it anew, also of an evaluation that was interrupted

exit code:
  0 it was written; 1 it could not be; 2 it was asked for wrongly.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta report`."""
    parser.add_argument('folder', metavar='DIR', help='the output directory of an evaluation')


def main(args: argparse.Namespace) -> int:
    """Write the page, say where it is, return the exit code."""
    from pydantic import ValidationError

    from openeta_ros.episodes import results
    from openeta_ros.episodes.page import write_page

    folder = Path(args.folder)
    file = folder / results.FILENAME
    if not file.is_file():
        raise UsageError(f'{folder} holds no {results.FILENAME}; name the output directory of an evaluation')
    try:
        path = write_page(results.read(file), folder)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = '.'.join(map(str, first['loc'])) + ': ' if first['loc'] else ''
        print(f'openeta report: {file} cannot be read: {where}{first["msg"]}', file=sys.stderr)
        return 1
    except OSError as error:
        print(f'openeta report: {error}', file=sys.stderr)
        return 1
    print(f'written to {path}')
    return 0
