# SPDX-License-Identifier: Apache-2.0
"""Evaluate a policy: env, policy and eval nodes. `ros2 launch openeta_ros eval.launch.py --show-args` lists
all."""

from openeta_ros.nodes.launching import description

NODES = ('env', 'policy', 'eval')


def generate_launch_description():
    return description(NODES)
