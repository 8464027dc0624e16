# SPDX-License-Identifier: Apache-2.0
"""The contract: one YAML file says what a robot's streams and actions mean; and the robot's kinematics."""

from openeta_ros.embodiment.arm import Arm, Gripper
from openeta_ros.embodiment.errors import EmbodimentError, KinematicsError, Problem
from openeta_ros.embodiment.kinematics import Kinematics
from openeta_ros.embodiment.loader import available, load
from openeta_ros.embodiment.resources import resolve_uri
from openeta_ros.embodiment.schema import Camera, Embodiment

__all__ = [
    'Arm',
    'Camera',
    'Embodiment',
    'EmbodimentError',
    'Gripper',
    'Kinematics',
    'KinematicsError',
    'Problem',
    'available',
    'load',
    'resolve_uri',
]
