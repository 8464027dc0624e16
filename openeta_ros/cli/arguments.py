# SPDX-License-Identifier: Apache-2.0
"""Arguments that several verbs take."""

from __future__ import annotations

import argparse
import math

# A recording is shorter: what is more is a time of the day where seconds from the beginning are meant.
MOST_SECONDS = 1e9


def seconds(text: str) -> float:
    """Return seconds of a recording, from its beginning on."""
    value = float(text)
    if not (math.isfinite(value) and 0 <= value <= MOST_SECONDS):
        raise argparse.ArgumentTypeError(f'{text} is not 0 to {MOST_SECONDS:g} seconds from the beginning')
    return value


def positive_seconds(text: str) -> float:
    """Return seconds, above zero and not without end."""
    from openeta_ros.vector_policy import serve

    return serve.positive_seconds(text)


def add_namespace(parser: argparse._ActionsContainer, of: str = '') -> None:
    """Declare --namespace, of a recording that is given by another argument where `of` says so."""
    parser.add_argument(
        '--namespace',
        default='',
        metavar='NAME',
        help=f"{of}the namespace that the contract's relative topics were recorded in, such as left_arm",
    )


def add_scene(group: argparse._ActionsContainer) -> None:
    """Declare --env, --task and --embodiment."""
    group.add_argument(
        '--env', default='genesis', help='the simulator; `openeta envs` lists them (default: %(default)s)'
    )
    group.add_argument(
        '--task',
        default='pick_cube',
        help='the task; of --env arm also any in words, which a person judges (default: %(default)s)',
    )
    group.add_argument(
        '--embodiment',
        default='franka_genesis',
        metavar='NAME|FILE',
        help="the robot's contract: a name, or a YAML file (default: %(default)s)",
    )
