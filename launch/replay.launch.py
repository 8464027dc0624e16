# SPDX-License-Identifier: Apache-2.0
"""A recording's topics again, in their time, and /clock. `bag:=EPISODE` plays at once and ends."""

from openeta_ros.nodes.launching import description

NODES = ('replay',)


def generate_launch_description():
    return description(NODES)
