# SPDX-License-Identifier: Apache-2.0
"""One call of each API through its client library, and one form of answer and of error for both."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openeta_ros.code_policy.prompt import Prompt

if TYPE_CHECKING:
    from openeta_ros.code_policy.api_backend import ApiBackendConfig

# Status codes of a server that may answer a little later: too early, busy, broken.
PASSING = frozenset({408, 409, 425, 429})


@dataclass(frozen=True)
class Answer:
    """What a model answered: its text, whether it declined or was cut off, the usage as the API tells it."""

    text: str
    refused: bool = False
    truncated: bool = False
    usage: Mapping[str, Any] = field(default_factory=dict)


class ApiError(Exception):
    """An attempt without an answer.

    `kind` is 'timeout', 'connection', 'key' (401, 403), 'busy' (429), 'server' (5xx), 'request' (the rest of
    4xx), 'bad_answer' (not what this API answers), 'client' (a fault of the library) or 'not_set_up'.
    `passing` says whether trying again may help, `retry_after_s` when the server says so.
    """

    def __init__(
        self, kind: str, message: str, *, passing: bool = False, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.passing = passing
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Provider:
    """How a provider is asked: its library, the variable that holds its key, and the call itself."""

    library: str
    key_env: str
    ask: Callable[[ApiBackendConfig, str, Prompt], Answer]

    @property
    def loggers(self) -> tuple[str, ...]:
        """The packages whose logs may tell of a request."""
        return (self.library, 'httpx', 'httpx2', 'httpcore', 'httpcore2')

    def load(self) -> None:
        """Import the library."""
        importlib.import_module(self.library)


def _ask_openai(config: ApiBackendConfig, key: str, prompt: Prompt) -> Answer:
    openai: Any = importlib.import_module('openai')
    content: list[Any] = [{'type': 'text', 'text': prompt.text}]
    for media_type, data in prompt.pictures:
        content.append({'type': 'image_url', 'image_url': {'url': f'data:{media_type};base64,{data}'}})
    messages: list[Any] = [
        {'role': 'system', 'content': prompt.system},
        # Many servers that speak this API take plain text only, so it is that where there are no pictures.
        {'role': 'user', 'content': content if prompt.pictures else prompt.text},
    ]
    # OpenAI's own newer models want the new name of this limit, other servers know the old one.
    limit = {'max_tokens' if config.api_base else 'max_completion_tokens': config.max_tokens}

    def ask() -> Answer:
        with openai.OpenAI(
            api_key=key, base_url=config.api_base, timeout=config.timeout_s, max_retries=0
        ) as client:
            completion = client.chat.completions.create(model=config.model, messages=messages, **limit)
        choice = completion.choices[0]
        refusal = getattr(choice.message, 'refusal', None)
        return Answer(
            text=str(refusal or choice.message.content or ''),
            refused=bool(refusal) or choice.finish_reason == 'content_filter',
            truncated=choice.finish_reason == 'length',
            usage=_usage(completion),
        )

    return _translated(openai, ask)


def _ask_anthropic(config: ApiBackendConfig, key: str, prompt: Prompt) -> Answer:
    anthropic: Any = importlib.import_module('anthropic')
    content: list[Any] = [{'type': 'text', 'text': prompt.text}]
    for media_type, data in prompt.pictures:
        source = {'type': 'base64', 'media_type': media_type, 'data': data}
        content.append({'type': 'image', 'source': source})

    def ask() -> Answer:
        with anthropic.Anthropic(
            api_key=key, base_url=config.api_base, timeout=config.timeout_s, max_retries=0
        ) as client:
            message = client.messages.create(
                model=config.model,
                max_tokens=config.max_tokens,
                system=prompt.system,
                messages=[{'role': 'user', 'content': content}],
            )
        return Answer(
            text=''.join(block.text for block in message.content if block.type == 'text'),
            refused=message.stop_reason == 'refusal',
            truncated=message.stop_reason == 'max_tokens',
            usage=_usage(message),
        )

    return _translated(anthropic, ask)


PROVIDERS: Mapping[str, Provider] = {
    'openai': Provider('openai', 'OPENAI_API_KEY', _ask_openai),
    'anthropic': Provider('anthropic', 'ANTHROPIC_API_KEY', _ask_anthropic),
}


def _translated(library: Any, ask: Callable[[], Answer]) -> Answer:
    """Return the answer, or raise the library's error as ours. The two libraries' errors are alike."""
    try:
        return ask()
    except library.APITimeoutError as error:
        raised = ApiError('timeout', str(error), passing=True)
    except library.APIConnectionError as error:
        raised = ApiError('connection', f'{error} ({error.__cause__})', passing=True)
    except library.APIStatusError as error:
        raised = _of_status(error.status_code, str(error), error.response.headers)
    except (library.APIError, ValueError, TypeError, AttributeError, IndexError) as error:
        raised = ApiError('bad_answer', f'{type(error).__name__}: {error}', passing=True)
    raise raised  # outside of the except clauses: without the library's error, which holds the request


def _of_status(status: int, text: str, headers: Mapping[str, str]) -> ApiError:
    if status in (401, 403):
        return ApiError('key', text)
    kind = 'busy' if status == 429 else 'server' if status >= 500 else 'request'
    passing = status in PASSING or status >= 500
    return ApiError(kind, text, passing=passing, retry_after_s=_retry_after(headers))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait for; None where it does not, or says it as a date."""
    for name, scale in (('retry-after-ms', 1e-3), ('retry-after', 1.0)):
        try:
            seconds = float(headers[name]) * scale
        except (KeyError, ValueError):
            continue
        if seconds >= 0:
            return seconds
    return None


def _usage(answer: Any) -> dict[str, Any]:
    usage: Any = getattr(answer, 'usage', None)
    counts = usage.model_dump(mode='json') if hasattr(usage, 'model_dump') else {}
    return {name: value for name, value in counts.items() if isinstance(value, int)}
