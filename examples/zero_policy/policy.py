# SPDX-License-Identifier: Apache-2.0
"""The smallest policy: answers one row of zeros, as wide as the robot's action.

Try it: openeta eval --policy examples/zero_policy
"""

from __future__ import annotations

import numpy as np

#: The observation array that is as wide as an action of each type.
SAME_WIDTH = {'qpos': 'qpos', 'ee': 'endpose'}


class ZeroPolicy:
    def __init__(self, action_type='qpos'):
        self.action_type = action_type
        self._width = None

    def set_demonstration(self, arrays, info):
        self._width = info.get('action_dims', {}).get(self.action_type)

    def reset(self, seed):
        pass  # nothing to forget: the width is the robot's, not the episode's

    def act(self, observation):
        if self._width is None:
            self._width = len(observation[SAME_WIDTH[self.action_type]])
        return {'action': np.zeros(self._width)}
