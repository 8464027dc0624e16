# SPDX-License-Identifier: Apache-2.0
"""Streams to the arrays that a policy sees: decode, pair by stamp, assemble."""

from openeta_ros.observation.assembler import Assembler, Streams
from openeta_ros.observation.commands import CHUNK_TOPIC, COMMAND_TYPES, Commands, chunk_rows
from openeta_ros.observation.errors import ImageError, MissingStream, ObservationError
from openeta_ros.observation.health import Condition, StreamHealth
from openeta_ros.observation.image import decode_depth, decode_image, fit_depth, fit_picture
from openeta_ros.observation.messages import (
    NS_PER_S,
    MessageTypes,
    bag_types,
    image_message,
    joint_state_message,
    stamp_ns,
)
from openeta_ros.observation.observation import Observation, assemble
from openeta_ros.observation.pairing import Paired
from openeta_ros.observation.rows import Row, Rows

__all__ = [
    'CHUNK_TOPIC',
    'COMMAND_TYPES',
    'NS_PER_S',
    'Assembler',
    'Commands',
    'Condition',
    'ImageError',
    'MessageTypes',
    'MissingStream',
    'Observation',
    'ObservationError',
    'Paired',
    'Row',
    'Rows',
    'StreamHealth',
    'Streams',
    'assemble',
    'bag_types',
    'chunk_rows',
    'decode_depth',
    'decode_image',
    'fit_depth',
    'fit_picture',
    'image_message',
    'joint_state_message',
    'stamp_ns',
]
