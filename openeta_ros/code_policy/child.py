# SPDX-License-Identifier: Apache-2.0
"""The process that a snippet runs in. It knows of the env what the messages say, and has no other way out.

Messages (of vector_policy's wire) over a socket pair: 'prompt' brings the snippet, 'hello' says how far this
process is confined, 'ok' lets it begin; then one 'act' and one 'ok' or 'error' for each call, and 'close'
when the snippet has ended. Nothing that this process says is believed: the runtime checks all of it.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from openeta_ros.code_policy import confine, preflight
from openeta_ros.code_policy.shared import SharedReader
from openeta_ros.code_policy.values import pack, unpack
from openeta_ros.vector_policy import wire
from openeta_ros.vector_policy.frames import FrameSocket

SNIPPET = '<snippet>'
MAX_TEXT = 2000


class CallError(Exception):
    """A call that was not carried out, or not to its end.

    `kind` is one of 'action', 'env', 'tool' and 'call' (wrong arguments); `details` says more: `action_kind`,
    `row` and `joint` of an action, `env_kind`.
    """

    def __init__(self, kind: str, message: str, details: dict[str, Any]) -> None:
        super().__init__(message)
        self.kind = kind
        self.details = details


class ActionError(CallError):
    """Rows that were refused: none of them moved."""


class EnvError(CallError):
    """The env cannot go on."""


class ToolError(CallError):
    """There is no such tool, or it failed."""


class Stopped(BaseException):
    """Too much was printed: the run is over, whatever the snippet catches."""

    kind = 'output'


ERRORS: dict[str, type[CallError]] = {'action': ActionError, 'env': EnvError, 'tool': ToolError}


class Api:
    """What the runtime offers; `api.descriptor()` tells all of it."""


class Line:
    """The connection to the runtime.

    What goes out is numbered. The next thing that comes in is taken for the answer, and is not once a message
    was sent that this object does not know of: the number that comes twice then ends the run.
    """

    def __init__(self, connection: FrameSocket) -> None:
        self.connection = connection
        self.number = 0
        self._whole = True

    def send(self, op: str, fields: dict[str, Any], arrays: dict[str, Any] | None = None) -> None:
        """Send a message."""
        wire.send(self.connection, op, {**fields, 'number': self.number}, arrays)
        self.number += 1

    def ask(self, fields: dict[str, Any], arrays: dict[str, Any]) -> tuple[str, dict[str, Any], Any]:
        """Send a call; return the answer to it."""
        if not self._whole:
            raise RuntimeError('the answer to an earlier call was not read to its end; no other can be made')
        self.send('act', fields, arrays)
        self._whole = False  # out of memory in the middle of it, say
        answer = wire.recv(self.connection)
        self._whole = True
        return answer


class Printed(io.TextIOBase):
    """What the snippet prints, up to a limit, unbuffered: what was printed before a crash is kept."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        data = memoryview(text.encode('utf-8', 'replace'))
        self._left -= len(data)
        if self._left < 0:
            raise Stopped('more was printed than the budget output_bytes allows')
        while data:
            data = data[os.write(1, data) :]
        return len(text)


def main(setup: str) -> None:
    """Run one snippet. `setup` is JSON: the socket's number and what `confine` takes."""
    given = json.loads(setup)
    confine.keep_large_blocks()
    line = Line(FrameSocket(socket.socket(fileno=given.pop('socket_fd'))))
    shared = SharedReader(given.pop('shared_fd'))
    _, fields, _ = wire.recv(line.connection)
    namespace = _namespace(line, shared, fields)
    random.seed(fields['seed'])
    np.random.seed(fields['seed'] % 2**32)
    sys.stdout = sys.stderr = Printed(fields['output_bytes'])
    problems = confine.confine(**given)
    # The parser is no wall: what makes it crash must find it in here.
    findings = [finding.to_dict() for finding in preflight.inspect(fields['code'])]
    line.send('hello', {'problems': problems, 'findings': findings})
    wire.recv(line.connection)
    signal.setitimer(signal.ITIMER_REAL, fields['wall_s'])  # `confine` made it tell the line it is at
    begin = time.process_time()
    error = _run(fields['code'], namespace)
    ended = {'error': error, 'cpu_s': time.process_time() - begin}
    packed: dict[str, Any] = {}
    try:
        result = pack(namespace.get('RESULT'), packed)
        if _size(packed) > fields['message_bytes']:
            raise ValueError('too large')
        line.send('close', {**ended, 'result': result}, packed)
    except (TypeError, ValueError):  # nothing was sent
        line.send('close', {**ended, 'result': _text(namespace.get('RESULT'), repr)})
    os._exit(0)  # threads there are none; whatever else would want a last word has none


def _namespace(line: Line, shared: SharedReader, fields: dict[str, Any]) -> dict[str, Any]:
    methods = {
        name: _method(line, shared, name, text, fields['message_bytes'])
        for name, text in fields['methods'].items()
    }
    api = type('Api', (Api,), methods)()
    errors = {error.__name__: error for error in ERRORS.values()}
    return {
        '__name__': '__main__',
        'api': api,
        'policy_context': fields['policy_context'],
        'np': np,
        **errors,
    }


def _method(line: Line, shared: SharedReader, name: str, text: str, message_bytes: int) -> Callable[..., Any]:
    def call(self: Api, *arguments: Any, **keywords: Any) -> Any:
        arrays: dict[str, Any] = {}
        fields = {
            'call': name,
            'line': _line(),
            'arguments': pack(arguments, arrays),
            'keywords': pack(keywords, arrays),
            'held': shared.held(),
        }
        size = _size(arrays)
        if size > message_bytes:
            raise ValueError(f'the arrays of {name} hold {size} bytes; a call may carry {message_bytes}')
        try:
            op, answer, answered = line.ask(fields, arrays)
        except (EOFError, ConnectionError):
            os._exit(1)  # the runtime is gone
        if op == 'ok':
            return unpack(answer['value'], answered, shared.fetch)
        raise ERRORS.get(answer['kind'], CallError)(answer['kind'], answer['message'], answer['details'])

    call.__name__, call.__qualname__, call.__doc__ = name, f'api.{name}', text
    return call


def _size(arrays: dict[str, Any]) -> int:
    return sum(array.nbytes for array in arrays.values())


def _line() -> int | None:
    """Return the line of the snippet that is being run."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != SNIPPET:
        frame = frame.f_back  # type: ignore[assignment]
    return frame.f_lineno if frame is not None else None


def _run(code: str, namespace: dict[str, Any]) -> dict[str, Any] | None:
    """Run the snippet; return why it did not come to its end."""
    try:
        compiled: CodeType = compile(code, SNIPPET, 'exec')
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return _failure(error, 'syntax', [getattr(error, 'lineno', None) or 1])
    try:
        exec(compiled, namespace)
    except SystemExit as error:
        if error.code in (None, 0):
            return None
        return _failure(error, 'exception', _lines())
    except BaseException as error:
        lines = _lines()
        traceback.clear_frames(sys.exc_info()[2])  # after a MemoryError this is what gives memory back
        if isinstance(error, MemoryError):
            return _failure(error, 'memory', lines)
        return _failure(error, error.kind if isinstance(error, CallError | Stopped) else 'exception', lines)
    return None


def _failure(error: BaseException, kind: str, lines: list[int]) -> dict[str, Any]:
    return {
        'kind': kind,
        'message': _text(error, str) or type(error).__name__[:MAX_TEXT],
        'type': type(error).__name__[:MAX_TEXT],
        'line': lines[-1] if lines else None,
        'lines': lines[-10:],
        'details': error.details if isinstance(error, CallError) else {},
    }


def _lines() -> list[int]:
    """Return the lines of the snippet that led to the error that was caught, the outermost first."""
    steps = traceback.walk_tb(sys.exc_info()[2])  # an attribute of it may be the snippet's own
    return [line for frame, line in steps if frame.f_code.co_filename == SNIPPET]


def _text(value: Any, how: Callable[[Any], str]) -> str:
    try:
        return how(value)[:MAX_TEXT]
    except BaseException as error:
        return f'({type(error).__name__} while it was turned into text)'
