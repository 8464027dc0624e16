# SPDX-License-Identifier: Apache-2.0
"""The words for whoever writes the next snippet: what was done, where it stopped, why, what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openeta_ros.code_policy import preflight
from openeta_ros.code_policy.trace import printable
from openeta_ros.code_policy.types import CodePolicyStatus

MOST_CALLS, MOST_CHECKPOINTS, MOST_OUTPUT = 12, 8, 1500

#: What is allowed, by the kind of error; {name} are budgets.
ALLOWED = {
    'syntax': 'Send one complete piece of Python.',
    'forbidden': 'A snippet may import {imports}; it has no files but its scratch folder, no network, no '
    'other processes, and no way around `api`.',
    'isolation': 'Nothing is wrong with the snippet; whoever runs it must change machine or settings.',
    'timeout': 'A run may take {wall_s:g} s, motion included: do less in one snippet.',
    'cpu': 'A run may use {cpu_s:g} s of processor time: compute less, or with NumPy.',
    'memory': 'The process may hold {memory_bytes} bytes, Python and NumPy included.',
    'output': 'A run may print {output_bytes} bytes, keep {file_bytes} bytes in files and pass {sent_bytes} '
    'bytes to its calls.',
    'calls': 'A run may make {calls} calls and set {checkpoints} checkpoints: use chunk_step or move_arm for '
    'many rows.',
    'rows': 'A run may send {rows} rows.',
    'resets': 'A run may reset {resets} times.',
    'action': 'Nothing of the refused call moved. Ask api.safe_check(name, ...) before a call that moves, '
    'and see `actions` in api.descriptor() for the limits.',
    'env': 'A step whose .done is True ends the episode; after it only api.reset moves again.',
    'tool': 'api.descriptor()["tools"] lists the tools and what they take.',
    'exception': 'The error is in the snippet: correct that line.',
    'killed': 'A snippet ends by coming to its last line.',
    'cancelled': 'Someone stopped the run; nothing need be wrong with the snippet.',
}


def feedback(status: CodePolicyStatus, code: str, details: dict[str, Any]) -> str:
    """Return the text for a result's `content`."""
    parts = [_headline(status, code, details)]
    calls = details.get('trace') or []
    if calls:
        parts.append(_done(calls, details))
    if details.get('state'):
        parts.append(_state(details['state'], details.get('dry_run')))
    error = details.get('error')
    if error is not None and error['kind'] in ALLOWED:
        imports = ', '.join(name for name in preflight.ALLOWED_IMPORTS if not name.startswith('_'))
        parts.append('Allowed: ' + ALLOWED[error['kind']].format(imports=imports, **details['budgets']))
    for warning in details.get('warnings') or []:
        parts.append(f'Warning, line {warning["line"]}: {warning["message"]}')
    if details.get('output'):
        printed = details['output']
        cut = f'(the last {MOST_OUTPUT} characters) ' if len(printed) > MOST_OUTPUT else ''
        parts.append(f'Printed: {cut}{printed[-MOST_OUTPUT:].rstrip()}')
    if details.get('result') is not None:
        parts.append(f'RESULT: {str(details["result"])[:MOST_OUTPUT]}')
    return printable('\n'.join(parts))


def _headline(status: CodePolicyStatus, code: str, details: dict[str, Any]) -> str:
    error = details.get('error')
    if error is None:
        meaning = {
            CodePolicyStatus.EXECUTED: 'the snippet ran to its end.',
            CodePolicyStatus.PLANNED: 'a dry run came to its end; nothing has moved for real.',
            CodePolicyStatus.SKIPPED: 'there is nothing in the snippet.',
            CodePolicyStatus.PENDING: 'there is no env to run it against.',
        }
        return f'{status.value}: {meaning.get(status, "")}'
    kinds = [error['kind'], *(str(error[key]) for key in ('action_kind', 'env_kind') if error.get(key))]
    ran = 'Nothing of it ran.' if status is CodePolicyStatus.BLOCKED else ''
    named = f'{error["type"]}: ' if error['kind'] == 'exception' and error.get('type') else ''
    return (
        f'{status.value} ({", ".join(kinds)}){_place(error, code)}: {named}{error["message"]}. {ran}'.rstrip()
    )


def _place(error: dict[str, Any], code: str) -> str:
    line = error.get('line')
    lines = code.splitlines()
    if not line or line > len(lines):
        return ''
    return f' at line {line}, `{lines[line - 1].strip()[:120]}`'


def _done(calls: Sequence[dict[str, Any]], details: dict[str, Any]) -> str:
    used = details.get('used', {})
    moved = sum(len(call.get('executed', ())) for call in calls)
    first = f'Done: {used.get("calls", 0)} calls, {moved} rows moved, {used.get("wall_s", 0.0):.1f} s.'
    shown = [call for call in calls if call['by'] == 'snippet' or call['call'] == 'reset'][-MOST_CALLS:]
    lines = []
    for call in shown:
        outcome = 'ok' if 'error' not in call else f'{call["error"]["kind"]} error'
        rows = f', rows {call["steps"][0]} to {call["steps"][1]}' if call['steps'] else ''
        line = f'line {call["line"]}: ' if call['line'] else ''
        lines.append(f'  {line}{call["call"]} {outcome}{rows}')
    marks = [
        f'  checkpoint {mark["label"]!r} at row {mark["step"]}'
        for mark in details.get('checkpoints', [])
        if mark['by'] == 'snippet'
    ]
    return '\n'.join([first, *lines, *marks[-MOST_CHECKPOINTS:]])


def _state(state: dict[str, Any], dry_run: str | None) -> str:
    numbers = '; '.join(
        f'{name} {[round(value, 4) for value in state[name]]}'
        for name in ('qpos', 'endpose')
        if name in state
    )
    ended = 'the episode has ended' if state['done'] else 'the arm holds'
    if dry_run == 'limits':
        ended = 'only checked against shapes and limits, nothing was simulated'
    success = 'yes' if state['success'] else 'no'
    return f'Now: row {state["step"]}, reward {state["reward"]:g}, success {success}, {ended}. {numbers}'
