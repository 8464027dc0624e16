# SPDX-License-Identifier: Apache-2.0
"""What a served policy looks like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from openeta_ros.vector_policy.blocks import Array

#: Joint positions, or end-effector poses: what the columns of an action mean.
ACTION_TYPES = ('qpos', 'ee')


@runtime_checkable
class Policy(Protocol):
    """The methods the server calls, one for each operation. Arrays arrive read-only.

    `reset` and `set_demonstration` come in either order before the first `act`. A policy may also have a
    `close()`, called when the client ends the session.
    """

    action_type: str

    def set_demonstration(self, arrays: Mapping[str, Array], info: Mapping[str, Any]) -> None:
        """Take the one demonstration of the task: named arrays with a leading time axis, and JSON facts."""

    def reset(self, seed: int) -> None:
        """Begin a new episode."""

    def act(self, observation: Mapping[str, Array]) -> Mapping[str, Any]:
        """Return {'action': (A,) or (H, A), ...}: one row, or rows to run before the next observation."""
