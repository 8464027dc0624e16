# SPDX-License-Identifier: Apache-2.0
"""The one error of this folder."""

from __future__ import annotations

# Kinds of what ends the motion of an arm, and with it the episode; the next reset goes on.
HOLDS = frozenset(
    {
        'stop',
        'inactive',
        'disabled',
        'stale_state',
        'stale_camera',
        'stale_clock',
        'clock_jump',
        'commander',
        'controller',
        'tracking',
        'late',
        'abandoned',
        'fault',
        'no_observation',
    }
)


class EnvError(Exception):
    """An env could not be made or used as asked.

    Attributes:
        kind: a word for programs: 'backend' (no such backend), 'missing' (a package is not installed), 'task'
            (no such task), 'option', 'embodiment' (this contract does not fit this env), 'model' (the robot's
            description does not load), 'graphics' (no way to draw), 'seed', 'not_reset', 'done', 'closed',
            'thread', 'no_expert', 'physics' (the simulation left the finite numbers).

            Of an arm: 'stopped' (the stop is latched), 'absent' (a controller or a stream is not there, or
            the arm is where it cannot start from), and those of `HOLDS`: 'stop' (the stop topic), 'inactive',
            'disabled', 'stale_state', 'stale_camera', 'stale_clock', 'clock_jump', 'commander' (somebody else
            commands), 'controller' (nobody listens), 'tracking' (it is not where it is commanded to be),
            'late' (the control thread stood still), 'abandoned' (who gives chunks fell silent), 'fault' (our
            own), 'no_observation'.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def __reduce__(self) -> tuple[type[EnvError], tuple[str, str]]:
        return type(self), (self.kind, self.message)
