# SPDX-License-Identifier: Apache-2.0
"""Relative actions become absolute ones where the observation that the policy saw is still at hand.

Anchored later, to where the arm has got to meanwhile, they would add that way once more.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from openeta_ros.control.errors import ActionError
from openeta_ros.control.rows import Array, decode_rows, labels
from openeta_ros.embodiment import Embodiment, Kinematics


def absolute_rows(
    actions: npt.ArrayLike,
    action_type: str,
    qpos_observed: npt.ArrayLike,
    embodiment: Embodiment,
    kinematics: Kinematics,
) -> Array:
    """Return a policy's chunk as absolute rows (H, A), which is what all else takes.

    Args:
        actions: (A,) or (H, A) as the policy answered. With `action.mode: relative` in the contract, joints
        are
            offsets from the observed ones; of a tool pose `x y z` are offsets in the base frame, and the
            quaternion turns the observed tool about the axes of the base frame (identity: as it was).
            Grippers are always absolute.
        action_type: 'qpos' or 'ee'.
        qpos_observed: (D,) of the observation that the policy answered to.

    Raises:
        ActionError: kinds 'action_type', 'shape', 'dtype', 'not_finite', 'quaternion'.
    """
    rows = decode_rows(actions, labels(embodiment, action_type), action_type)
    if embodiment.action.mode == 'absolute':
        return rows
    observed = np.asarray(qpos_observed, dtype=np.float64)
    places = embodiment.slices('qpos')
    for name, place in embodiment.slices('ee' if action_type == 'ee' else 'qpos').items():
        arm = embodiment.arms[name]
        joints = observed[places[name]][: len(arm.joints)]
        if action_type == 'qpos':
            rows[:, place.start : place.start + len(joints)] += joints
            continue
        pose = kinematics.forward(name, joints)
        rows[:, place.start : place.start + 3] += pose[:3]
        turned = slice(place.start + 3, place.start + 7)
        rows[:, turned] = [_product(one, pose[3:], name, row) for row, one in enumerate(rows[:, turned])]
    return rows


def _product(turn: Array, observed: Array, arm: str, row: int) -> Array:
    """Return the quaternion of first the observed rotation, then the turn; scalars first."""
    length = np.linalg.norm(turn)
    if length == 0:
        raise ActionError(
            'quaternion',
            f'row {row}: the quaternion of {arm} is zero; send 1 0 0 0 for no turn',
            row=row,
            joint=f'{arm}.qw',
        )
    w, v = turn[0] / length, turn[1:] / length
    scalar, vector = observed[0], observed[1:]
    return np.concatenate([[w * scalar - v @ vector], w * vector + scalar * v + np.cross(v, vector)])
