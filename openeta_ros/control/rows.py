# SPDX-License-Identifier: Apache-2.0
"""From whatever a policy answers to rows (H, A) of finite float64."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from openeta_ros.control.errors import ActionError
from openeta_ros.embodiment import Embodiment

Array = npt.NDArray[np.float64]

POSE_COLUMNS = ('x', 'y', 'z', 'qw', 'qx', 'qy', 'qz')


def labels(embodiment: Embodiment, action_type: str) -> list[str]:
    """Return what each column of an action of a type is: a joint, or `<arm>.<coordinate>`.

    Raises:
        ActionError: kind 'action_type'.
    """
    if action_type == 'qpos':
        return embodiment.wire_joints
    if action_type != 'ee':
        raise ActionError('action_type', f'the action type is {action_type!r}; it is one of qpos, ee')
    columns: list[str] = []
    for name, arm in embodiment.arms.items():
        columns += [f'{name}.{column}' for column in POSE_COLUMNS]
        columns += [arm.gripper.joint] if arm.gripper else []
    return columns


def decode_rows(actions: npt.ArrayLike, labels: Sequence[str], action_type: str) -> Array:
    """Return one row (A,) or a chunk (H, A) as a new (H, A) float64 array.

    Args:
        actions: an array, a tensor on the CPU, or nested sequences, of real numbers. True, texts and the like
            are no numbers, also where NumPy would convert them.
        labels: (A,) what each column is, for messages.
        action_type: the layout that the labels are of, for messages.

    Raises:
        ActionError: kinds 'shape', 'dtype', 'not_finite'.
    """
    values = _array(actions)
    if values.ndim == 1:
        values = values[None]
    if values.ndim != 2 or values.shape[1] != len(labels) or not len(values):
        expected = f'({len(labels)},) or (H, {len(labels)})'
        raise ActionError(
            'shape',
            f'the actions have shape {np.shape(values)}; {action_type} is {expected}: {", ".join(labels)}',
        )
    if values.dtype.kind == 'O':
        for (row, column), value in np.ndenumerate(values):
            if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
                what = f'{labels[column]} is {value!r}, of type {type(value).__name__}'
                raise ActionError(
                    'dtype', f'row {row}: {what}; send real numbers', row=row, joint=labels[column]
                )
    elif values.dtype.kind not in 'iuf':
        raise ActionError('dtype', f'the actions have dtype {values.dtype}; send real numbers, as float64')
    try:
        rows = values.astype(np.float64)
    except OverflowError as error:
        raise ActionError('dtype', f'the actions hold a number beyond float64: {error}') from error
    for row, column in np.argwhere(~np.isfinite(rows)):
        what = f'{labels[column]} is {rows[row, column]}'
        raise ActionError(
            'not_finite', f'row {row}: {what}; send finite numbers', row=int(row), joint=labels[column]
        )
    return rows


def _array(actions: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        # Of nested sequences the values are kept as they are: a True among them must not become 1.0.
        values = np.asarray(actions) if hasattr(actions, '__array__') else np.array(actions, dtype=object)
    except (TypeError, ValueError) as error:
        raise ActionError('shape', f'the actions are no array of one shape: {error}') from error
    for row, value in enumerate(values if values.dtype.kind == 'O' and values.ndim == 1 else ()):
        if isinstance(value, list | tuple | np.ndarray):
            raise ActionError('shape', f'row {row} of the chunk differs in length from others', row=row)
    return values
