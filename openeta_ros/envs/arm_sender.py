# SPDX-License-Identifier: Apache-2.0
"""How commands leave for a robot: at once, and paths at the time that they were made for.

All of it is for the control thread. In a dry run nothing leaves; what would is shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from openeta_ros.control import Points
from openeta_ros.control.commands import Command, Commands, describe
from openeta_ros.envs.arm_robot import Robot

# A path is made for the moment at which it should be ready. One that is ready much earlier or later than
# that, or has left later, is made anew, so often.
PROMPT_S, ATTEMPTS = 2e-3, 3
# Zeros are sent for so long when who sent velocities is gone.
STANDSTILL_S = 1.0
# In a dry run the commands of so many seconds are shown as one.
SHOWN_EVERY_S = 1.0


class Sender:
    """Sends the commands of one contract; `sent` counts them."""

    def __init__(
        self, commands: Commands, robot: Robot, *, dry_run: bool, clock: Callable[[], float]
    ) -> None:
        self._commands, self._robot, self._dry_run, self._clock = commands, robot, dry_run, clock
        self._making_s = 0.0  # that the last path took to be made
        self._shown_s = -np.inf
        self.sent = 0

    def send(self, commands: Sequence[Command], prepared: Callable[[], None] | None = None) -> None:
        """Send commands; `prepared` does it where it is made already."""
        if not self._dry_run:
            (prepared or self._robot.prepared(commands))()
            self.sent += len(commands)
            return
        time_s = self._clock()
        if commands and (self._shown_s + SHOWN_EVERY_S <= time_s or not all(map(Commands.repeats, commands))):
            self._shown_s = time_s
            for command in commands:
                self._robot.show(f'dry run, not sent: {describe(command)}')

    def send_path(self, points_in: Callable[[float], Points]) -> float | None:
        """Send a path; it begins when it leaves, which is not when it was begun to be made.

        `points_in` returns the path that begins in so many seconds. Return how long it takes; None where no
        controller takes paths. A thread that stands still for a moment sends it late: then it is sent again.
        """
        for attempt in range(ATTEMPTS):
            leaves_s = self._clock() + self._making_s
            points = points_in(self._making_s)
            commands = self._commands.paths(points)
            if not commands:
                return None
            prepared = None if self._dry_run else self._robot.prepared(commands)
            early_s = leaves_s - self._clock()
            self._making_s -= early_s
            if abs(early_s) > PROMPT_S and attempt < ATTEMPTS - 1:
                continue
            time.sleep(max(early_s, 0.0))
            self.send(commands, prepared)
            if self._dry_run or self._clock() - leaves_s < PROMPT_S:
                break
        return float(points.times_s[-1])

    def stand_still(self, period_s: float) -> None:
        """End what would go on where nobody commands it any more."""
        end_s = self._clock() + STANDSTILL_S
        commands = self._commands.standstill()
        while commands and not self._dry_run and self._clock() < end_s:
            self._robot.prepared(commands)()
            time.sleep(period_s)
