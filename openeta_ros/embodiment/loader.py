# SPDX-License-Identifier: Apache-2.0
"""From a contract's file to an Embodiment: everything wrong with it is told at once, each with its line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from openeta_ros.embodiment.checks import findings
from openeta_ros.embodiment.errors import EmbodimentError, Problem
from openeta_ros.embodiment.resources import PACKAGE, share_folders
from openeta_ros.embodiment.schema import Embodiment

Place = tuple[str, ...]

# pydantic adds to a location the branch of a union ('<text>') and that a key is wrong ('[key]').
NOT_A_PLACE = ('<', '[')


def load(name_or_path: str | Path) -> Embodiment:
    """Return the contract of a name (`franka_genesis`) or of a path (`my/robot.yaml`).

    Raises:
        EmbodimentError: there is no such contract, or there are problems in it: all of them, with lines.
    """
    path = _find(name_or_path)
    try:
        text = path.read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise EmbodimentError(path, [Problem(None, f'cannot be read as UTF-8 text: {error}')]) from error
    contract, lines, problems = _parse(text, path)
    embodiment = None
    try:
        embodiment = Embodiment.model_validate(contract)
    except ValidationError as error:
        problems += _schema_problems(error, lines)
    problems += [Problem(_line(at, lines), f'{_dotted(at)}: {message}') for at, message in findings(contract)]
    if embodiment is None or problems:
        raise EmbodimentError(path, sorted(problems, key=lambda problem: problem.line or 0))
    embodiment._path = path
    return embodiment


def available() -> list[str]:
    """Return the names that `load` finds, sorted."""
    return sorted({file.stem for folder in _folders() for file in folder.glob('*.yaml')})


def _find(name_or_path: str | Path) -> Path:
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or '/' in text or text.endswith(('.yaml', '.yml')):
        return Path(name_or_path).expanduser().resolve()
    for folder in _folders():
        if os.path.isfile(folder / f'{text}.yaml'):
            return folder / f'{text}.yaml'
    known = ', '.join(available()) or 'none'
    raise EmbodimentError(text, [Problem(None, f'no contract has this name; give a path, or one of {known}')])


def _folders() -> list[Path]:
    return [folder / 'config' / 'embodiments' for folder in share_folders(PACKAGE)]


def _parse(text: str, path: Path) -> tuple[dict[Any, Any], dict[Place, int], list[Problem]]:
    """Return the file's mapping, the line of each place in it, and the keys that are given twice."""
    lines: dict[Place, int] = {}
    problems: list[Problem] = []
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise EmbodimentError(path, [Problem(1, 'is not a mapping of keys to values, as a contract is')])
        _walk(node, (), lines, problems, set())
        return loader.construct_document(node), lines, problems
    except EmbodimentError:
        raise
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise EmbodimentError(path, [Problem(line, f'is not YAML: {error.problem}')]) from error
    except RecursionError as error:
        raise EmbodimentError(path, [Problem(None, 'is not YAML: nested too deeply')]) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: PyYAML's own, of a date such as 2020-13-01
        raise EmbodimentError(path, [Problem(None, f'is not YAML: {error}')]) from error


def _walk(
    node: yaml.Node, at: Place, lines: dict[Place, int], problems: list[Problem], seen: set[int]
) -> None:
    # An anchor's node is met once for each alias: looking once keeps this finite, whatever refers to itself.
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place, line = (*at, str(key.value)), key.start_mark.line + 1
            if place in lines:
                problems.append(Problem(line, f'{_dotted(place)}: given twice, first in line {lines[place]}'))
            else:
                lines[place] = line
            _walk(value, place, lines, problems, seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            place = (*at, str(index))
            lines[place] = value.start_mark.line + 1
            _walk(value, place, lines, problems, seen)


def _schema_problems(error: ValidationError, lines: dict[Place, int]) -> list[Problem]:
    problems = []
    for detail in error.errors(include_url=False):
        place = tuple(part for part in detail['loc'] if not str(part).startswith(NOT_A_PLACE))
        if detail['type'] == 'missing':
            sentence = 'is required and missing'
        elif detail['type'] == 'extra_forbidden':
            sentence = 'is not a key of a contract here; remove it or correct its spelling'
        else:
            sentence = f'{detail["msg"][0].lower()}{detail["msg"][1:]}; found {detail["input"]!r}'
        problems.append(Problem(_line(place, lines), f'{_dotted(place)}: {sentence}'))
    return problems


def _line(place: tuple[str | int, ...], lines: dict[Place, int]) -> int:
    """Return the line of a place, or of the nearest thing around it that is in the file."""
    texts = tuple(map(str, place))
    while texts and texts not in lines:
        texts = texts[:-1]
    return lines.get(texts, 1)


def _dotted(place: tuple[str | int, ...]) -> str:
    return '.'.join(map(str, place))
