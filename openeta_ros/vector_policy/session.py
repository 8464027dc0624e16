# SPDX-License-Identifier: Apache-2.0
"""Answer one client's requests by calling the policy."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from openeta_ros.vector_policy import logs, wire
from openeta_ros.vector_policy.blocks import Array
from openeta_ros.vector_policy.errors import WireError
from openeta_ros.vector_policy.frames import Frame, FrameSocket
from openeta_ros.vector_policy.policy import ACTION_TYPES, Policy

if TYPE_CHECKING:
    from openeta_ros.vector_policy.manifest import Manifest  # which needs YAML

IDLE_TIMEOUT_S = 1800.0
MAX_ERROR_CHARS = 4000
#: For a client that is still sending when its message was refused.
LINGER_S = 0.5

_log = logging.getLogger('vector_policy.serve')


def build_policy(loaded: Manifest) -> Policy:
    """Import and construct the manifest's policy, its directory being the working directory and first on
    sys.path.

    Raises:
        TypeError: what was built is no Policy. Also whatever the policy's own code raises.
    """
    root = str(loaded.root)
    os.chdir(root)
    sys.path[:] = [root, *(entry for entry in sys.path if entry != root)]
    importlib.invalidate_caches()
    module = importlib.import_module(loaded.module)
    if not hasattr(module, loaded.attribute):
        raise AttributeError(f'module {loaded.module!r} has no attribute {loaded.attribute!r}')
    policy = getattr(module, loaded.attribute)(**loaded.kwargs)
    problems = []
    action_type = getattr(policy, 'action_type', None)
    if action_type not in ACTION_TYPES:
        problems.append(f'action_type is {action_type!r}, not one of {", ".join(ACTION_TYPES)}')
    for method in ('reset', 'set_demonstration', 'act'):
        if not callable(getattr(policy, method, None)):
            problems.append(f'it has no {method}() method')
    if problems:
        raise TypeError(f'{loaded.policy} is not a Policy: {"; ".join(problems)}')
    return cast(Policy, policy)


def checked_action(result: Any) -> Mapping[str, Any]:
    """Return what act() returned, when it is a mapping whose 'action' is one row or rows of numbers."""
    if not isinstance(result, Mapping):
        raise TypeError(f'act() returned {type(result).__name__}, not a mapping of named arrays')
    if 'action' not in result:
        raise ValueError(f"act() returned no 'action', only {sorted(result, key=str)}")
    shape = np.shape(result['action'])
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"act() returned an 'action' of shape {shape}, not (A,) or (H, A)")
    return result


class Session:
    """One client's requests, answered one after the other in the order they came.

    Args:
        loaded: what to build at the first hello.
        conn: the client, which has shown that it knows the key.
        log_file: quoted in error replies.
        idle_timeout_s: how long the client may say nothing, or take no answer.
        policy: what an earlier session built.
        last: the process is not needed afterwards. A client that hangs up during a call then takes it along,
            as the call may never return; otherwise the call is waited for. The policy is closed with the
            last session only.

    Attributes:
        policy: what was built; None before the first hello.
    """

    def __init__(
        self,
        loaded: Manifest,
        conn: FrameSocket,
        *,
        log_file: Path | None = None,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
        policy: Policy | None = None,
        last: bool = True,
    ) -> None:
        self.policy = policy
        self._manifest = loaded
        self._conn = conn
        self._log_file = log_file
        self._idle_timeout_s = conn.patience_s = idle_timeout_s
        self._last = last
        self._over = False
        self._calling: str | None = None

    def run(self) -> int:
        """Serve until the client is done; return the exit status."""
        watch = threading.Thread(target=self._watch_for_hang_up, name='hang-up watch', daemon=True)
        watch.start()
        try:
            return self._serve()
        finally:
            self._over = True
            self._conn.hang_up()
            watch.join()
            self._conn.close()

    def _serve(self) -> int:
        status = None
        while status is None:
            try:
                if not self._conn.wait_readable(self._idle_timeout_s):
                    raise TimeoutError
                op, fields, arrays = wire.recv(self._conn)
            except WireError as exc:
                _log.error('malformed message, ending the session: %s', exc)
                reply, status = self._error(exc, str(exc)), 1
            except TimeoutError:
                _log.info('the client said nothing for %gs; ending the session', self._idle_timeout_s)
                return 0
            except (EOFError, OSError):
                _log.info('the client hung up')
                return 0
            else:
                reply, status = self._answer(op, fields, arrays)
                del arrays  # a demonstration is large, and whether it is kept is the policy's choice
            try:
                self._conn.send_frames(reply)
            except TimeoutError:
                _log.info('the client took no answer for %gs; ending the session', self._idle_timeout_s)
                return 0
            except OSError:
                _log.info('the client hung up')
                return 0
            del reply
        if status == 0:
            _log.info('closed')
        else:
            self._conn.finish(LINGER_S)
        return status

    def _answer(
        self,
        op: str,
        fields: Mapping[str, Any],
        arrays: dict[str, Array],
    ) -> tuple[list[Frame], int | None]:
        """Return the reply, and the exit status when it is the last one."""
        try:
            self._check(op, fields)
        except WireError as exc:
            return self._error(exc, str(exc)), None
        self._calling = op
        try:
            reply = self._call(op, fields, arrays)
        except (Exception, SystemExit) as exc:
            _log.exception('%s raised', op)
            reply = self._error(exc, f'{op}: {_text(exc)}')
            status = {'hello': 1, 'close': 0}.get(op)
        else:
            status = 0 if op == 'close' else None
        finally:
            self._calling = None
        return reply, status

    def _check(self, op: str, fields: Mapping[str, Any]) -> None:
        if op not in wire.CLIENT_OPS:
            raise WireError(f'unknown op {op!r}; a client sends {", ".join(wire.CLIENT_OPS)}')
        if self.policy is None and op not in ('hello', 'close'):
            raise WireError(f'{op} before hello')
        if op == 'reset' and type(fields.get('seed')) is not int:
            raise WireError(f'reset: seed must be an integer, not {fields.get("seed")!r}')
        if op == 'prompt' and not isinstance(fields.get('info', {}), dict):
            raise WireError(f'prompt: info must be an object, not {type(fields["info"]).__name__}')

    def _call(
        self,
        op: str,
        fields: Mapping[str, Any],
        arrays: dict[str, Array],
    ) -> list[Frame]:
        if op == 'hello':
            return self._hello(fields)
        policy = self.policy
        if op == 'close':
            close = getattr(policy, 'close', None)
            if callable(close) and self._last:
                close()
            return wire.encode('ok')
        assert policy is not None  # _check let nothing else come before hello
        if op == 'act':
            return wire.encode('action', {}, checked_action(policy.act(arrays)))
        if op == 'reset':
            policy.reset(fields['seed'])
        else:
            policy.set_demonstration(arrays, fields.get('info', {}))
        return wire.encode('ok')

    def _hello(self, fields: Mapping[str, Any]) -> list[Frame]:
        _log.info('hello from %r', fields.get('client'))
        if self.policy is None:
            self.policy = build_policy(self._manifest)
            _log.info('serving %s, action_type %r', self._manifest.policy, self.policy.action_type)
        return wire.encode(
            'ok',
            {
                'protocol': wire.PROTOCOL_VERSION,
                'action_type': self.policy.action_type,
                'policy': self._manifest.policy,
            },
        )

    def _error(self, exc: BaseException, message: str) -> list[Frame]:
        if len(message) > MAX_ERROR_CHARS:
            message = message[:MAX_ERROR_CHARS] + ' [...]'
        _flush()
        tail = logs.tail(self._log_file) if self._log_file is not None else ''
        return wire.encode('error', {'type': type(exc).__name__, 'message': message, 'log_tail': tail})

    def _watch_for_hang_up(self) -> None:
        """End the process when the client leaves during a call, which may never return by itself."""
        while not self._over:
            self._conn.wait_hang_up()
            op = self._calling
            if op is not None and self._conn.peer_left():
                if self._last:
                    _log.info('the client hung up during %s; exiting without its answer', op)
                    leave(0)
                _log.info('the client hung up during %s; waiting for the policy, for the next client', op)
                return
            # Between calls, or with requests still to be read, the serving thread finds the end itself.
            time.sleep(0.1)


def leave(status: int) -> NoReturn:
    """End the process now: neither threads nor exit handlers of the policy can delay it."""
    _flush()
    os._exit(status)


def _text(exc: BaseException) -> str:
    """Return str(exc), also of an exception whose __str__ raises."""
    return str(traceback.TracebackException(type(exc), exc, None))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a policy may have closed or replaced it
            stream.flush()
