# SPDX-License-Identifier: Apache-2.0
"""What the sections of a contract are made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field

# Strict: a text or a true/false where a number belongs is a mistake, not something to convert.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0)]
Pixels = Annotated[int, Field(strict=True, gt=0)]
Offset = Annotated[int, Field(strict=True, ge=0)]
Text = Annotated[str, Field(min_length=1)]
# Names end up in topics and in array names (`frames_<camera>`).
Name = Annotated[str, Field(pattern=r'^[A-Za-z][A-Za-z0-9_]*$')]
Topic = Annotated[str, Field(pattern=r'^[~/]?[A-Za-z_][A-Za-z0-9_/]*$')]
Vector = tuple[Number, Number, Number]
Quaternion = tuple[Number, Number, Number, Number]


def branch(value: Any) -> str:
    return '<text>' if isinstance(value, str) else '<values>'


def branch_or_list(value: Any) -> str:
    return '<list>' if isinstance(value, list | tuple) else branch(value)


# Text or values: the kind that was written decides, so that a mistake is reported once and where it stands.
TextOrValues = Discriminator(branch)


class Section(BaseModel):
    """A mapping of the file: its keys are known, and its values never change."""

    model_config = ConfigDict(extra='forbid', frozen=True)
