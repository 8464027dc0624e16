# SPDX-License-Identifier: Apache-2.0
"""OpenETA's names for envs, with its signatures; `openeta_ros.openeta` lists all of its names.

What is different, because the original was wrong or had no answer to it, stands at each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openeta_ros.embodiment import Embodiment, Kinematics, load
from openeta_ros.envs import registry
from openeta_ros.envs.errors import EnvError
from openeta_ros.envs.facade import EnvFacade
from openeta_ros.envs.spec import EnvSpec, StepResult
from openeta_ros.observation import Observation

DEFAULT_EMBODIMENT = 'franka_genesis'
_CONFIG = ('task', 'embodiment', 'max_episode_steps', 'seed', 'options')
# What other configs say where there is one env that runs one episode at a time; only that is possible here.
_ONLY = {'auto_reset': (False,), 'ignore_terminations': (False,), 'group_size': (1,), 'video_cfg': (None,)}

RlinfStepResult = StepResult


@dataclass(frozen=True)
class RlinfEnvSpec:
    """A request for an env: its type is the name of a backend that `openeta envs` lists.

    `env_cfg` is a mapping with `task` (required), and if wanted `embodiment` (name or path of a contract),
    `max_episode_steps`, `seed` (of the first scene, 0) and `options` of the backend. All of it is checked
    when the env is made, before anything starts; unknown keys are refused.

    Differences: one process holds one env, so `num_envs` is 1; `seed_offset` is added to the seed as there.
    `total_num_processes`, `worker_info` and `constructor_kwargs` say nothing to a backend of this package:
    other values than the defaults are refused instead of ignored.
    """

    env_type: str
    env_cfg: Any = None
    num_envs: int = 1
    seed_offset: int = 0
    total_num_processes: int = 1
    worker_info: Any = None
    constructor_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def env_spec(self) -> EnvSpec:
        """Return the same request as this package's own spec.

        Raises:
            EnvError: kind 'option': a value cannot be meant here.
            EmbodimentError: the contract cannot be used.
        """
        config = self._config()
        embodiment = config.get('embodiment', DEFAULT_EMBODIMENT)
        return EnvSpec(
            backend=self.env_type,
            task=config['task'],
            embodiment=embodiment if isinstance(embodiment, Embodiment) else load(embodiment),
            max_steps=config.get('max_episode_steps'),
            options=dict(config.get('options') or {}),
        )

    @property
    def first_seed(self) -> int:
        """The scene of the first reset without a seed."""
        return int(self._config().get('seed') or 0) + self.seed_offset

    def _config(self) -> Mapping[str, Any]:
        for name, only in (
            ('num_envs', 1),
            ('total_num_processes', 1),
            ('worker_info', None),
            ('constructor_kwargs', {}),
        ):
            value = getattr(self, name)
            if value != only:
                raise EnvError('option', f'{name} is {value!r}; an env of this package takes only {only!r}')
        config = self.env_cfg
        if not isinstance(config, Mapping):
            raise EnvError('option', f'env_cfg is a mapping, not {type(config).__name__}')
        for key, allowed in _ONLY.items():
            if key in config and config[key] not in allowed:
                raise EnvError('option', f'env_cfg {key} is {config[key]!r}; only {allowed[0]!r} is possible')
        unknown = sorted(str(key) for key in config if key not in (*_CONFIG, *_ONLY))
        if unknown:
            raise EnvError(
                'option', f'env_cfg has unknown keys {", ".join(unknown)}; it takes {", ".join(_CONFIG)}'
            )
        if not isinstance(config.get('task'), str):
            raise EnvError('option', f'env_cfg must name its task, and says {config.get("task")!r}')
        seed, options = config.get('seed'), config.get('options')
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise EnvError('option', f'env_cfg seed is {seed!r}; it is an integer')
        if options is not None and not isinstance(options, Mapping):
            raise EnvError('option', f'env_cfg options is a mapping, not {type(options).__name__}')
        return config


class RlinfEnvFacade(EnvFacade):
    """`EnvFacade` with what OpenETA's has beside it.

    Differences: `reset` returns the observation alone (there: a tuple with infos, so that the observation had
    another form after it than after a step); `chunk_step` returns one result per executed row, and stops at
    the end of the episode; actions are checked, and are single rows (A,) and chunks (H, A) without a leading
    axis of envs; `reset` takes no keywords but `seed`; there is no attribute `env`: nothing of the simulator
    can be reached past the facade; it is a context manager, and using it when closed is an error.
    """

    _next_seed = 0

    @classmethod
    def from_spec(cls, spec: RlinfEnvSpec | EnvSpec) -> RlinfEnvFacade:
        """Make the env that the spec names.

        Raises:
            EnvError, EmbodimentError: as `EnvFacade.from_spec` and `RlinfEnvSpec.env_spec`.
        """
        own = spec if isinstance(spec, EnvSpec) else spec.env_spec()
        kinematics = Kinematics(own.embodiment)
        facade = cls(own, kinematics, registry.make(own, kinematics))
        facade._next_seed = 0 if isinstance(spec, EnvSpec) else spec.first_seed
        return facade

    def reset(self, seed: int | None = None) -> Observation:
        """Begin an episode: in the scene of that seed; without one, in the next from the spec's seed on."""
        if seed is None:
            seed, self._next_seed = self._next_seed, self._next_seed + 1
        return super().reset(seed)

    def descriptor(self) -> dict[str, Any]:
        """Return what this env is, with the keys that OpenETA's descriptor has."""
        return {
            'name': type(self).__name__,
            'env_type': self.spec.backend,
            'env_class': type(self._world).__name__,
            'protocol': dict.fromkeys(('reset', 'step', 'chunk_step', 'close'), True),
            **super().descriptor(),
        }
