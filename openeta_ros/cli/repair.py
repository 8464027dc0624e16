# SPDX-License-Identifier: Apache-2.0
"""`openeta repair`: a broken recording to one that every player opens."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from openeta_ros.cli.errors import UsageError

HELP = 'repair a broken recording: its index is made anew, what is whole is kept, what is lost is told'

EPILOG = """\
examples:
  openeta repair results/2025-01-01/episodes/3.partial --output episode_3
      what an interrupted evaluation left, into a new rosbag2 folder
  openeta repair drive.mcap
      a single file, into drive_repaired/; also a folder without metadata.yaml

The broken recording is not changed.

exit code:
  0 it is repaired, and the account says what was lost; 1 it cannot be; 2 it was asked for wrongly.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta repair`."""
    parser.add_argument(
        'file', metavar='FILE', help='a single .mcap or .db3 file, a bag folder, or a folder with bag/ in it'
    )
    parser.add_argument(
        '--output', metavar='DIR', help='the rosbag2 folder to make (default: <FILE>_repaired)'
    )
    parser.add_argument('--json', action='store_true', help='print the account as JSON')


def main(args: argparse.Namespace) -> int:
    """Repair, tell, return the exit code."""
    from openeta_ros.episodes.bag_metadata import BagError
    from openeta_ros.episodes.repair import repair
    from openeta_ros.episodes.rosbag2_folder import or_partial

    path = or_partial(Path(args.file))
    if not path.exists():
        raise UsageError(f'{path} does not exist')
    output = Path(args.output) if args.output else path.resolve().with_name(f'{path.resolve().stem}_repaired')
    if output.exists():
        raise UsageError(f'{output} exists; name another --output')
    try:
        account = repair(path, output)
    except (BagError, OSError) as error:
        print(f'openeta repair: {error}', file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(account.json(), indent=2))
    else:
        print(*account.lines(), sep='\n')
    return 0
