# SPDX-License-Identifier: Apache-2.0
"""A real HTTP server that speaks OpenAI's chat completions and Anthropic's messages, and answers as told."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[['Request'], None]

PATHS = {'openai': '/v1/chat/completions', 'anthropic': '/v1/messages'}


class Request:
    """One request, and the means to answer it."""

    def __init__(
        self, handler: BaseHTTPRequestHandler, body: dict[str, Any], released: threading.Event
    ) -> None:
        self.path = handler.path
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        self.body = body
        self.released = released
        self._handler = handler

    @property
    def key(self) -> str:
        """The key that came with it."""
        return self.headers.get('x-api-key') or self.headers.get('authorization', '').removeprefix('Bearer ')

    def send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._handler.send_response(status)
        for name, value in {'content-length': str(len(body)), **headers}.items():
            self._handler.send_header(name, value)
        self._handler.end_headers()
        self._handler.wfile.write(body)

    def drip(self) -> None:
        """Send a byte now and then, for ever: no read of the client times out."""
        self._handler.send_response(200)
        self._handler.send_header('content-type', 'application/json')
        self._handler.send_header('content-length', '100000')
        self._handler.end_headers()
        with contextlib.suppress(OSError):
            while not self.released.wait(0.05):
                self._handler.wfile.write(b' ')
                self._handler.wfile.flush()


class ModelServer:
    """`script` holds what to answer, in order; the last one answers everything after it."""

    def __init__(self, port: int, released: threading.Event) -> None:
        self.address = f'http://127.0.0.1:{port}'
        self.script: list[Reply] = []
        self.requests: list[Request] = []
        self.released = released

    def base(self, provider: str) -> str:
        """Return the api_base of a provider."""
        return f'{self.address}/v1' if provider == 'openai' else self.address


@contextlib.contextmanager
def model_server() -> Iterator[ModelServer]:
    """Run the server for as long as the block runs."""
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers['content-length'])))
            request = Request(self, body, released)
            server.requests.append(request)
            index = min(len(server.requests), len(server.script)) - 1
            with contextlib.suppress(OSError):  # the client has left
                server.script[index](request)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    http = Server(('127.0.0.1', 0), Handler)
    server = ModelServer(http.server_address[1], released)
    thread = threading.Thread(target=http.serve_forever, kwargs={'poll_interval': 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        released.set()
        http.shutdown()
        http.server_close()
        thread.join()


def answer(text: str | None, *, stop: str | None = None, refusal: str | None = None) -> Reply:
    """Reply as either API does, with this text."""

    def reply(request: Request) -> None:
        if request.path == PATHS['openai']:
            message = {'role': 'assistant', 'content': text, 'refusal': refusal}
            finish = {None: 'stop', 'truncated': 'length', 'refusal': 'content_filter'}[stop]
            body: dict[str, Any] = {
                'id': 'c1',
                'object': 'chat.completion',
                'created': 1,
                'model': request.body['model'],
                'choices': [{'index': 0, 'finish_reason': finish, 'message': message}],
                'usage': {'prompt_tokens': 7, 'completion_tokens': 3, 'total_tokens': 10},
            }
        else:
            reason = {None: 'end_turn', 'truncated': 'max_tokens', 'refusal': 'refusal'}[stop]
            body = {
                'id': 'm1',
                'type': 'message',
                'role': 'assistant',
                'model': request.body['model'],
                'content': [] if text is None else [{'type': 'text', 'text': text}],
                'stop_reason': reason,
                'stop_sequence': None,
                'usage': {'input_tokens': 7, 'output_tokens': 3},
            }
        request.send(200, json.dumps(body).encode(), {'content-type': 'application/json'})

    return reply


def error(status: int, text: str = 'no', **headers: str) -> Reply:
    """Reply with an error of that status; underscores in header names are dashes."""

    def reply(request: Request) -> None:
        body = json.dumps({'type': 'error', 'error': {'type': 'some_error', 'message': text}}).encode()
        named = {name.replace('_', '-'): value for name, value in headers.items()}
        request.send(status, body, {'content-type': 'application/json', **named})

    return reply


def raw(body: bytes, content_type: str = 'application/json') -> Reply:
    """Reply with these bytes and the status 200."""
    return lambda request: request.send(200, body, {'content-type': content_type})


def echo_key(request: Request) -> None:
    """Reply with code that holds the key which came."""
    answer(f"```python\nkey = '{request.key}'\n```")(request)


def refuse_key(request: Request) -> None:
    """Reply that the key is wrong, quoting it."""
    error(401, f'Incorrect API key provided: {request.key}')(request)


def drip(request: Request) -> None:
    """Never finish an answer."""
    request.drip()
