# SPDX-License-Identifier: Apache-2.0
"""The ROS 2 nodes. The only folder that imports rclpy; `parameters` and `graph` do without it too."""
