# SPDX-License-Identifier: Apache-2.0
"""A generation request as a model is shown it: rules, the context as JSON, and its pictures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openeta_ros.code_policy.backends import CodePolicyGenerationRequest

# A picture in a policy context: an object with these two keys (see `observed.summarise`).
MEDIA_TYPE, BASE64 = 'media_type', 'base64'

SYSTEM = """\
You write one short Python snippet that controls a robot arm through the object `api`, and nothing else.
- `env_api_reference` lists everything there is: use no function that it does not name; keep to its limits.
- The snippet is one step of a closed loop, not the whole task: act for a short while, look at what came of
  it, and end. What it did, where it stopped and why will be in `memory` when the next snippet is asked for.
- Read `memory` first: correct what went wrong, and do not do again what is done.
- Keep to `safety_constraints`.
Answer with exactly one fenced block of Python code that is complete."""


@dataclass(frozen=True)
class Prompt:
    """`system` and `text` as plain text; `pictures` as (media type, base64), in the order of the text."""

    system: str
    text: str
    pictures: tuple[tuple[str, str], ...]


def make_prompt(request: CodePolicyGenerationRequest) -> Prompt:
    """Return what a model is shown: each part of the context below a heading of its name."""
    pictures: list[tuple[str, str]] = []
    context = _without_pictures(request.policy_context, pictures)
    parts = [f'# {name}\n{_told(value)}' for name, value in context.items()]
    return Prompt(request.system_prompt or SYSTEM, '\n\n'.join(parts), tuple(pictures))


def _told(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)


def _without_pictures(value: Any, pictures: list[tuple[str, str]]) -> Any:
    """Return a JSON-like value with the data of its pictures taken out and their numbers put in."""
    if isinstance(value, Mapping):
        if MEDIA_TYPE in value and BASE64 in value:
            pictures.append((str(value[MEDIA_TYPE]), str(value[BASE64])))
            others = {key: item for key, item in value.items() if key not in (MEDIA_TYPE, BASE64)}
            return {**others, 'picture': f'picture {len(pictures)} of this message'}
        return {key: _without_pictures(item, pictures) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_pictures(item, pictures) for item in value]
    return value
