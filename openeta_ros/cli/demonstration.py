# SPDX-License-Identifier: Apache-2.0
"""`openeta demonstration`: a recorded bag to the arrays that a policy is shown."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from openeta_ros.cli.arguments import add_namespace, seconds
from openeta_ros.cli.bar import Bar
from openeta_ros.cli.errors import UsageError

HELP = 'make the arrays of a demonstration from a recorded bag'

EPILOG = """\
examples:
  openeta demonstration recordings/pick_1 --embodiment my_robot.yaml --output pick_1.npz
      a rosbag2 folder (SQLite or MCAP), at the rate of the contract
  openeta demonstration results/2025-01-01/episodes/0 --embodiment light_arm --output episode_0.npz
      an episode of an evaluation
  openeta demonstration recordings/both --embodiment left.yaml --namespace left_arm --output left.npz
      topics that were recorded as /left_arm/joint_states, of a contract that says joint_states
  openeta demonstration drive.mcap --embodiment my_robot.yaml --output drive/ --rate clock --from 3 --to 60
      a single file, one row for each picture of the clock camera, into a folder of .npy files

exit code:
  0 it was written, and the account says what was dropped and why; 1 the bag gives no demonstration;
  2 it was asked for wrongly; 130 Ctrl-C. Nothing half written is left.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta demonstration`."""
    parser.add_argument(
        'bag', metavar='BAG', help='a bag folder, a folder with bag/ in it, or a single .mcap or .db3 file'
    )
    parser.add_argument(
        '--embodiment',
        required=True,
        metavar='NAME|FILE',
        help="the robot's contract: a name, or a YAML file",
    )
    parser.add_argument(
        '--output',
        required=True,
        metavar='DEMO.npz',
        help='an .npz file; any other name becomes a folder of .npy',
    )
    parser.add_argument(
        '--rate',
        choices=('contract', 'clock'),
        default='contract',
        help="rows at the contract's rate, or one for each clock picture (default: %(default)s)",
    )
    parser.add_argument(
        '--from',
        dest='from_s',
        type=seconds,
        default=0.0,
        metavar='SECONDS',
        help='begin so long after the bag begins',
    )
    parser.add_argument(
        '--to', dest='to_s', type=seconds, metavar='SECONDS', help='end so long after the bag begins'
    )
    parser.add_argument(
        '--recover', action='store_true', help='of a truncated MCAP file, take the messages that are whole'
    )
    add_namespace(parser)
    parser.add_argument('--json', action='store_true', help='print the account as JSON')


def main(args: argparse.Namespace) -> int:
    """Convert, tell, return the exit code."""
    from openeta_ros.embodiment import EmbodimentError, KinematicsError, load
    from openeta_ros.episodes.bag import Bag
    from openeta_ros.episodes.bag_demonstration import convert
    from openeta_ros.episodes.bag_metadata import BagError
    from openeta_ros.episodes.machine import keep_large_blocks

    keep_large_blocks()
    output = Path(args.output)
    if args.to_s is not None and args.to_s <= args.from_s:
        raise UsageError(f'--to {args.to_s:g} is not after --from {args.from_s:g}')
    if not Path(args.bag).exists():
        raise UsageError(f'{args.bag} does not exist')
    of_another_kind = not (output / 'info.npy').is_file() if output.suffix != '.npz' else output.is_dir()
    if output.exists() and of_another_kind:
        raise UsageError(f'{output} exists and is no demonstration; name another --output')
    try:
        embodiment = load(args.embodiment)
    except EmbodimentError as error:
        raise UsageError(str(error)) from None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with (
            Bar(str(args.bag)) as bar,
            Bag(Path(args.bag), recover=args.recover, namespace=args.namespace) as bag,
        ):
            account = convert(
                bag,
                embodiment,
                output,
                rate=args.rate,
                from_s=args.from_s,
                to_s=args.to_s,
                progress=bar.show,
            )
    except (BagError, EmbodimentError, KinematicsError, OSError) as error:
        print(f'openeta demonstration: {error}', file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(account.json() | {'output': str(output)}, indent=2))
    else:
        print(*account.lines(), f'written to {output}', sep='\n')
    return 0
