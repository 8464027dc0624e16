# SPDX-License-Identifier: Apache-2.0
"""Policy actions to safe commands: decode, check, solve, limit, schedule."""

from openeta_ros.control.errors import ActionError
from openeta_ros.control.pipeline import ActionPipeline, JointPlan
from openeta_ros.control.relative import absolute_rows
from openeta_ros.control.schedule import Accepted, ChunkSchedule, Execution, Points, Seen

__all__ = [
    'Accepted',
    'ActionError',
    'ActionPipeline',
    'ChunkSchedule',
    'Execution',
    'JointPlan',
    'Points',
    'Seen',
    'absolute_rows',
]
