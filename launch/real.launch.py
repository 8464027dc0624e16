# SPDX-License-Identifier: Apache-2.0
"""Evaluate a policy on an arm, or (`hardware:=mock`) on a mock of it that is started too."""

from openeta_ros.nodes.launching import description

NODES = ('mock', 'env', 'policy', 'eval')


def generate_launch_description():
    return description(NODES, arm=True)
