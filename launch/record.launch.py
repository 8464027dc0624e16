# SPDX-License-Identifier: Apache-2.0
"""A contract's topics into an MCAP file: `record:=DIR` at once until Ctrl-C, else when ~/start says so."""

from openeta_ros.nodes.launching import description

NODES = ('recorder',)


def generate_launch_description():
    return description(NODES)
