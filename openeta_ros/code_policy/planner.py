# SPDX-License-Identifier: Apache-2.0
"""From what an agent sees and remembers to the next snippet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openeta_ros.code_policy.backends import (
    CodePolicyBackend,
    CodePolicyGenerationRequest,
    PlaceholderCodePolicyBackend,
)
from openeta_ros.code_policy.observed import Pictures, summarise
from openeta_ros.code_policy.types import CodePolicyExecutionResult, CodePolicyStatus

SAFETY_CONSTRAINTS = (
    'Do one short, bounded piece of the task, and end: the next snippet is written from what came of it.',
    'Every row is checked before it moves; a refused one moves nothing. Plan inside the limits of '
    'env_api_reference instead of trying them out.',
    'Look again after each change, set a checkpoint where the env_api_reference offers it, and stop when '
    'something else is seen than was expected.',
    'Where the task or the scene is ambiguous, move nothing and say in RESULT what should be asked.',
)

# What of a run is remembered. The whole of it is in the record.
_REMEMBERED = ('error', 'warnings', 'checkpoints', 'result', 'output', 'reward', 'success', 'used')
# Newest checkpoints of a run, and characters of its snippet and its feedback.
_CHECKPOINTS, _CODE_CHARS = 5, 6000


@dataclass(frozen=True)
class PlannerDecision:
    """What an agent does next: hand this code to the sandbox.

    `parameters` holds `policy_context`, without the pixels of its pictures; `metadata` the planner, the
    backend's descriptor, `generation_status` and `generation_details`. Without code (`generation_status`
    'failed'), `reasoning` says why there is none.
    """

    action_type: str
    action: str
    parameters: Mapping[str, Any]
    code: str
    reasoning: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


class CodePolicyPlanner:
    """Makes the context that a snippet is written from, and has a backend write it.

    Args:
        backend: who writes; None: a placeholder.
        api: the descriptor of the api that the snippet will be given (`CodePolicyApi.descriptor()`): the only
            source of what the model is told exists.
        pictures: 'reference' tells the shape of pictures, 'png' shows them.
        max_chars: how long the context may be as JSON, pictures not counted. The oldest memory goes first,
            then the last skills and tools; task, observation and api reference always stay.
    """

    def __init__(
        self,
        backend: CodePolicyBackend | None = None,
        *,
        api: Mapping[str, Any],
        pictures: Pictures = 'reference',
        max_chars: int = 60_000,
    ) -> None:
        if max_chars < 1:
            raise ValueError(f'max_chars must be at least 1, not {max_chars}')
        self.backend = backend or PlaceholderCodePolicyBackend()
        self._api = api
        self._pictures = pictures
        self._max_chars = max_chars

    def plan(
        self,
        observation: Any,
        *,
        memory: Sequence[Any] = (),
        tools: Sequence[Any] = (),
        skills: Sequence[Any] = (),
        task: str,
    ) -> PlannerDecision:
        """Return the decision to run the snippet that the backend wrote.

        Args:
            observation: what is seen: a mapping of names to arrays, or anything that JSON has.
            memory: what happened before, the oldest first: results of runs, `remember`ed ones, texts.
            tools: what the snippet may call by name: texts or mappings.
            skills: guidance in words: texts or mappings.
            task: what is to be done.
        """
        context: dict[str, Any] = {
            'task': summarise(task),
            'observation': summarise(observation),
            'memory': [],
            'tool_references': [],
            'skill_references': [],
            'env_api_reference': self._api,
            'safety_constraints': list(SAFETY_CONSTRAINTS),
        }
        left = self._max_chars - _chars(context)
        more, older = '{} more are left out', '{} older entries are left out'
        context['tool_references'], left = _fitting(map(summarise, tools), left, more)
        context['skill_references'], left = _fitting(map(summarise, skills), left, more)
        context['memory'] = _fitting(map(remember, reversed(memory)), left, older)[0][::-1]
        # What a model is shown of pictures is neither the decision's nor the snippet's.
        shown = {**context, 'observation': summarise(observation, pictures=self._pictures)}
        result = self.backend.generate(CodePolicyGenerationRequest(shown))
        reasoning = f'{result.provider} wrote {len(result.code.splitlines())} lines for the task'
        if result.status is CodePolicyStatus.FAILED:
            reasoning = f'no code was written: {result.details["error"]["message"]}'
        return PlannerDecision(
            action_type='tool_call',
            action='code_policy',
            parameters={'policy_context': context},
            code=result.code,
            reasoning=reasoning,
            metadata={
                'planner': type(self).__name__,
                'backend': self.backend.descriptor(),
                'generation_status': result.status.value,
                'generation_details': dict(result.details),
                'execution_model': 'optional_bounded_code_policy',
            },
        )


def _fitting(entries: Iterable[Any], left: int, cut: str) -> tuple[list[Any], int]:
    """Return the first entries that fit into so many characters, and how many are left then.

    Where not all do, `cut` comes last, with how many are left out, and less than nothing is left.
    """
    kept: list[Any] = []
    waiting = list(entries)
    for number, entry in enumerate(waiting):
        left -= _chars(entry)
        if left < 0:
            return [*kept, cut.format(len(waiting) - number)], left
        kept.append(entry)
    return kept, left


def remember(entry: Any, *, code: str | None = None) -> Any:
    """Return a run's result, or anything else, as an entry of memory: JSON-safe, without pictures, bounded.

    A result becomes its `status`, its feedback `content`, the newest checkpoints, error, what it printed and
    its RESULT; `code` adds the snippet that it is of. (A mapping that holds a `result` of a run is one with
    what else it holds.)
    """
    if isinstance(entry, CodePolicyExecutionResult):
        details = {name: entry.details[name] for name in _REMEMBERED if entry.details.get(name)}
        if 'checkpoints' in details:
            details['checkpoints'] = details['checkpoints'][-_CHECKPOINTS:]
        told = {'status': entry.status.value, 'content': entry.content[:_CODE_CHARS], **summarise(details)}
        return told if code is None else {'code': code[:_CODE_CHARS], **told}
    return summarise(entry)


def _chars(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False, default=str))
