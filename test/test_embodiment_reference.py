# SPDX-License-Identifier: Apache-2.0
"""The contract's page has every key of the schema, with its default, and no other."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Any

from openeta_ros.embodiment import Embodiment, available
from openeta_ros.embodiment.section import Section

PAGE = Path(__file__).parents[1] / 'docs' / 'reference' / 'embodiment.md'


def sections(annotation: Any) -> set[tuple[str, type[Section]]]:
    """Return the sections that a key may hold, each with what stands between: `.<name>` or `[]`."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return {('', annotation)}
    arguments = [argument for argument in typing.get_args(annotation) if argument is not ...]
    between = {dict: '.<name>', tuple: '[]'}.get(typing.get_origin(annotation), '')
    return {(between + inner, section) for argument in arguments for inner, section in sections(argument)}


def written(default: Any) -> str:
    if isinstance(default, Section):
        return '-'
    if isinstance(default, tuple):
        return f'[{", ".join(map(written, default))}]'
    if default is None or default == '':
        return "''" if default == '' else 'none'
    return f'{default:g}' if isinstance(default, float) else str(default)


def schema(model: type[Section], prefix: str = '') -> dict[str, str]:
    keys = {}
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        keys[key] = 'required' if field.is_required() else written(field.default)
        for between, section in sections(field.annotation):
            if section is not model:
                keys |= schema(section, f'{key}{between}.')
    return keys


def test_every_key_of_a_contract_is_documented_with_its_default():
    text = PAGE.read_text(encoding='utf-8')
    rows = re.findall(r'^\| `([^`]+)` \| ([^|]*) \|', text, flags=re.MULTILINE)
    shipped = set(available())
    documented = {key: default.strip() for key, default in rows if key not in shipped}
    assert len(documented) == len([key for key, _ in rows if key not in shipped])
    assert documented == schema(Embodiment)


def test_every_contract_that_ships_is_documented():
    text = PAGE.read_text(encoding='utf-8')
    for name in available():
        assert f'| `{name}` |' in text
