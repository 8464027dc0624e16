# SPDX-License-Identifier: Apache-2.0
"""Replays the demonstration's actions, `chunk` rows at a time, and then repeats the last row.

It goes on behind the rows it gave: for evaluations with --horizon N, set `chunk: N` in policy.yaml.

Try it: openeta eval --policy examples/replay_policy --demonstration expert
"""

from __future__ import annotations

import numpy as np


class ReplayPolicy:
    action_type = 'qpos'

    def __init__(self, chunk=10):
        if chunk < 1:
            raise ValueError(f'chunk must be at least 1 row, not {chunk!r}')
        self._chunk = chunk
        self._actions = None
        self._next = 0

    def set_demonstration(self, arrays, info):
        actions = arrays.get('actions')
        if actions is None or actions.ndim != 2 or len(actions) == 0:
            shape = None if actions is None else actions.shape
            raise ValueError(f"the demonstration needs 'actions' of shape (T-1, A), not {shape}")
        self._actions = np.array(actions)
        self._next = 0

    def reset(self, seed):
        self._next = 0

    def act(self, observation):
        if self._actions is None:
            raise RuntimeError('replay_policy has no demonstration to replay: give it one before act')
        first = min(self._next, len(self._actions) - 1)
        self._next = first + self._chunk
        return {'action': self._actions[first : self._next]}
