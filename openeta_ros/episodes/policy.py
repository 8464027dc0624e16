# SPDX-License-Identifier: Apache-2.0
"""The runner's view of a policy that is spoken to directly, without a graph in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from openeta_ros.control import absolute_rows
from openeta_ros.embodiment import Embodiment, Kinematics
from openeta_ros.embodiment.schema import ActionType
from openeta_ros.episodes.demonstration import Demonstration
from openeta_ros.observation import Observation

if TYPE_CHECKING:
    from openeta_ros.vector_policy.client import RemotePolicy


class LocalPolicy:
    """An `EpisodePolicy` over one connection to a policy server; whoever opened the connection closes it.

    Raises everywhere: `PolicyUnavailable`, as the connection does.
    """

    def __init__(self, remote: RemotePolicy, embodiment: Embodiment) -> None:
        self._remote = remote
        self._embodiment = embodiment
        # Needed here only to turn relative actions into absolute ones.
        self._kinematics = Kinematics(embodiment) if embodiment.action.mode == 'relative' else None
        answer = remote.hello()
        self.action_type: ActionType = answer['action_type']
        self._name = str(answer.get('policy', ''))

    def reset(self, seed: int) -> None:
        """Start an episode."""
        self._remote.reset(seed)

    def set_demonstration(self, demonstration: Demonstration) -> None:
        """Show how the task is done."""
        self._remote.set_demonstration(dict(demonstration.arrays), dict(demonstration.info))

    def act(self, observation: Observation) -> NDArray[Any]:
        """Return the policy's rows (H, A): as it sent them, made absolute where the contract's are relative.

        Raises:
            ActionError: relative rows that cannot be made absolute; absolute ones are checked by who moves.
        """
        action: NDArray[Any] = self._remote.act(dict(observation))['action']
        rows = action if action.ndim == 2 else action[None]
        if self._kinematics is None:
            return rows
        return absolute_rows(rows, self.action_type, observation['qpos'], self._embodiment, self._kinematics)

    def descriptor(self) -> Mapping[str, Any]:
        """Return the policy's module:Class and its action type."""
        return {'policy': self._name, 'action_type': self.action_type}
