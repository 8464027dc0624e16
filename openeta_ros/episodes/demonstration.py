# SPDX-License-Identifier: Apache-2.0
"""Demonstrations: how a task is done, as the arrays that a policy is shown before it acts.

The arrays are those of an observation with a leading time axis of T moments, and beside them
`actions` (T-1, D) the commanded qpos rows between the moments, `times` (T,) seconds from the start and
`frequency` () rows per second. A file holds the same arrays as an .npz, with `info` as JSON text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from openeta_ros.episodes.runner import EpisodeEnv

INFO = 'info'


class DemonstrationError(ValueError):
    """A file holds no demonstration; the text is one sentence naming it."""


@dataclass(frozen=True)
class Demonstration:
    """One demonstration.

    Attributes:
        arrays: frames_<camera> (T, H, W, 3) uint8, qpos (T, D), endpose (T, E), actions (T-1, D),
            times (T,) s, frequency () Hz, the numbers float64.
        info: JSON-safe: frequency, cameras, embodiment, action_dims, instruction, seed, success.
        path: the file it lies in; None when it lies in none.
    """

    arrays: Mapping[str, NDArray[Any]]
    info: Mapping[str, Any]
    path: Path | None = None

    @property
    def success(self) -> bool:
        """Whether the demonstration solved its task; one that does not say counts as solved."""
        return bool(self.info.get('success', True))

    def save(self, path: Path) -> Demonstration:
        """Write the .npz file, complete or not at all, and return the demonstration that lies in it."""
        partial = path.with_name(f'{path.name}.partial')
        content: dict[str, Any] = {INFO: np.array(json.dumps(dict(self.info))), **self.arrays}
        with partial.open('wb') as file:
            np.savez(file, **content)
        os.replace(partial, path)
        return replace(self, path=path)


def load(path: Path) -> Demonstration:
    """Return the demonstration in an .npz file (of `Demonstration.save`, or np.savez of the same names), or
    in a folder of .npy files.

    Raises:
        DemonstrationError: the file cannot be read, or holds no `actions` (T-1, D).
    """
    try:
        if path.is_dir():
            found = {file.stem: np.load(file, allow_pickle=False) for file in sorted(path.glob('*.npy'))}
        else:
            with np.load(path, allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}
        info = json.loads(str(found.pop(INFO, '{}')))
        arrays = found
    except Exception as error:  # NumPy, zipfile and zlib have one each for every kind of damage
        raise DemonstrationError(f'{path} is not an .npz demonstration: {error}') from None
    if not isinstance(info, dict):
        raise DemonstrationError(f'{path}: info must be a JSON object, not {type(info).__name__}')
    if 'actions' not in arrays or arrays['actions'].ndim != 2 or not arrays['actions'].size:
        shapes = {name: array.shape for name, array in arrays.items()}
        raise DemonstrationError(f'{path} needs an array actions of shape (T-1, D), and holds {shapes}')
    return Demonstration(arrays, info, path)


def record_demonstration(env: EpisodeEnv, seed: int) -> Demonstration:
    """Let the scripted expert solve the scene of `seed` and return what was seen and commanded.

    `info['success']` tells whether it worked; the env is left where the expert stopped.

    Raises:
        EnvError: kind 'no_expert' when the env has none; and whatever reset and chunk_step raise.
        ActionError: the expert's own rows were refused.
    """
    first = env.reset(seed)
    rows = env.expert()
    results = env.chunk_step(rows, 'qpos')
    observations = [first, *(result.observation for result in results)]
    facts = env.descriptor()
    arrays = {name: np.stack([seen[name] for seen in observations]) for name in first}
    arrays['actions'] = np.asarray(rows[: len(results)], dtype=np.float64)
    stamps = np.array([seen.stamp_ns for seen in observations], dtype=np.int64)
    arrays['times'] = (stamps - stamps[0]) / 1e9
    arrays['frequency'] = np.array(facts['rate_hz'], dtype=np.float64)
    info = {
        'frequency': float(facts['rate_hz']),
        'cameras': [name.removeprefix('frames_') for name in first if name.startswith('frames_')],
        'embodiment': facts['embodiment'],
        'action_dims': facts['action_sizes'],
        'instruction': facts['instruction'],
        'seed': seed,
        'success': bool(results[-1].info['success']),
    }
    return Demonstration(arrays, info)
