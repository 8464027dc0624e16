# SPDX-License-Identifier: Apache-2.0
"""`openeta show`: what is in a recording."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from openeta_ros.cli.bar import Bar
from openeta_ros.cli.errors import UsageError

HELP = 'show what is in a recorded episode: topics, rates, gaps, contract, policy, outcome'

EPILOG = """\
examples:
  openeta show results/2025-01-01/episodes/0
      an episode of an evaluation; also its bag/ folder, any other rosbag2 folder, a single .mcap or .db3
  openeta show drive.mcap --json
  openeta show results/2025-01-01/episodes/0 --rerun episode_0.rrd
      a file for the Rerun viewer as well (needs rerun-sdk)

exit code:
  0 it was read; 1 it cannot be; 2 it was asked for wrongly. Of a truncated file what is whole is shown,
  with a note.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta show`."""
    parser.add_argument(
        'episode',
        metavar='EPISODE',
        help='an episode folder, a bag folder, or a single .mcap or .db3 file',
    )
    parser.add_argument('--json', action='store_true', help='print JSON instead of lines')
    parser.add_argument(
        '--rerun', metavar='FILE.rrd', help='also write it for the Rerun viewer, where rerun-sdk is installed'
    )


def main(args: argparse.Namespace) -> int:
    """Print what is in it; return the exit code."""
    from openeta_ros.episodes import contents, rerun_file
    from openeta_ros.episodes.bag import Bag
    from openeta_ros.episodes.bag_metadata import BagError
    from openeta_ros.episodes.rosbag2_folder import or_partial

    path = or_partial(Path(args.episode))
    if not path.exists():
        raise UsageError(f'{path} does not exist')
    if args.rerun is not None and (lacking := rerun_file.missing()) is not None:
        raise UsageError(lacking)
    try:
        with Bar(str(path)) as bar, Bag(path, recover=True) as bag:
            found = contents.contents(bag, bar.show)
            rejected = {} if args.rerun is None else rerun_file.write_rerun(bag, Path(args.rerun), bar.show)
    except (BagError, OSError) as error:
        print(f'openeta show: {error}', file=sys.stderr)
        return 1
    for reason, count in rejected.items():
        print(f'openeta show: not in {args.rerun}: {count} x {reason}', file=sys.stderr)
    if args.json:
        print(json.dumps(found.json(), indent=2))
    else:
        print(*contents.lines(found), sep='\n')
    return 0
