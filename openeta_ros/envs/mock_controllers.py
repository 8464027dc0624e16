# SPDX-License-Identifier: Apache-2.0
"""The controllers that a contract names, without ros2_control: forward ones, a Cartesian one, and which of
them may be active at the same time. (`mock_trajectory` has the one for trajectories.)

All arrays are in the controller's own order of joints; positions that are NaN command nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from openeta_ros.control.commands import PATHS, Channel, channels
from openeta_ros.embodiment import Embodiment, Kinematics, KinematicsError
from openeta_ros.envs.backend import Array
from openeta_ros.envs.mock_trajectory import Rejected, TrajectoryController
from openeta_ros.observation import NS_PER_S


class Controller(Protocol):
    """What all of them are."""

    joints: tuple[str, ...]
    active: bool

    def activate(self) -> None:
        """Take messages from now on."""

    def deactivate(self) -> None:
        """Take no more messages; the joints hold."""

    def update(self, now_ns: int, positions: Array, velocities: Array) -> Array:
        """Return the positions (J,) commanded now, NaN for none, given what is measured (J,)."""


class ForwardController:
    """Passes numbers on, a step each, and holds the last ones for ever: it has no limits and no timeout."""

    def __init__(
        self, joints: tuple[str, ...], quantity: Literal['position', 'velocity'] = 'position'
    ) -> None:
        self.joints = joints
        self.active = True
        self._quantity = quantity
        self._values: Array = np.full(len(joints), np.nan)
        self._positions: Array = np.full(len(joints), np.nan)
        self._updated_ns: int | None = None

    def accept(self, values: npt.ArrayLike) -> None:
        """Take a message. An empty one does nothing.

        Raises:
            Rejected: it holds NaN, or the controller is not active; of another length, the controller is
                deactivated by it too.
        """
        numbers = np.asarray(values, dtype=np.float64)
        if not self.active:
            raise Rejected('the controller is not active')
        if not len(numbers):
            return
        if len(numbers) != len(self.joints):
            self.deactivate()
            raise Rejected(
                f'{len(numbers)} numbers for {len(self.joints)} joints {list(self.joints)}: '
                'the controller is deactivated until it is activated by hand'
            )
        if np.isnan(numbers).any():
            raise Rejected('it holds NaN; the message is dropped')
        self._values = numbers.copy()

    def activate(self) -> None:
        self.active = True

    def deactivate(self) -> None:
        self.active = False
        self._values = np.full(len(self.joints), np.nan)
        self._positions, self._updated_ns = self._values, None

    def update(self, now_ns: int, positions: Array, velocities: Array) -> Array:
        if self._quantity == 'position':
            return self._values
        passed_s = 0.0 if self._updated_ns is None else (now_ns - self._updated_ns) / NS_PER_S
        self._updated_ns = now_ns
        start = np.where(np.isnan(self._positions), positions, self._positions)
        moved = start + self._values * passed_s
        self._positions = np.where(np.isnan(moved), start, moved)
        return self._positions if not np.isnan(self._values).all() else np.full(len(self.joints), np.nan)


class PoseController:
    """Brings the tool point to a pose, at once: the nearest joints that reach it."""

    def __init__(self, joints: tuple[str, ...], arm: str, kinematics: Kinematics) -> None:
        self.joints = joints
        self.active = True
        self._arm, self._kinematics = arm, kinematics
        self._positions: Array = np.full(len(joints), np.nan)

    def accept(self, pose: Array, positions: Array) -> None:
        """Take a pose (7,) in the base frame, from where the joints are (J,).

        Raises:
            Rejected: nothing reaches it, or the controller is not active.
        """
        if not self.active:
            raise Rejected('the controller is not active')
        try:
            self._positions = self._kinematics.inverse(self._arm, pose, positions)
        except KinematicsError as error:
            raise Rejected(str(error)) from error

    def activate(self) -> None:
        self.active = True

    def deactivate(self) -> None:
        self.active = False
        self._positions = np.full(len(self.joints), np.nan)

    def update(self, now_ns: int, positions: Array, velocities: Array) -> Array:
        return self._positions


@dataclass(frozen=True)
class Commanded:
    """One controller, and where its messages come from. It knows its joints by the driver's names."""

    channel: Channel
    controller: Controller

    @property
    def name(self) -> str:
        """The controller's: its topic, without the last part of it."""
        topic = self.channel.topic
        return topic.rpartition('/')[0] or topic


def controllers_of(
    embodiment: Embodiment, kinematics: Kinematics, *, allow_partial: bool = False
) -> list[Commanded]:
    """Return the controllers that a contract commands, all active.

    Raises:
        EmbodimentError: it does not command all of its arms and grippers, or not with what is installed.
    """
    return [
        Commanded(channel, _controller(channel, kinematics, allow_partial))
        for channel in channels(embodiment)
    ]


def _controller(channel: Channel, kinematics: Kinematics, allow_partial: bool) -> Controller:
    if channel.interface in PATHS:
        return TrajectoryController(channel.names, allow_partial=allow_partial)
    if channel.interface == 'pose':
        return PoseController(channel.names, channel.arm, kinematics)
    if channel.interface == 'forward_velocity':
        return ForwardController(channel.names, 'velocity')
    return ForwardController(channel.names)


def activate(controllers: Sequence[Commanded], wanted: Commanded) -> str | None:
    """Activate a controller; return why it is refused, when another one that is active holds a joint of
    it."""
    for other in controllers:
        held = sorted(set(other.channel.joints) & set(wanted.channel.joints))
        if other is not wanted and other.controller.active and held:
            return f'{other.name} is active and holds {", ".join(held)}'
    wanted.controller.activate()
    return None
