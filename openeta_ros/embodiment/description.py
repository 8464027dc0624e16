# SPDX-License-Identifier: Apache-2.0
"""Robot descriptions, URDF, xacro and MJCF, as Pinocchio models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openeta_ros.embodiment.errors import KinematicsError
from openeta_ros.embodiment.mjcf import read_mjcf


def model_of_file(path: Path, arguments: Mapping[str, str]) -> Any:
    """Return the pinocchio.Model of a URDF, MJCF, or (by its ending) xacro file.

    Raises:
        KinematicsError: it does not parse, or what reads such files is not installed.
    """
    if path.suffix == '.xacro':
        return model_of_urdf(_expanded(path, arguments), str(path))
    text = path.read_text(encoding='utf-8', errors='replace')
    if '<mujoco' not in text:
        return model_of_urdf(text, str(path))
    try:
        return read_mjcf(str(path))
    except ImportError as error:
        raise KinematicsError(f'{path} is MJCF, which mujoco reads: pip install mujoco ({error})') from error
    except (RuntimeError, ValueError) as error:
        raise KinematicsError(f'{path} does not parse as MJCF: {error}') from error


def model_of_urdf(text: str, name: str) -> Any:
    """Return the pinocchio.Model of a URDF's text; `name` says in errors where it is from.

    Pinocchio passes over tags of XML prefixes that nobody declared, as some published URDFs have them.
    """
    import pinocchio as pin

    if '<mujoco' in text:
        raise KinematicsError(f'{name} does not parse as URDF: it is MJCF, which is read from a file only')
    try:
        return pin.buildModelFromXML(text)
    except (RuntimeError, ValueError) as error:
        raise KinematicsError(f'{name} does not parse as URDF: {error}') from error


def add_prefix(model: Any, prefix: str) -> None:
    """Put a prefix before the name of every joint and frame, but for the universe."""
    for index in range(1, len(model.names)):
        model.names[index] = prefix + model.names[index]
    for index, frame in enumerate(model.frames):
        if index:
            frame.name = prefix + frame.name


def _expanded(path: Path, arguments: Mapping[str, str]) -> str:
    try:
        import xacro
    except ImportError as error:
        raise KinematicsError(
            f'{path} is expanded by xacro, which is not installed: pip install xacro, '
            'or apt install ros-$ROS_DISTRO-xacro'
        ) from error
    try:
        return str(xacro.process_file(str(path), mappings=dict(arguments)).toxml())
    except Exception as error:  # whatever a macro file may raise, it is that file which cannot be used
        raise KinematicsError(f'{path} does not expand with {dict(arguments)}: {error}') from error
