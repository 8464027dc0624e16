# SPDX-License-Identifier: Apache-2.0
"""Who follows a path at the servo rate: the control thread, or a process of its own that nothing delays.

It outlives whoever gives it paths: when nothing is heard of them any more, it brakes by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from openeta_ros.control.commands import Command, Commands
from openeta_ros.control.path import Path

# A step may come so many periods after the last one without anything being made of it.
TOLERATED_PERIODS = 2.0
# What an arm that sets off again leaves of its acceleration to the path's own, at the end.
SETTING_OFF_SHARE = 0.2
TINY = 1e-9


class Follower(Protocol):
    """Follows one path at a time. All of it on the control thread."""

    lag_s: float
    """How much later than the clock it is on its path, as far as that is known; never less than before."""

    lost: bool
    """Whether it braked by itself; it takes no path until it is told to brake."""

    closed: bool
    """Whether it sends nothing."""

    gone: bool
    """Whether it will never send anything again, not even what ends motion."""

    sent: int
    """Commands so far."""

    def take(self, path: Path) -> None:
        """Follow a path from now on."""

    def brake(self, time_s: float) -> None:
        """Come to rest, and then send nothing more."""

    def beat(self, time_s: float, measured: Mapping[str, float]) -> None:
        """Give a sign of life, and the measured positions by joint."""

    def step(self, time_s: float) -> list[Command]:
        """Return what is to be sent now, by whoever calls."""


class PathFollower:
    """The `Follower` itself.

    Args:
        commands: makes the commands of servo channels.
        period_s: of steps.
        patience_s: without a sign of life for so long it brakes.
    """

    gone = False

    def __init__(self, commands: Commands, period_s: float, patience_s: float) -> None:
        self._commands, self._period_s, self._patience_s = commands, period_s, patience_s
        self._path: Path | None = None
        self._braking = False
        self._measured: Mapping[str, float] = {}
        self._last_s = self._heard_s = 0.0
        self._rate = 1.0  # of the path's own velocity
        self.lag_s, self.lost, self.sent = 0.0, False, 0

    @property
    def closed(self) -> bool:
        """See `Follower`."""
        return self._path is None

    def take(self, path: Path) -> None:
        """See `Follower`."""
        if self.lost:
            return
        wait_s: float | None = 0.0
        if self._commands.servos:
            before = path.at_rest if self._path is None else self._path
            slack_s = TOLERATED_PERIODS * self._period_s
            wait_s = path.wait_s(before, self._last_s - self.lag_s, slack_s)
        if wait_s is None:
            self._lose()
        else:
            self.lag_s += wait_s
            self._path, self._braking = path, False

    def brake(self, time_s: float) -> None:
        """See `Follower`."""
        self._advance(time_s)
        self._brake()
        self.lost = False

    def beat(self, time_s: float, measured: Mapping[str, float]) -> None:
        """See `Follower`."""
        self._advance(time_s)
        self._heard_s, self._measured = time_s, measured

    def step(self, time_s: float) -> list[Command]:
        """See `Follower`."""
        self._advance(time_s)
        if self._path is None:
            return []
        if not self._braking and time_s - self._heard_s > self._patience_s:
            self._lose()
        now_s = time_s - self.lag_s
        measured = {} if self._braking else self._measured
        positions, velocities = self._path.at(now_s)
        commands = self._commands.servo(positions, self._rate * velocities, measured)
        if self._braking and self._path.resting(now_s):
            self._path = None
        self.sent += len(commands)
        return commands

    def _lose(self) -> None:
        self.lost = True
        self._brake()

    def _brake(self) -> None:
        if self._path is not None:
            self._path = self._path.braked(self._last_s - self.lag_s, self._rate)
            self._braking, self._rate = True, 1.0

    def _advance(self, time_s: float) -> None:
        """Let the path wait for who was late: it must not leap to where it would be by now.

        Who is told where to be, and is told nothing, stands still: from there it sets off again within its
        acceleration. Who is told how fast to be has gone on.
        """
        passed_s, self._last_s = time_s - (self._last_s or time_s), time_s
        if self._path is None or not self._commands.servos:
            return
        if passed_s > TOLERATED_PERIODS * self._period_s:
            stood = not self._path.resting(time_s - passed_s - self.lag_s) and self._commands.stand_untold
            self.lag_s += passed_s if stood else passed_s - self._period_s
            self._rate = 0.0 if stood else 1.0
            if passed_s > self._patience_s:
                self._lose()
        elif self._rate < 1:
            before = self._rate
            velocity = np.abs(self._path.row_at(time_s - passed_s - self.lag_s)[1])
            quickest = (self._path.deceleration / np.maximum(velocity, TINY)).min()
            share = max(1 - before**2, SETTING_OFF_SHARE)
            self._rate = min(before + share * quickest * passed_s, 1.0)
            self.lag_s += passed_s * (1 - (before + self._rate) / 2)
