# SPDX-License-Identifier: Apache-2.0
"""Who writes snippets: the boundary, and the backends that need no network.

A backend only writes. It reaches no env, and what it wrote is run by the sandbox, if at all.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openeta_ros.code_policy.answers import NoCode, extract_code
from openeta_ros.code_policy.types import CodePolicyStatus


@dataclass(frozen=True)
class CodePolicyGenerationRequest:
    """What a snippet is wanted for.

    `policy_context` is JSON-safe; `CodePolicyPlanner` fills its seven keys. `system_prompt` replaces the
    backend's own when it is not empty.
    """

    policy_context: Mapping[str, Any]
    system_prompt: str = ''
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CodePolicyGenerationResult:
    """What a backend wrote.

    `status` is 'planned' when there is code to run, 'pending' when there is only a placeholder, 'failed' when
    there is none: `details['error']` holds its `kind` and `message` then. JSON-safe, and free of keys.
    """

    code: str
    status: CodePolicyStatus
    provider: str = 'placeholder'
    model: str = 'none'
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it in types that JSON has."""
        return {
            'code': self.code,
            'status': self.status.value,
            'provider': self.provider,
            'model': self.model,
            'details': dict(self.details),
        }


class CodePolicyBackend(ABC):
    """Writes a snippet for a request."""

    @abstractmethod
    def generate(self, request: CodePolicyGenerationRequest) -> CodePolicyGenerationResult:
        """Return what was written. What goes wrong on the way is in the result, not raised."""

    def descriptor(self) -> dict[str, Any]:
        """Return what this backend is, JSON-safe; `implemented` says whether it can write code here."""
        return {'name': type(self).__name__, 'implemented': True}


class PlaceholderCodePolicyBackend(CodePolicyBackend):
    """Writes a program that does nothing but say what it would have been for."""

    def generate(self, request: CodePolicyGenerationRequest) -> CodePolicyGenerationResult:
        """Return a program with the status 'pending'."""
        task = str(request.policy_context.get('task', ''))
        reason = 'no backend that writes code is set up'
        code = (
            '# A placeholder: nothing moves.\n'
            f'TASK = {task!r}\n'
            f"RESULT = {{'status': 'pending_policy_generation', 'task': TASK, 'reason': {reason!r}}}\n"
        )
        details = {'policy_context_keys': sorted(request.policy_context)}
        return CodePolicyGenerationResult(code, CodePolicyStatus.PENDING, details=details)

    def descriptor(self) -> dict[str, Any]:
        """Say that it is no real one."""
        return {**super().descriptor(), 'implemented': False}


class StaticCodePolicyBackend(CodePolicyBackend):
    """Answers from a list, in order; after the last one it begins anew (`cycle`) or repeats the last."""

    def __init__(self, answers: Sequence[str], *, cycle: bool = False) -> None:
        if not answers:
            raise ValueError('a static backend needs at least one answer')
        self._answers = list(answers)
        self._cycle = cycle
        self._next = 0

    def generate(self, request: CodePolicyGenerationRequest) -> CodePolicyGenerationResult:
        """Return the next of the list."""
        count = len(self._answers)
        index = self._next % count if self._cycle else min(self._next, count - 1)
        self._next += 1
        return from_answer(self._answers[index], provider='static', details={'index': index})


class CallableCodePolicyBackend(CodePolicyBackend):
    """Asks a function, which returns an answer's text (code, or prose with a fenced block) or a result."""

    def __init__(
        self,
        function: Callable[[CodePolicyGenerationRequest], str | CodePolicyGenerationResult],
        *,
        model: str = 'none',
    ) -> None:
        self._function = function
        self._model = model

    def generate(self, request: CodePolicyGenerationRequest) -> CodePolicyGenerationResult:
        """Return what the function returns; an exception of its own is the result's error."""
        try:
            answer = self._function(request)
        except Exception as error:
            text = f'the function raised {type(error).__name__}: {error}'
            return failed('callable', text, provider='callable', model=self._model)
        if isinstance(answer, CodePolicyGenerationResult):
            return answer
        return from_answer(answer, provider='callable', model=self._model)


class RecordedCodePolicyBackend(CodePolicyBackend):
    """Gives again, in order, what a `RecordingCodePolicyBackend` wrote down: a run without its network."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            lines = path.read_text(encoding='utf-8').splitlines()
            self._results = [_from_dict(json.loads(line)) for line in lines if line.strip()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f'{path} is no recording of a backend: {error!r}') from None
        self._next = 0

    def generate(self, request: CodePolicyGenerationRequest) -> CodePolicyGenerationResult:
        """Return the next recorded result; a failed one when there is none left."""
        if self._next == len(self._results):
            text = f'{self._path.name} holds {self._next} answers, and all were given'
            return failed('recording_ended', text, provider='recorded')
        self._next += 1
        return self._results[self._next - 1]

    def descriptor(self) -> dict[str, Any]:
        """Name the file and how many answers it holds."""
        return {**super().descriptor(), 'path': str(self._path), 'answers': len(self._results)}


class RecordingCodePolicyBackend(CodePolicyBackend):
    """Asks another backend and appends each of its results to a file, one JSON object a line."""

    def __init__(self, backend: CodePolicyBackend, path: Path) -> None:
        self._backend = backend
        self._path = path

    def generate(self, request: CodePolicyGenerationRequest) -> CodePolicyGenerationResult:
        """Return the other's result, written down."""
        result = self._backend.generate(request)
        with self._path.open('a', encoding='utf-8') as file:
            file.write(json.dumps(result.to_dict()) + '\n')
        return result

    def descriptor(self) -> dict[str, Any]:
        """Return the other's."""
        return self._backend.descriptor()


def from_answer(
    answer: str, *, provider: str, model: str = 'none', details: Mapping[str, Any] | None = None
) -> CodePolicyGenerationResult:
    """Return the result of an answer's text: its code, or a failure of kind 'no_code'."""
    try:
        code = extract_code(answer)
    except NoCode as error:
        return failed('no_code', str(error), provider=provider, model=model, details=details)
    return CodePolicyGenerationResult(code, CodePolicyStatus.PLANNED, provider, model, dict(details or {}))


def failed(
    kind: str, message: str, *, provider: str, model: str = 'none', details: Mapping[str, Any] | None = None
) -> CodePolicyGenerationResult:
    """Return the result of a request that led to no code."""
    told = {**(details or {}), 'error': {'kind': kind, 'message': message}}
    return CodePolicyGenerationResult('', CodePolicyStatus.FAILED, provider, model, told)


def _from_dict(data: Mapping[str, Any]) -> CodePolicyGenerationResult:
    return CodePolicyGenerationResult(
        code=str(data['code']),
        status=CodePolicyStatus(data['status']),
        provider=str(data.get('provider', 'recorded')),
        model=str(data.get('model', 'none')),
        details=dict(data.get('details', {})),
    )
