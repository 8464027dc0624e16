# SPDX-License-Identifier: Apache-2.0
"""`openeta export`: recordings to data sets."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from openeta_ros.cli.arguments import add_namespace
from openeta_ros.cli.bar import Bar
from openeta_ros.cli.errors import UsageError

HELP = 'make a data set of recorded episodes: LeRobot, Parquet or NumPy'

FORMATS = ('lerobot', 'npz', 'parquet', 'mcap')

EPILOG = """\
examples:
  openeta export results/2025-01-01/episodes/* --format lerobot --output my_data_set
      a LeRobot v3 data set that `LeRobotDataset(repo_id, root='my_data_set')` opens
  openeta export recordings/pick_* --embodiment my_robot.yaml --instruction 'Pick up the cube.' --output picks
      any rosbag2 folders, with the contract of the robot that was recorded
  openeta export results/2025-01-01/episodes/* --format npz --output arrays
      demonstrations, as `openeta demonstration` makes them
  openeta export my_data_set --format mcap --embodiment my_robot.yaml --output bags
      a LeRobot v3 data set back to bags, one for each episode

Frames come at the contract's rate; a recording with a gap becomes two LeRobot episodes.

exit code:
  0 all were exported; 1 some or all were not, and it says why; 2 it was asked for wrongly; 130 Ctrl-C.
  Nothing half written is left.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta export`."""
    parser.add_argument(
        'episodes',
        metavar='EPISODE',
        nargs='+',
        help='an episode folder, a bag folder, or a single .mcap or .db3 file; for mcap, a LeRobot data set',
    )
    parser.add_argument(
        '--format', choices=FORMATS, default='lerobot', help='what to make (default: %(default)s)'
    )
    parser.add_argument('--output', required=True, metavar='DIR', help='the folder to make')
    parser.add_argument(
        '--embodiment',
        metavar='NAME|FILE',
        help="the robot's contract (default: the one that the recording carries)",
    )
    parser.add_argument(
        '--instruction', metavar='TEXT', help='what was to be done (default: what the recording carries)'
    )
    parser.add_argument(
        '--recover', action='store_true', help='of truncated MCAP files, take the messages that are whole'
    )
    add_namespace(parser)
    parser.add_argument('--json', action='store_true', help='print the accounts as JSON')


def main(args: argparse.Namespace) -> int:
    """Export, tell, return the exit code."""
    from openeta_ros.embodiment import EmbodimentError, load
    from openeta_ros.episodes.bag_metadata import BagError
    from openeta_ros.episodes.export import export, missing
    from openeta_ros.episodes.machine import keep_large_blocks

    paths, output = [Path(text) for text in args.episodes], Path(args.output)
    absent = [str(path) for path in paths if not path.exists()]
    if absent:
        raise UsageError(f'{", ".join(absent)} does not exist')
    if output.exists():
        raise UsageError(f'{output} exists; name another --output')
    lacking = missing(args.format)
    if lacking is not None:
        raise UsageError(lacking)
    try:
        if args.embodiment is not None:
            load(args.embodiment)
    except EmbodimentError as error:
        raise UsageError(str(error)) from None
    keep_large_blocks()
    if args.format == 'mcap':
        return _to_bags(args, paths, output)
    try:
        with Bar(str(output)) as bar:
            exported = export(
                paths,
                args.format,
                output,
                embodiment=args.embodiment,
                instruction=args.instruction,
                recover=args.recover,
                namespace=args.namespace,
                progress=bar.show,
            )
    except (BagError, OSError) as error:
        print(f'openeta export: {error}', file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(exported.json(), indent=2))
    else:
        for path, account in exported.accounts.items():
            first, *others = account.lines()
            told = [
                line for line in others if args.recover or 'note' in line or 'gap' in line or ' x ' in line
            ]
            print(f'{path}: {first}', *told, sep='\n  ')
        print(f'written to {output}: {"; ".join(exported.notes)}')
    for path, reason in exported.failures.items():
        print(f'openeta export: {path} is left out: {reason}', file=sys.stderr)
    return 1 if exported.failures else 0


def _to_bags(args: argparse.Namespace, paths: list[Path], output: Path) -> int:
    from openeta_ros.embodiment import load
    from openeta_ros.episodes.bag_metadata import BagError
    from openeta_ros.episodes.export import import_lerobot

    if args.embodiment is None or len(paths) != 1:
        raise UsageError('--format mcap needs one LeRobot data set, and its --embodiment')
    try:
        with Bar(str(output)) as bar:
            episodes, moments = import_lerobot(paths[0], output, load(args.embodiment), progress=bar.show)
    except (BagError, OSError) as error:
        print(f'openeta export: {error}', file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({'output': str(output), 'episodes': episodes, 'moments': moments}))
    else:
        print(f'written to {output}: {episodes} episodes, {moments} moments')
    return 0
