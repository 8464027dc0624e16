# SPDX-License-Identifier: Apache-2.0
"""A simulated robot, and the node that runs snippets against it: goals of code_policy/run_snippet."""

from openeta_ros.nodes.launching import description

NODES = ('env', 'code_policy')


def generate_launch_description():
    return description(NODES)
