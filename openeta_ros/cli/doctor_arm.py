# SPDX-License-Identifier: Apache-2.0
"""`openeta doctor --embodiment`: the checklist for the first run on a new arm."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator

from openeta_ros.cli.checks import Check, tell
from openeta_ros.cli.errors import UsageError

# Two hundredths of a radian show on any arm, and hurt none.
HAIR = 0.02
LARGEST_HAIR = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the checklist."""
    arm = parser.add_argument_group('the first run on a new arm: its topics beside its contract')
    arm.add_argument(
        '--embodiment', metavar='NAME|FILE', help="the arm's contract; its drivers and controllers must run"
    )
    arm.add_argument(
        '--move',
        nargs='?',
        type=float,
        const=HAIR,
        metavar='RAD',
        help='also move each joint by so much and back (default: %(const)g), and each gripper by 1 mm: keep '
        'clear of the arm, with a hand on its emergency stop',
    )
    arm.add_argument(
        '--seconds',
        type=float,
        default=3.0,
        metavar='S',
        help='how long its streams are listened to (default: %(default)g)',
    )
    arm.add_argument(
        '--namespace', default='', metavar='NAME', help='the namespace of its topics (default: none)'
    )


def main(args: argparse.Namespace) -> int:
    """Print the checklist; return 0 when nothing on it failed."""
    from openeta_ros.embodiment import EmbodimentError, load

    if importlib.util.find_spec('rclpy') is None:
        raise UsageError('an arm needs ROS 2 (rclpy does not import): run `make setup` or source one')
    if not args.seconds > 0:
        raise UsageError(f'--seconds must be above 0, not {args.seconds:g}')
    if args.move is not None and not 0 < args.move <= LARGEST_HAIR:
        raise UsageError(f'--move must be above 0 and at most {LARGEST_HAIR:g} rad, not {args.move:g}')
    try:
        load(args.embodiment)
    except EmbodimentError as error:
        raise UsageError(str(error)) from None
    checks = tell(_checks(args), as_json=args.json)
    return 1 if any(check.status == 'failed' for check in checks) else 0


def _checks(args: argparse.Namespace) -> Iterator[Check]:
    """Yield the lines as they come from a process that is a node: this command runs without ROS."""
    from openeta_ros.nodes.graph import shell_environment

    asked = {
        'contract': args.embodiment,
        'namespace': args.namespace,
        'seconds': args.seconds,
        'hair': args.move,
    }
    command = [sys.executable, '-m', 'openeta_ros.nodes.arm_doctor', json.dumps(asked)]
    with subprocess.Popen(
        command, env=shell_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                yield Check(**json.loads(line))
        finally:
            process.terminate()
    if process.returncode > 0:
        yield Check('doctor', 'failed', f'ended with exit code {process.returncode}', 'see above')
