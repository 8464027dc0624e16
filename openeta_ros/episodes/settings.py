# SPDX-License-Identifier: Apache-2.0
"""What an evaluation is asked to do: the same values for the command line, the eval node and results.json.

Both transports work from `EvalSettings` alone, so paths in it are absolute: the processes of a graph do not
all run in the directory where the command was typed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from openeta_ros.control import Execution

TRANSPORTS = ('local', 'ros')
HARDWARE = ('real', 'mock')
# The env that is a physical arm.
ARM = 'arm'
NO_DEMONSTRATION = 'none'
EXPERT = 'expert'
# As the nodes' parameters have them.
MOST = {
    'episodes': 1_000_000,
    'seed': 2**62,
    'max_steps': 1_000_000,
    'policy_timeout_s': 86_400.0,
    'execution_horizon': 1_000_000,
}
LEAST_TIMEOUT_S = 0.001


class SettingsError(ValueError):
    """A value of the settings cannot be used; the text is one sentence naming it."""


@dataclass(frozen=True)
class EvalSettings:
    """The settings of one evaluation. JSON-safe, and everything that is needed to repeat it.

    Attributes:
        env: name of the backend, such as 'genesis'.
        task: name of the task, such as 'pick_cube'.
        embodiment: name of a contract, or the absolute path of its YAML file.
        policy: absolute path of a policy directory or policy.yaml, or the address of a running policy server.
        demonstration: 'expert' (the scripted expert shows the very scene of each episode), 'none', or the
            absolute path of an .npz demonstration that every episode is given.
        episodes: how many; episode i has the scene seed `seed + i`.
        seed: scene seed of the first episode, from 0.
        max_steps: row budget of an episode; None: the task's own.
        transport: 'local' (env and runner in one process) or 'ros' (env, policy and eval nodes).
        policy_timeout_s: how long one call of the policy may take.
        hardware: of env 'arm' the arm that is there ('real'), or a mock of it that is started ('mock'); else
            None.
        execution_horizon: how many rows of each chunk are executed before the policy is asked again; None:
            all.
        asynchronous: of env 'arm': the policy is asked while rows are executed.
        output: absolute path of the directory for results.json and episodes/.
    """

    env: str
    task: str
    embodiment: str
    policy: str
    output: str
    demonstration: str = EXPERT
    episodes: int = 3
    seed: int = 0
    max_steps: int | None = None
    transport: str = 'ros'
    policy_timeout_s: float = 60.0
    hardware: str | None = None
    execution_horizon: int | None = None
    asynchronous: bool = False

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise SettingsError(f'transport {self.transport!r} is not one of {", ".join(TRANSPORTS)}')
        if self.env == ARM and self.transport != 'ros':
            raise SettingsError("env 'arm' is driven over ROS 2: leave out --transport local")
        if self.env == ARM and self.hardware not in HARDWARE:
            raise SettingsError(f'hardware {self.hardware!r} is not one of {", ".join(HARDWARE)}')
        if self.env != ARM and self.hardware is not None:
            raise SettingsError(f"hardware is of env 'arm'; env {self.env!r} has none")
        if self.asynchronous and self.env != ARM:
            raise SettingsError(
                f'env {self.env!r} stands still while the policy thinks, so that nothing can be executed '
                "meanwhile: --asynchronous is for env 'arm'"
            )
        if self.execution_horizon is not None and self.execution_horizon < 1:
            raise SettingsError(f'the horizon must be at least 1 row, not {self.execution_horizon}')
        if self.episodes < 1:
            raise SettingsError(f'episodes must be at least 1, not {self.episodes}')
        if self.seed < 0:
            raise SettingsError(f'seed must not be negative, and is {self.seed}')
        if self.max_steps is not None and self.max_steps < 1:
            raise SettingsError(f'max_steps must be at least 1, not {self.max_steps}')
        if not (math.isfinite(self.policy_timeout_s) and self.policy_timeout_s > 0):
            raise SettingsError(f'policy_timeout_s must be a positive number, not {self.policy_timeout_s}')
        if self.policy_timeout_s < LEAST_TIMEOUT_S:
            raise SettingsError(
                f'policy_timeout_s must be at least {LEAST_TIMEOUT_S:g} s, not {self.policy_timeout_s:g}'
            )
        for name, most in MOST.items():
            value = getattr(self, name)
            if value is not None and value > most:
                raise SettingsError(f'{name} must be at most {most}, not {value}')

    @property
    def execution(self) -> Execution | None:
        """How much of each chunk is executed; None: all, as always."""
        if self.execution_horizon is None and not self.asynchronous:
            return None
        return Execution(self.execution_horizon, self.asynchronous)
