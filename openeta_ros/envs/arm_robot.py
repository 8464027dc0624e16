# SPDX-License-Identifier: Apache-2.0
"""What a physical arm is to its env: streams, channels for commands, and a scene that somebody puts in order.

Times are seconds of the monotonic clock. `nodes.robot` is one over ROS 2; tests have one without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from openeta_ros.control.commands import Command
from openeta_ros.envs.backend import Array
from openeta_ros.envs.spec import Sensors


@dataclass(frozen=True)
class Vitals:
    """What is known of a robot at a moment.

    Attributes:
        positions: newest measured position by joint, in the joint's own unit.
        heard_s: when something new last came of what must not fall silent, by the kind of `HOLDS` that its
            silence is ('stale_state', 'stale_camera', 'stale_clock') and its name with topic.
        faults: sentences on what must end all motion, by kind: 'commander', 'controller', 'clock_jump'.
    """

    positions: Mapping[str, float]
    heard_s: Mapping[tuple[str, str], float]
    faults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ArmStatus:
    """What the env does with the arm; see openeta_msgs/ArmStatus."""

    state: str
    reason: str
    tracking_error: float
    joint: str
    commands: int


class Robot(Protocol):
    """One robot. `vitals` and `prepared` are for the control thread and must be quick; all else may wait.

    Raises everywhere: EnvError. `check` is called now and then while something waits; what it raises ends
    the wait.
    """

    version: str
    """The drivers and what they speak over."""

    def vitals(self) -> Vitals:
        """Return what is known now."""

    def prepared(self, commands: Sequence[Command]) -> Callable[[], None]:
        """Return what sends commands, in this order, at once."""

    def show(self, text: str) -> None:
        """Tell people something."""

    def wait_ready(self, check: Callable[[], None]) -> None:
        """Wait until every stream comes and every channel has a controller behind it.

        Raises:
            EnvError: 'absent': not in time; which, and what is known about it. 'commander': somebody else
                commands.
        """

    def driver(self) -> str:
        """Return where who gives chunks says that it lives (`Operator.heard_s`); empty where nobody does."""

    def new_episode(self, check: Callable[[], None]) -> None:
        """Wait until every camera has shown the scene as it is now; what is seen then continues nothing.

        Raises:
            EnvError: 'absent', or what `check` raises.
        """

    def sense(self, time_s: float, check: Callable[[], None]) -> Sensors:
        """Return what the streams said at the newest picture of the clock camera that was there at a time.

        Raises:
            EnvError: 'no_observation'.
        """

    def has_scene(self) -> bool:
        """Whether a node puts the scene in order (else a person does)."""

    def reset_scene(self, seed: int, check: Callable[[], None]) -> None:
        """Have the node put the scene of a seed in order."""

    def expert(self, check: Callable[[], None]) -> Array:
        """Return the (H, D) qpos rows of who knows how the task is done; EnvError 'no_expert'."""

    def judges(self) -> bool:
        """Whether a node tells success (else a person does)."""

    def success(self) -> bool:
        """Return what that node said last, since the scene was put in order."""

    def close(self) -> None:
        """End everything; called once."""
