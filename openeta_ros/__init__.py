# SPDX-License-Identifier: Apache-2.0
"""openeta_ros: a policy in its own process drives a simulated or a real arm through one ROS 2 graph."""

__version__ = '0.1.0'
