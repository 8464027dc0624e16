# SPDX-License-Identifier: Apache-2.0
"""Snippets that are broken, or that try to get out: (name, kinds of error that fit, code).

`None` among the kinds: it may also come to its end, because what it tried was refused and it went on. The
preflight is off when these run, so that they meet the process itself. CANARY, PORT, PARENT and SPOILS are
filled in by the test: a file outside, a listening port, the test's own process, where it would like to write.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Case(NamedTuple):
    name: str
    kinds: tuple[str | None, ...]
    code: str


# One `---` line between cases: name | kinds, then the code.
CORPUS = Path(__file__).parent / 'data/hostile_snippets.txt'


def corpus() -> list[Case]:
    """Return every case."""
    cases = []
    for text in CORPUS.read_text(encoding='utf-8').strip('\n').split('\n---\n'):
        head, _, code = text.partition('\n')
        name, _, kinds = head.partition(' | ')
        code = code.replace('\\0', '\0') if 'null_byte' in name else code
        code = code.replace('MINUSES', '-' * 150_000 + '1').replace('SUM', '+'.join('1' * 60_000))
        code = code.replace('SURROGATE', '\ud800').replace('ATTRIBUTES', 'api' + '.a' * 100_000)
        code = code.replace('DEEP', '(' * 300 + '1' + ')' * 300)
        cases.append(Case(name, tuple(None if kind == 'None' else kind for kind in kinds.split()), code))
    return cases
