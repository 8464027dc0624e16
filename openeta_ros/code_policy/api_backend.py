# SPDX-License-Identifier: Apache-2.0
"""Snippets from a model behind an HTTP API: OpenAI-compatible or Anthropic, by their own client libraries.

The libraries (the extra `code_policy`) are imported when they are used. Retries, deadlines and the fallback
are ours, so that both kinds behave alike and each attempt is in the result. No key is in what comes out of
here: not in results, not in logs, and errors of the libraries, which carry the request, do not pass.
"""

from __future__ import annotations

import importlib.util
import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from openeta_ros.code_policy.backends import (
    CodePolicyBackend,
    CodePolicyGenerationRequest,
    CodePolicyGenerationResult,
    failed,
    from_answer,
)
from openeta_ros.code_policy.prompt import Prompt, make_prompt
from openeta_ros.code_policy.providers import PROVIDERS, Answer, ApiError
from openeta_ros.code_policy.redaction import Redactor

# A server that wants to be left alone for longer than this is given up.
LONGEST_WAIT_S = 30.0
# What of a library's or a server's own words goes into an error.
MAX_TOLD_CHARS = 500
# For servers that want none; the libraries do not start without.
NO_KEY = 'none'


@dataclass(frozen=True)
class ApiBackendConfig:
    """Which model to ask, and how.

    Attributes:
        provider: 'openai' (OpenAI, and every server that speaks its chat completions) or 'anthropic'.
        model: the model's name at that provider.
        api_base: where the API is; None: the provider's own address. OpenAI's ends in /v1, Anthropic's does
            not.
        api_key_env: the environment variable that holds the key; None: the provider's own
            (OPENAI_API_KEY, ANTHROPIC_API_KEY) at its own address, and no key at any other `api_base`: that
            is not who the provider's key is for.
        timeout_s: limit of one attempt, from sending to the last byte of the answer.
        metadata: for the reader; it goes into the descriptor.
        max_tokens: limit of the answer.
        attempts: how often one endpoint is tried when it cannot be reached, is busy or broken.
        backoff_s: pause before the second attempt, doubled before each further one; a server's Retry-After
            counts instead where it names one.
        fallback: asked when this one gave no answer at all.
    """

    provider: str
    model: str
    api_base: str | None = None
    api_key_env: str | None = None
    timeout_s: float = 60.0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int = 4096
    attempts: int = 3
    backoff_s: float = 0.5
    fallback: ApiBackendConfig | None = None

    def __post_init__(self) -> None:
        if self.provider not in PROVIDERS:
            raise ValueError(f'provider {self.provider!r} is not one of {", ".join(sorted(PROVIDERS))}')
        if not self.model:
            raise ValueError('model must be the name of a model, and is empty')
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise ValueError(f'timeout_s must be a positive number, not {self.timeout_s}')
        if not (math.isfinite(self.backoff_s) and self.backoff_s >= 0):
            raise ValueError(f'backoff_s must be a number from 0 on, not {self.backoff_s}')
        for name in ('max_tokens', 'attempts'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} must be at least 1, not {getattr(self, name)}')

    @property
    def key_env(self) -> str | None:
        """The environment variable that holds the key; None where none is sent."""
        if self.api_key_env is None and self.api_base is not None:
            return None
        return self.api_key_env or PROVIDERS[self.provider].key_env

    def key(self) -> str | None:
        """Return the key; None when one is needed and the environment has none."""
        return NO_KEY if self.key_env is None else os.environ.get(self.key_env, '').strip() or None

    def missing(self) -> str | None:
        """Return what keeps this endpoint from being asked here, and the remedy; None when nothing does."""
        library = PROVIDERS[self.provider].library
        if importlib.util.find_spec(library) is None:
            return f'the package {library} is not installed: pip install {library}'
        if self.key() is None:
            return f'the environment variable {self.key_env} holds no key'
        return None


class ApiCodePolicyBackend(CodePolicyBackend):
    """Asks the model of a config, and the fallback's when that gives no answer.

    A result's `details` hold `attempts` (endpoint, outcome and seconds of each), `usage` as the API told it,
    and `error` when there is no code: 'unavailable' (no endpoint answered), 'refusal' (the model declined),
    'truncated' (the answer ran into max_tokens), 'no_code'.
    """

    def __init__(self, config: ApiBackendConfig) -> None:
        self.config = config

    def generate(self, request: CodePolicyGenerationRequest) -> CodePolicyGenerationResult:
        """Return the code of the model's answer, or why there is none. Never raises for what the API does."""
        prompt = make_prompt(request)
        attempts: list[dict[str, Any]] = []
        config: ApiBackendConfig | None = self.config
        redactor = Redactor(filter(None, (one.key() for one in self._endpoints())))
        while config is not None:
            answer = _ask(config, prompt, redactor, attempts)
            if answer is not None:
                return _result(config, answer, redactor, attempts)
            config = config.fallback
        last = attempts[-1]
        text = f'no answer in {len(attempts)} attempts; the last: {last["outcome"]}: {last["message"]}'
        details = {'attempts': attempts}
        provider, model = self.config.provider, self.config.model
        return failed('unavailable', text, provider=provider, model=model, details=details)

    def descriptor(self) -> dict[str, Any]:
        """Return the endpoints in the order of asking; `implemented` when one of them can be asked here."""
        endpoints = [_described(config) for config in self._endpoints()]
        return {
            **super().descriptor(),
            **endpoints[0],
            'implemented': any(one['missing'] is None for one in endpoints),
            'fallbacks': endpoints[1:],
        }

    def _endpoints(self) -> list[ApiBackendConfig]:
        found: list[ApiBackendConfig] = []
        config: ApiBackendConfig | None = self.config
        while config is not None:
            found.append(config)
            config = config.fallback
        return found


def _ask(
    config: ApiBackendConfig, prompt: Prompt, redactor: Redactor, attempts: list[dict[str, Any]]
) -> Answer | None:
    """Return an endpoint's answer, None when it gives none; each attempt is noted."""
    for number in range(config.attempts):
        begin = time.monotonic()
        error = None
        try:
            answer: Answer | None = _within_deadline(config, prompt, redactor)
        except ApiError as raised:
            answer, error = None, raised
        attempts.append(
            {
                'provider': config.provider,
                'model': config.model,
                'api_base': _address(config.api_base),
                'outcome': 'answered' if error is None else error.kind,
                'message': '' if error is None else redactor.text(str(error))[:MAX_TOLD_CHARS],
                'seconds': round(time.monotonic() - begin, 3),
            }
        )
        if error is None:
            return answer
        pause_s = config.backoff_s * 2.0**number if error.retry_after_s is None else error.retry_after_s
        if not error.passing or number + 1 == config.attempts or pause_s > LONGEST_WAIT_S:
            return None
        time.sleep(pause_s)
    return None


def _within_deadline(config: ApiBackendConfig, prompt: Prompt, redactor: Redactor) -> Answer:
    """Ask once. The libraries' timeouts are for each read: a server that sends a byte now and then would
    never meet them, so the whole attempt has a deadline here and a thread that may be left behind."""
    lacking, key = config.missing(), config.key()
    if lacking is not None or key is None:
        raise ApiError('not_set_up', lacking or 'there is no key')
    provider = PROVIDERS[config.provider]
    outcome: list[Answer | ApiError] = []

    def ask() -> None:
        try:
            outcome.append(provider.ask(config, key, prompt))
        except ApiError as error:
            outcome.append(error)
        except Exception as error:  # a fault of the library: as text, since it may carry the request
            outcome.append(ApiError('client', f'{type(error).__name__}: {error}'))

    try:
        provider.load()
    except ImportError as error:  # of what it needs itself
        raise ApiError('not_set_up', f'the package {provider.library} does not import: {error}') from None
    redactor.guard_logs(provider.loggers)
    thread = threading.Thread(target=ask, name=f'{config.provider} request', daemon=True)
    thread.start()
    thread.join(config.timeout_s)
    answer = outcome[0] if outcome else None
    if answer is None or (isinstance(answer, ApiError) and answer.kind == 'timeout'):  # whoever came first
        raise ApiError('timeout', f'no whole answer within {config.timeout_s:g} s', passing=True)
    if isinstance(answer, ApiError):
        raise answer
    return answer


def _result(
    config: ApiBackendConfig, answer: Answer, redactor: Redactor, attempts: list[dict[str, Any]]
) -> CodePolicyGenerationResult:
    provider, model = config.provider, config.model
    text = redactor.text(answer.text)
    details = {'attempts': attempts, 'usage': redactor.value(answer.usage), 'answer': text}
    if answer.refused:
        told = f'the model declined: {text[:MAX_TOLD_CHARS]}' if text else 'the model declined'
        return failed('refusal', told, provider=provider, model=model, details=details)
    if answer.truncated:
        told = f'the answer was cut at {config.max_tokens} tokens: a shorter snippet, or a higher max_tokens'
        return failed('truncated', told, provider=provider, model=model, details=details)
    return from_answer(text, provider=provider, model=model, details=details)


def _described(config: ApiBackendConfig) -> dict[str, Any]:
    return {
        'provider': config.provider,
        'model': config.model,
        'api_base': _address(config.api_base),
        'api_key_env': config.key_env,
        'timeout_s': config.timeout_s,
        'attempts': config.attempts,
        'metadata': dict(config.metadata),
        'missing': config.missing(),
    }


def _address(api_base: str | None) -> str | None:
    """Return an address without the user, password and query that it may hold."""
    if api_base is None:
        return None
    parts = urlsplit(api_base)
    return urlunsplit((parts.scheme, parts.netloc.rpartition('@')[2], parts.path, '', ''))
