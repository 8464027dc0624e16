# SPDX-License-Identifier: Apache-2.0
"""The `openeta` command.

Exit codes: 0 it was done; 1 it could not be done; 2 it was asked for wrongly (nothing was started);
128 + n it was stopped by signal n (130 by Ctrl-C).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from openeta_ros.cli.errors import UsageError
from openeta_ros.cli.signals import stop_on_signals

# Each is a module here, imported when Ctrl-C is looked out for: else it would be a traceback from an import.
VERBS = (
    'eval',
    'check',
    'serve',
    'record',
    'replay',
    'report',
    'show',
    'demonstration',
    'export',
    'repair',
    'run-snippet',
    'watch',
    'envs',
    'doctor',
)


class _Parser(argparse.ArgumentParser):
    """Says in one sentence what is wrong, without the usage of two dozen arguments before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f'{self.prog}: {message} (see {self.prog} --help)\n')


def main(argv: Sequence[str] | None = None) -> int:
    """Run `openeta` with these arguments (the process's own when None) and return its exit code."""
    asked = 'openeta'
    try:
        with stop_on_signals():
            args = _parser().parse_args(argv)
            asked = f'openeta {args.verb}'
            code = int(_module(args.verb).main(args))
            sys.stdout.flush()  # here, where it is known what to do when nobody reads any more
            return code
    except UsageError as error:
        print(f'{asked}: {error}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except ImportError as error:  # a module in C makes one of what a signal raised while it was imported
        if isinstance(error.__cause__, SystemExit):
            return int(error.__cause__.code or 0)
        if isinstance(error.__cause__, KeyboardInterrupt):
            return 130
        raise
    except BrokenPipeError:
        # Who read our output left (`openeta envs | head`): nothing is wrong, and nobody is there to be told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, no more processes: it names what it is of
        print(f'{asked}: {error}', file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog='openeta',
        description='Evaluate robot policies in simulators over ROS 2.',
        epilog='`openeta VERB --help` tells more, with an example.',
    )
    verbs = parser.add_subparsers(dest='verb', metavar='VERB', required=True)
    for name in VERBS:
        verb = _module(name)
        sub = verbs.add_parser(
            name,
            help=verb.HELP,
            description=verb.HELP[0].upper() + verb.HELP[1:] + '.',
            epilog=verb.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_arguments(sub)
    return parser


def _module(verb: str) -> Any:
    return importlib.import_module(f'openeta_ros.cli.{verb.replace("-", "_")}')
