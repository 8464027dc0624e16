# SPDX-License-Identifier: Apache-2.0
"""Who writes snippets: what comes back is code or the reason why there is none, and never a key."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_server import (
    PATHS,
    ModelServer,
    answer,
    drip,
    echo_key,
    error,
    model_server,
    raw,
    refuse_key,
)

from openeta_ros.code_policy.answers import NoCode, extract_code
from openeta_ros.code_policy.api_backend import ApiBackendConfig, ApiCodePolicyBackend
from openeta_ros.code_policy.backends import (
    CallableCodePolicyBackend,
    CodePolicyBackend,
    CodePolicyGenerationRequest,
    CodePolicyGenerationResult,
    PlaceholderCodePolicyBackend,
    RecordedCodePolicyBackend,
    RecordingCodePolicyBackend,
    StaticCodePolicyBackend,
)
from openeta_ros.code_policy.redaction import MARK, Redactor
from openeta_ros.code_policy.types import CodePolicyStatus

REQUEST = CodePolicyGenerationRequest({'task': 'pick the red cube', 'memory': []})
KEY = 'sk-test-0123456789abcdefghij'
OTHER_KEY = 'a-key-of-no-known-form'
CODE = 'api.open_gripper()\n'
FENCED = f'Here it is:\n```python\n{CODE}```\nIt opens the gripper.'
PROVIDERS = ('openai', 'anthropic')


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    for name in ('HTTP_PROXY', 'HTTPS_PROXY', 'ALL_PROXY', 'http_proxy', 'https_proxy', 'all_proxy'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('OUR_KEY', KEY)
    monkeypatch.setenv('OTHER_KEY', OTHER_KEY)
    with model_server() as running:
        yield running


def config(server: ModelServer, provider: str, **changes: Any) -> ApiBackendConfig:
    values: dict[str, Any] = {
        'provider': provider,
        'model': 'some-model',
        'api_base': server.base(provider),
        'api_key_env': 'OUR_KEY',
        'timeout_s': 240.0,
        'backoff_s': 0.0,
    }
    return ApiBackendConfig(**{**values, **changes})


def generate(server: ModelServer, provider: str, **changes: Any) -> CodePolicyGenerationResult:
    result = ApiCodePolicyBackend(config(server, provider, **changes)).generate(REQUEST)
    told = json.dumps(result.to_dict())
    assert KEY not in told and OTHER_KEY not in told
    return result


def outcomes(result: CodePolicyGenerationResult) -> list[str]:
    return [attempt['outcome'] for attempt in result.details['attempts']]


def kind(result: CodePolicyGenerationResult) -> str:
    assert result.status is CodePolicyStatus.FAILED and result.code == ''
    return str(result.details['error']['kind'])


@pytest.mark.parametrize('provider', PROVIDERS)
def test_the_code_of_the_answer_comes_back_and_the_prompt_arrives(server: ModelServer, provider: str) -> None:
    server.script = [answer(FENCED)]
    result = generate(server, provider)
    assert (result.code, result.status) == (CODE, CodePolicyStatus.PLANNED)
    assert (result.provider, result.model) == (provider, 'some-model')
    assert outcomes(result) == ['answered']
    assert 3 in result.details['usage'].values()
    [request] = server.requests
    assert (request.path, request.key) == (PATHS[provider], KEY)
    sent = json.dumps(request.body)
    assert 'pick the red cube' in sent and 'exactly one fenced block' in sent


@pytest.mark.parametrize('provider', PROVIDERS)
def test_a_picture_is_sent_as_a_picture(server: ModelServer, provider: str) -> None:
    server.script = [answer(FENCED)]
    picture = {'media_type': 'image/png', 'base64': 'cGljdHVyZQ==', 'shape': [2, 2, 3]}
    request = CodePolicyGenerationRequest(
        {'observation': {'frames_front': picture}}, system_prompt='be brief'
    )
    ApiCodePolicyBackend(config(server, provider)).generate(request)
    body = server.requests[0].body
    text, sent = body['messages'][-1]['content']
    assert 'picture 1 of this message' in text['text'] and 'cGljdHVyZQ==' not in text['text']
    assert 'cGljdHVyZQ==' in json.dumps(sent)
    assert 'be brief' in json.dumps(body)


@pytest.mark.parametrize('provider', PROVIDERS)
def test_a_busy_server_is_asked_again(server: ModelServer, provider: str) -> None:
    server.script = [error(429, retry_after='0'), answer(FENCED)]
    result = generate(server, provider)
    assert result.code == CODE
    assert outcomes(result) == ['busy', 'answered']


@pytest.mark.parametrize('provider', PROVIDERS)
def test_a_broken_server_is_given_up_after_the_attempts(server: ModelServer, provider: str) -> None:
    server.script = [error(500), error(503), error(502, 'still broken')]
    result = generate(server, provider)
    assert kind(result) == 'unavailable'
    assert outcomes(result) == ['server'] * 3
    assert 'still broken' in result.details['error']['message']


def test_a_server_that_wants_a_long_pause_is_not_waited_for(server: ModelServer) -> None:
    server.script = [error(429, retry_after='3600'), answer(FENCED)]
    result = generate(server, 'openai')
    assert outcomes(result) == ['busy']


@pytest.mark.parametrize('provider', PROVIDERS)
def test_an_answer_that_never_ends_meets_the_deadline(server: ModelServer, provider: str) -> None:
    server.script = [drip]
    result = generate(server, provider, timeout_s=0.5, attempts=1)
    assert kind(result) == 'unavailable'
    assert outcomes(result) == ['timeout']
    assert '0.5 s' in result.details['error']['message']


@pytest.mark.parametrize('provider', PROVIDERS)
@pytest.mark.parametrize(
    'reply',
    [
        raw(b'{"choices": [', 'application/json'),
        raw(b'<html>a proxy</html>', 'text/html'),
        raw(b'{}'),
        raw(b'[]'),
    ],
    ids=['cut', 'html', 'empty object', 'list'],
)
def test_what_is_no_answer_of_the_api_is_said_to_be_none(
    server: ModelServer, provider: str, reply: Any
) -> None:
    server.script = [reply]
    result = generate(server, provider, attempts=2)
    assert kind(result) == 'unavailable'
    assert outcomes(result) == ['bad_answer'] * 2


@pytest.mark.parametrize('provider', PROVIDERS)
def test_a_refusal_is_not_retried_and_not_taken_for_code(server: ModelServer, provider: str) -> None:
    server.script = [answer('I cannot help with that.', stop='refusal', refusal='I cannot help with that.')]
    result = generate(server, provider)
    assert kind(result) == 'refusal'
    assert len(server.requests) == 1
    assert 'I cannot help' in result.details['error']['message']


@pytest.mark.parametrize('provider', PROVIDERS)
@pytest.mark.parametrize('text', [None, '', 'I would open the gripper first.'])
def test_an_answer_without_code_is_a_failure_that_says_so(
    server: ModelServer, provider: str, text: str | None
) -> None:
    server.script = [answer(text)]
    assert kind(generate(server, provider)) == 'no_code'


@pytest.mark.parametrize('provider', PROVIDERS)
def test_a_cut_off_answer_is_not_run(server: ModelServer, provider: str) -> None:
    server.script = [answer('```python\napi.move_arm([0.4, 0', stop='truncated')]
    result = generate(server, provider, max_tokens=16)
    assert kind(result) == 'truncated'
    assert '16 tokens' in result.details['error']['message']


@pytest.mark.parametrize('provider', PROVIDERS)
def test_a_key_that_the_server_sends_back_goes_nowhere(
    server: ModelServer, provider: str, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        for name in ('OUR_KEY', 'OTHER_KEY'):
            server.requests.clear()
            server.script = [echo_key, refuse_key]
            result = generate(server, provider, api_key_env=name)
            assert result.code == f"key = '{MARK}'\n"
            refused = generate(server, provider, api_key_env=name)
            assert outcomes(refused) == ['key']  # and it is not tried again
            assert MARK in refused.details['error']['message']
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    assert server.requests[0].key == OTHER_KEY
    told = logged.getvalue() + ''.join(capsys.readouterr())
    assert '/v1' in told  # the libraries did log
    assert KEY not in told and OTHER_KEY not in told


def test_the_fallback_is_asked_when_the_first_gives_nothing(server: ModelServer) -> None:
    server.script = [error(401, 'who are you'), error(503), answer(FENCED)]
    fallback = config(server, 'anthropic', api_key_env='OTHER_KEY', model='another')
    result = generate(server, 'openai', fallback=fallback)
    assert result.code == CODE
    assert (result.provider, result.model) == ('anthropic', 'another')
    assert outcomes(result) == ['key', 'server', 'answered']
    assert [request.key for request in server.requests] == [KEY, OTHER_KEY, OTHER_KEY]


def test_a_providers_own_key_is_not_sent_to_another_address(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ('OPENAI_API_KEY', 'ANTHROPIC_API_KEY'):
        monkeypatch.setenv(name, KEY)
    server.script = [answer(FENCED)]
    for provider in PROVIDERS:
        assert generate(server, provider, api_key_env=None).code == CODE
    assert all(KEY not in str(request.headers) for request in server.requests)
    own = ApiBackendConfig('anthropic', 'some-model')
    assert own.key() == KEY and ApiCodePolicyBackend(own).descriptor()['api_key_env'] == 'ANTHROPIC_API_KEY'


def test_nobody_listens(server: ModelServer) -> None:
    result = generate(server, 'openai', api_base='http://127.0.0.1:9/v1', attempts=2)
    assert outcomes(result) == ['connection'] * 2


def test_the_descriptor_says_what_is_missing(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = ApiCodePolicyBackend(config(server, 'openai')).descriptor()
    assert ready['implemented'] is True and ready['missing'] is None
    assert KEY not in json.dumps(ready)
    monkeypatch.delenv('OUR_KEY')
    backend = ApiCodePolicyBackend(config(server, 'openai'))
    assert backend.descriptor()['implemented'] is False
    assert 'OUR_KEY' in backend.descriptor()['missing']
    result = backend.generate(REQUEST)
    assert outcomes(result) == ['not_set_up'] and not server.requests
    secret = ApiBackendConfig('openai', 'm', api_base='https://user:password@host/v1?token=1')
    assert ApiCodePolicyBackend(secret).descriptor()['api_base'] == 'https://host/v1'


def test_a_library_that_is_not_installed_is_named(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    descriptor = ApiCodePolicyBackend(config(server, 'anthropic')).descriptor()
    assert descriptor['implemented'] is False
    assert 'pip install anthropic' in descriptor['missing']


def test_a_library_that_does_not_import_is_named(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> None:
        raise ImportError(f'{name} needs another version of something')

    monkeypatch.setattr('openeta_ros.code_policy.providers.importlib.import_module', broken)
    result = generate(server, 'openai')
    assert outcomes(result) == ['not_set_up']
    assert 'openai does not import' in result.details['error']['message']


def test_importing_the_backend_imports_neither_library() -> None:
    import subprocess

    script = (
        'import sys, openeta_ros.code_policy.api_backend\n'
        "assert not {'openai', 'anthropic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, '-c', script], check=True)


@pytest.mark.parametrize(
    'wrong',
    [
        {'provider': 'pigeon'},
        {'model': ''},
        {'timeout_s': 0.0},
        {'timeout_s': float('nan')},
        {'attempts': 0},
        {'max_tokens': 0},
        {'backoff_s': -1.0},
    ],
)
def test_a_config_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        ApiBackendConfig(**{'provider': 'openai', 'model': 'm', **wrong})


ANSWERS = {
    'code alone': (CODE, CODE),
    'a fence': (f'```\n{CODE}```', CODE),
    'prose around it': (FENCED, CODE),
    'windows lines': (FENCED.replace('\n', '\r\n'), CODE),
    'the last of several': (f'```python\na = 1\n```\nthen all of it:\n```python\n{CODE}```', CODE),
    'python before others': (f'```python\n{CODE}```\n```bash\nls\n```\n```\noutput\n```', CODE),
    'another spelling': (f'```Py\n{CODE}```', CODE),
    'tildes': (f'~~~python\n{CODE}~~~', CODE),
    'a fence in the code': (f'````python\n"""\n```\n"""\n{CODE}````', f'"""\n```\n"""\n{CODE}'),
    'indented in a list': (f'1. so:\n   ```python\n   {CODE}   ```', CODE),
    'never closed': (f'```python\n{CODE}', CODE),
    'wrong code is code': ('```python\nfor x in\n```', 'for x in\n'),
}


@pytest.mark.parametrize(('text', 'code'), ANSWERS.values(), ids=ANSWERS)
def test_the_code_is_found(text: str, code: str) -> None:
    assert extract_code(text).rstrip('\n') == code.rstrip('\n')


@pytest.mark.parametrize(
    ('text', 'why'),
    [
        ('', 'empty'),
        ('```python\n```', 'no block of Python'),
        ('```bash\nrm -r x\n```', 'bash'),
        ('Sure, here you go: x = 1', 'not Python'),
    ],
)
def test_where_there_is_no_code_it_says_why(text: str, why: str) -> None:
    with pytest.raises(NoCode, match=why):
        extract_code(text)


def test_static_answers_in_order() -> None:
    def codes(backend: CodePolicyBackend) -> list[str]:
        return [backend.generate(REQUEST).code for _ in range(3)]

    assert codes(StaticCodePolicyBackend(['a = 1', 'b = 2'])) == ['a = 1', 'b = 2', 'b = 2']
    assert codes(StaticCodePolicyBackend(['a = 1', 'b = 2'], cycle=True)) == ['a = 1', 'b = 2', 'a = 1']
    with pytest.raises(ValueError, match='at least one'):
        StaticCodePolicyBackend([])


def test_a_callable_writes_or_fails_with_its_own_words() -> None:
    def of_task(request: CodePolicyGenerationRequest) -> str:
        return f'```python\ntask = {request.policy_context["task"]!r}\n```'

    assert CallableCodePolicyBackend(of_task).generate(REQUEST).code == "task = 'pick the red cube'\n"

    def broken(request: CodePolicyGenerationRequest) -> str:
        raise RuntimeError('out of ideas')

    result = CallableCodePolicyBackend(broken).generate(REQUEST)
    assert kind(result) == 'callable'
    assert 'out of ideas' in result.details['error']['message']


def test_the_placeholder_is_python_that_does_nothing_and_says_so() -> None:
    backend = PlaceholderCodePolicyBackend()
    result = backend.generate(REQUEST)
    assert result.status is CodePolicyStatus.PENDING
    assert result.details['policy_context_keys'] == ['memory', 'task']
    names: dict[str, Any] = {}
    exec(result.code, names)
    assert names['RESULT']['task'] == 'pick the red cube'
    assert backend.descriptor() == {'name': 'PlaceholderCodePolicyBackend', 'implemented': False}


def test_what_was_recorded_is_given_again(tmp_path: Path) -> None:
    path = tmp_path / 'answers.jsonl'
    recording = RecordingCodePolicyBackend(StaticCodePolicyBackend([FENCED, 'no code here']), path)
    first = [recording.generate(REQUEST) for _ in range(2)]
    recorded = RecordedCodePolicyBackend(path)
    assert [recorded.generate(REQUEST) for _ in range(2)] == first
    assert kind(recorded.generate(REQUEST)) == 'recording_ended'
    path.write_text('not json\n')
    with pytest.raises(ValueError, match=r'answers\.jsonl'):
        RecordedCodePolicyBackend(path)


def test_a_redactor_leaves_what_is_no_key() -> None:
    redactor = Redactor(['abc', 'correct horse/battery'])
    harmless = 'task-graph of sk-learn-preprocessing: the bearer of abc is api.move_arm'
    assert redactor.text(harmless) == harmless
    assert redactor.value({'a': ['correct horse/battery', 1], 'b': b'x'}) == {'a': [MARK, 1], 'b': b'x'}
    assert redactor.text('?key=correct%20horse%2Fbattery') == f'?key={MARK}'
    assert redactor.text(f'key {KEY}!') == f'key {MARK}!'
