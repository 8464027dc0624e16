# SPDX-License-Identifier: Apache-2.0
"""A mock robot without ROS: the controllers of a contract over a plant, ticked together; and what its drivers
tell of its joints."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openeta_ros.embodiment import Embodiment
from openeta_ros.envs.backend import Array
from openeta_ros.envs.mock_controllers import Commanded
from openeta_ros.envs.mock_plant import Plant


class MockRobot:
    """Controllers over a plant. `tick` belongs to one thread; others hold `lock` while they touch it."""

    def __init__(self, plant: Plant, controllers: Sequence[Commanded]) -> None:
        self.lock = threading.Lock()
        self.plant = plant
        self.controllers = tuple(controllers)
        self._places = [[plant.joints.index(name) for name in one.channel.joints] for one in controllers]

    def tick(self, now_ns: int, period_s: float) -> None:
        """Go on to a moment; `period_s` is how far apart these should be.

        Args:
            now_ns: of the clock that stamps of messages are from.
        """
        with self.lock:
            positions, velocities = self.plant.positions(), self.plant.velocities()
            targets = np.full(len(positions), np.nan)
            for one, places in zip(self.controllers, self._places, strict=True):
                commanded = one.controller.update(now_ns, positions[places], velocities[places])
                # Of two that could command a joint only one is active; the other says NaN.
                targets[places] = np.where(np.isnan(commanded), targets[places], commanded)
            self.plant.step(targets, period_s)

    def measured(self, commanded: Commanded) -> Array:
        """Return the measured positions of a controller's joints, in its order."""
        positions = self.plant.positions()
        return positions[[self.plant.joints.index(name) for name in commanded.channel.joints]]


@dataclass(frozen=True)
class StateStream:
    """One topic of joint states, as a driver sends it: in the order of the alphabet, where names are sent.

    `names` (empty where the driver sends none) are those in the message, `joints` the contract's.
    """

    topic: str
    names: tuple[str, ...]
    joints: tuple[str, ...]
    scales: Array
    offsets: Array

    def positions(self, values: Array) -> Array:
        """Return what is sent of positions (N,) in rad or m."""
        return np.asarray((values - self.offsets) / self.scales)

    def velocities(self, values: Array) -> Array:
        """Return what is sent of velocities (N,)."""
        return np.asarray(values / self.scales)


def state_streams(embodiment: Embodiment, joints: Sequence[str]) -> list[StateStream]:
    """Return the contract's topics of joint states, each joint on one of them."""
    taken: dict[str, int] = {}
    entries = list(enumerate(embodiment.state))
    for index, state in entries:
        listed = [state.prefix + name for name in state.joints or ()]
        for name in joints:
            if name in listed or (state.joints is None and state.prefix and name.startswith(state.prefix)):
                taken.setdefault(name, index)
    for index, state in entries:
        if state.joints is None and not state.prefix:
            for name in joints:
                taken.setdefault(name, index)
    streams = []
    for index, state in entries:
        if state.joints is not None:
            own = [state.prefix + name for name in state.joints if state.prefix + name in joints]
        else:
            own = sorted(name for name, place in taken.items() if place == index)
        if not own:
            continue
        unit = np.radians(1.0) if state.unit == 'deg' else 1.0
        scales = [state.scales[name].scale if name in state.scales else unit for name in own]
        offsets = [state.scales[name].offset if name in state.scales else 0.0 for name in own]
        sent = () if state.joints is not None else tuple(name.removeprefix(state.prefix) for name in own)
        streams.append(StateStream(state.topic, sent, tuple(own), np.array(scales), np.array(offsets)))
    return streams
