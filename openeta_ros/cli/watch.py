# SPDX-License-Identifier: Apache-2.0
"""`openeta watch`: what goes on in a running graph."""

from __future__ import annotations

import argparse
import importlib.util
import os

from openeta_ros.cli.errors import UsageError

HELP = 'watch a running graph: streams, policy, arm, episode, live in the terminal'

EPILOG = """\
examples:
  openeta watch
      the graph of this shell's ROS_DOMAIN_ID; where that is not set, of the evaluation that runs here
  openeta watch --namespace left --json | jq .episode

Until Ctrl-C. It only listens. Streams are told of by the policy or bridge node.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta watch`."""
    parser.add_argument(
        '--namespace', default='', metavar='NAME', help='the namespace of its nodes (default: none)'
    )
    parser.add_argument(
        '--period', type=float, default=0.5, metavar='SECONDS', help='how often (default: %(default)g)'
    )
    parser.add_argument('--json', action='store_true', help='print a line of JSON each time')


def main(args: argparse.Namespace) -> int:
    """Become the watch node."""
    from openeta_ros.nodes.graph import NodeSpec, become, claimed_domains

    if importlib.util.find_spec('rclpy') is None:
        raise UsageError('watching needs ROS 2 (rclpy does not import): run `make setup` or source one')
    if not 0.05 <= args.period <= 3600:
        raise UsageError(f'--period must be between 0.05 and 3600, not {args.period:g}')
    if 'ROS_DOMAIN_ID' not in os.environ:
        domains = claimed_domains()
        if len(domains) > 1:
            listed = ', '.join(map(str, domains))
            raise UsageError(f'evaluations run in the domains {listed}: set ROS_DOMAIN_ID to one of them')
        if domains:
            os.environ['ROS_DOMAIN_ID'] = str(domains[0])
    become(NodeSpec('watch', {'period_s': args.period, 'json': args.json}, args.namespace))
