# SPDX-License-Identifier: Apache-2.0
"""The contract's topics as observations, without a policy."""

from openeta_ros.nodes.launching import description

NODES = ('bridge',)


def generate_launch_description():
    return description(NODES)
