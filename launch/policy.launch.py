# SPDX-License-Identifier: Apache-2.0
"""A policy that sees the contract's topics and answers with chunks, for whoever configures and asks it."""

from openeta_ros.nodes.launching import description

NODES = ('policy',)


def generate_launch_description():
    return description(NODES)
