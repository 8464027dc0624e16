# SPDX-License-Identifier: Apache-2.0
"""`openeta record`: a robot's topics into a recording."""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from pathlib import Path

from openeta_ros.cli.errors import UsageError

HELP = "record a robot's topics as they come, until Ctrl-C"

EPILOG = """\
examples:
  openeta record --embodiment my_robot.yaml
      every topic of the contract, tf, /clock, commands, what policy and env say, into recordings/<time>
  openeta record --embodiment my_robot.yaml --output picks/1 --info task=pick --info operator=Ann
  openeta record --embodiment my_robot.yaml --topics /force /diagnostics
      more topics than the contract's

While it runs the folder is called <DIR>.partial. Ctrl-C ends it in order, and it tells what was recorded and
what was lost. After a kill `openeta repair <DIR>.partial` makes what is on the disk whole.

exit code:
  0 it was recorded, also when messages were lost (it says how many of which topic); 1 it could not be, or
  not to its end (a full disk); 2 it was asked for wrongly.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta record`."""
    parser.add_argument('--embodiment', required=True, metavar='NAME|FILE', help="the robot's contract")
    parser.add_argument(
        '--output', metavar='DIR', help='the rosbag2 folder to be (default: recordings/<time>)'
    )
    parser.add_argument(
        '--topics', nargs='+', default=[], metavar='TOPIC', help="more topics than the contract's"
    )
    parser.add_argument(
        '--info',
        action='append',
        default=[],
        metavar='NAME=TEXT',
        help='something to keep with the recording, such as seed, policy or task; may be repeated',
    )
    parser.add_argument(
        '--sim-time',
        action='store_true',
        help='file messages under simulated time (/clock) instead of the time of the day',
    )
    parser.add_argument(
        '--compression',
        choices=('none', 'zstd'),
        default='none',
        help='none takes the least processor time, zstd the least disk (default: %(default)s)',
    )


def main(args: argparse.Namespace) -> int:
    """Become the recorder node, on the graph that this shell is on."""
    from openeta_ros.embodiment import EmbodimentError, load
    from openeta_ros.nodes.graph import NodeSpec, become

    if importlib.util.find_spec('rclpy') is None:
        raise UsageError('recording needs ROS 2 (rclpy does not import): run `make setup` or source one')
    try:
        embodiment = load(args.embodiment)
    except EmbodimentError as error:
        raise UsageError(str(error)) from None
    output = Path(args.output or f'recordings/{time.strftime("%Y-%m-%d_%H-%M-%S")}').absolute()
    if output.exists():
        raise UsageError(f'{output} exists; name another --output')
    wrong = [text for text in args.info if '=' not in text]
    if wrong:
        raise UsageError(f'--info {wrong[0]} is not NAME=TEXT')
    node = NodeSpec(
        'recorder',
        {
            'embodiment': str(embodiment.path),
            'record': str(output),
            'topics': ' '.join(args.topics),
            'info': json.dumps(dict(text.split('=', 1) for text in args.info)),
            'compression': args.compression,
            'use_sim_time': args.sim_time,
        },
    )
    become(node)
