# SPDX-License-Identifier: Apache-2.0
"""A simulated robot on the graph, for whoever configures and drives it."""

from openeta_ros.nodes.launching import description

NODES = ('env',)


def generate_launch_description():
    return description(NODES)
