# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with a contract, or with a pose asked of the robot that it describes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Problem(NamedTuple):
    """One thing wrong in a file: the line it stands on (None: the file as a whole) and a sentence."""

    line: int | None
    message: str

    def __str__(self) -> str:
        return self.message if self.line is None else f'line {self.line}: {self.message}'


class EmbodimentError(ValueError):
    """A contract that cannot be used; `problems` holds everything wrong with it, in the file's order."""

    def __init__(self, path: str | Path, problems: Sequence[Problem]) -> None:
        super().__init__(path, problems)
        self.path = str(path)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f'{self.path}: {self.problems[0]}'
        return '\n  '.join([f'{self.path}: {len(self.problems)} problems', *map(str, self.problems)])


class KinematicsError(ValueError):
    """A robot description that does not fit its contract, or a pose that the arm does not reach."""
