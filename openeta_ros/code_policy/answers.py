# SPDX-License-Identifier: Apache-2.0
"""From what a model answers to the code that it means."""

from __future__ import annotations

import ast
import re
import textwrap

_FENCE = re.compile(r'[ \t]*(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[^\s`]*)[^`]*')
_PYTHON = ('python', 'py', 'python3')


class NoCode(ValueError):
    """An answer that holds no code; the text says what was found instead."""


def extract_code(answer: str) -> str:
    """Return the code of an answer.

    Of several fenced blocks it is the last one that is marked as Python, or else the last one without a
    language: a model shows pieces first and the whole at the end. An answer without a fence is code when it
    is Python from its first line to its last.

    Raises:
        NoCode: there is no such block, and the answer itself is not Python.
    """
    text = answer.replace('\r\n', '\n')
    blocks = _blocks(text)
    for wanted in (_PYTHON, ('',)):
        codes = [code for language, code in blocks if language in wanted and code.strip()]
        if codes:
            return codes[-1]
    if not text.strip():
        raise NoCode('the answer is empty')
    if blocks:
        languages = ', '.join(sorted({language or 'none' for language, _ in blocks}))
        raise NoCode(f'the answer has no block of Python code (its blocks are of: {languages})')
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise NoCode(f'the answer has no fenced block of code, and is not Python itself: {error}') from None
    return text


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, code) of each fenced block; one that is never closed ends with the text."""
    found: list[tuple[str, str]] = []
    fence, language, lines = '', '', list[str]()
    for line in text.split('\n'):
        match = _FENCE.fullmatch(line)
        if not fence:
            if match:
                fence, language, lines = match['fence'], match['language'].lower(), []
        elif match and not match['language'] and match['fence'].startswith(fence):
            found.append((language, _dedented(lines)))
            fence = ''
        else:
            lines.append(line)
    if fence:
        found.append((language, _dedented(lines)))
    return found


def _dedented(lines: list[str]) -> str:
    return textwrap.dedent('\n'.join([*lines, '']))
