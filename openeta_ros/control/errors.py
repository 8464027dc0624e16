# SPDX-License-Identifier: Apache-2.0
"""Why an action is refused."""

from __future__ import annotations


class ActionError(ValueError):
    """A chunk that is refused: nothing of it moves.

    `kind` is one of 'action_type', 'shape', 'dtype', 'not_finite', 'limit' (position, gripper), 'step' (step,
    velocity, acceleration), 'quaternion', 'unreachable', 'workspace'. `row` counts from 0; `joint` is the
    joint, or the column of an `ee` row (`arm.qw`); each is None where none is to blame.
    """

    def __init__(self, kind: str, message: str, *, row: int | None = None, joint: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.row = row
        self.joint = joint

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.kind, str(self), self.row, self.joint)


def _rebuild(kind: str, message: str, row: int | None, joint: str | None) -> ActionError:
    return ActionError(kind, message, row=row, joint=joint)
