# SPDX-License-Identifier: Apache-2.0
"""Drive a policy that is served somewhere else.

A call either returns the answer to its own request or raises. Whatever leaves an answer outstanding (a call
past its time, an interrupt) ends the connection, so that no later call can be given an earlier one's answer.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import socket
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, cast

import numpy as np

from openeta_ros import __version__
from openeta_ros.vector_policy import logs, wire
from openeta_ros.vector_policy.blocks import Array
from openeta_ros.vector_policy.errors import PolicyUnavailable, WireError
from openeta_ros.vector_policy.frames import LONGEST_S, Frame, FrameSocket
from openeta_ros.vector_policy.policy import ACTION_TYPES

MAX_REPLY_BYTES = 1 << 30

_RETRY_S = 0.05


@dataclasses.dataclass(frozen=True)
class CallTiming:
    """Where the time of one call went.

    Attributes:
        op: 'hello', 'reset', 'prompt', 'act' or 'close'.
        encode_s: making the message.
        wait_s: sending it, the server reading it, the policy, until the first byte of the answer.
        decode_s: receiving the rest of the answer.
    """

    op: str
    encode_s: float
    wait_s: float
    decode_s: float


class RemotePolicy:
    """A connection to one served policy.

    Args:
        address: Unix socket path, host:port or [IPv6]:port.
        authkey: the shared key, at least 16 bytes.
        timeout_s: limit for connecting, and for each call (sending and the whole answer).
        log_file: the server's log when it is on this machine; quoted in errors.

    Raises:
        PolicyUnavailable: nothing listened in time, or it would not authenticate.
        TypeError, ValueError: an argument that can never work.

    Calls from several threads take turns. After an error that the policy itself raised in reset,
    set_demonstration or act, the policy can be called again; after any other failure it is closed for good.

    Attributes:
        action_type: 'qpos' or 'ee' once hello() returned, None before.
        timeout_s: read when a call starts, so that it may be changed between calls.
        timing: of the last call that was answered, None before the first.
    """

    def __init__(
        self,
        address: str,
        authkey: bytes,
        *,
        timeout_s: float = 60.0,
        log_file: str | Path | None = None,
    ) -> None:
        if not isinstance(authkey, (bytes, bytearray)):
            raise TypeError('authkey must be bytes')
        if len(authkey) < wire.MIN_AUTHKEY_BYTES:
            raise ValueError(f'authkey must be at least {wire.MIN_AUTHKEY_BYTES} bytes')
        if not timeout_s > 0:
            raise ValueError(f'timeout_s must be positive, not {timeout_s!r}')
        self.address = address
        self.timeout_s = timeout_s
        self.log_file = log_file
        self.action_type: str | None = None
        self.timing: CallTiming | None = None
        self._lock = threading.Lock()
        self._closed = 'is closed'
        self._conn: FrameSocket | None = self._connect(bytes(authkey))

    def hello(self) -> dict[str, Any]:
        """Have the policy built, and return what the server says of it: protocol, action_type, policy."""
        fields, _ = self._call('hello', 'ok', {'client': f'vector-policy {__version__}'})
        self.action_type = fields['action_type']
        return fields

    def reset(self, seed: int) -> None:
        """Begin a new episode."""
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
            raise TypeError(f'seed must be an integer, not {seed!r}')
        self._call('reset', 'ok', {'seed': int(seed)})

    def set_demonstration(self, arrays: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Give the policy its demonstration: arrays with a leading time axis, and JSON facts about them."""
        if not isinstance(info, Mapping):
            raise TypeError(f'info must be a mapping, not {type(info).__name__}')
        self._call('prompt', 'ok', {'info': dict(info)}, arrays)

    def act(self, observation: Mapping[str, Any]) -> dict[str, Array]:
        """Return every array of the policy's answer; 'action' is (A,) or (H, A). They are read-only.

        Raises:
            WireError: the observation holds something the wire cannot carry; nothing was sent.
            PolicyUnavailable: the policy raised, was late, went away, or answered without an action.
        """
        _, arrays = self._call('act', 'action', {}, observation)
        shape = arrays['action'].shape if 'action' in arrays else None
        if shape is None or len(shape) not in (1, 2) or 0 in shape:
            raise self._unavailable('act', f"the reply holds no usable 'action' (shape {shape})")
        return arrays

    def warm_up(self, observation: Mapping[str, Any], *, timeout_s: float) -> CallTiming:
        """Have the policy make its first inference, often slow (compiling, loading), before an episode waits.

        Sends reset(0) and act(observation), and drops the answer. Give the demonstration before, if the
        policy needs one to act, and reset afterwards, so that no episode sees what was drawn or remembered.

        Args:
            observation: of the shapes and dtypes to come.
            timeout_s: limit of each of the two calls, instead of the policy's own.

        Returns:
            How long the first act took.
        """
        usual_s, self.timeout_s = self.timeout_s, timeout_s
        try:
            self.reset(0)
            self.act(observation)
        finally:
            self.timeout_s = usual_s
        assert self.timing is not None  # act was answered
        return self.timing

    def close(self) -> None:
        """End the session. Takes at most timeout_s, raises nothing, and may be called again.

        A call of another thread is waited for.
        """
        with self._lock:
            self._end()

    def stop(self) -> bool:
        """Close; but when another thread is in a call, hang up under it and return False: its call fails.

        Returns at once in that case, whatever the policy is doing.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()
            return True
        conn = self._conn
        if conn is not None:
            conn.hang_up()
        return False

    def __enter__(self) -> RemotePolicy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _call(
        self,
        op: str,
        expect: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Wait for other threads' calls, then send one request and return its reply's fields and arrays."""
        with self._lock:
            return self._ask(op, expect, fields, arrays)

    def _ask(
        self,
        op: str,
        expect: str,
        fields: Mapping[str, Any] | None,
        arrays: Mapping[str, Any] | None,
    ) -> tuple[dict[str, Any], dict[str, Array]]:
        """Send one request and return the fields and arrays of the reply that belongs to it."""
        if self._conn is None:
            raise self._unavailable(op, f'the connection to {self.address} {self._closed}')
        started = time.perf_counter()
        frames = wire.encode(op, fields, arrays)
        encode_s = time.perf_counter() - started
        try:
            reply_op, reply, reply_arrays = self._exchange(self._conn, op, frames, encode_s)
            if reply_op == 'error':
                raise self._reported(op, reply)
            self._check(op, expect, reply_op, reply)
        except BaseException as exc:
            reported = isinstance(exc, PolicyUnavailable) and exc.remote_type is not None
            if op == 'hello' or not reported:
                self._drop('is closed after an earlier failure')
            raise
        return reply, reply_arrays

    def _end(self) -> None:
        if self._conn is None:
            return
        try:
            self._ask('close', 'ok', None, None)
        except PolicyUnavailable:
            pass  # the server ends with the connection, whatever it answered
        finally:
            self._drop('is closed' if self._conn is not None else self._closed)

    def _exchange(
        self,
        conn: FrameSocket,
        op: str,
        frames: list[Frame],
        encode_s: float,
    ) -> tuple[str, dict[str, Any], dict[str, Array]]:
        timeout_s = self.timeout_s
        started = time.perf_counter()
        conn.deadline = time.monotonic() + timeout_s
        try:
            conn.send_frames(frames)
            conn.wait_readable()
            answered = time.perf_counter()
            reply = wire.recv(conn, max_bytes=MAX_REPLY_BYTES)
        except (EOFError, OSError) as exc:
            if time.monotonic() < conn.deadline:
                raise self._unavailable(op, f'the policy went away: {_named(exc)}') from exc
        except WireError as exc:
            raise self._unavailable(op, f'malformed reply: {exc}') from exc
        except Exception as exc:
            raise self._unavailable(op, f'malformed reply: {_named(exc)}') from exc
        if time.monotonic() >= conn.deadline:
            raise self._unavailable(op, f'no answer within {timeout_s:g}s')
        self.timing = CallTiming(op, encode_s, answered - started, time.perf_counter() - answered)
        return reply

    def _check(self, op: str, expect: str, reply_op: str, reply: Mapping[str, Any]) -> None:
        if reply_op != expect:
            raise self._unavailable(op, f"the server answered '{reply_op}', not '{expect}'")
        if op != 'hello':
            return
        protocol, action_type = reply.get('protocol'), reply.get('action_type')
        if type(protocol) is not int or protocol != wire.PROTOCOL_VERSION:
            raise self._unavailable(
                op,
                f'the server speaks protocol {protocol!r}, not {wire.PROTOCOL_VERSION}',
            )
        if action_type not in ACTION_TYPES:
            raise self._unavailable(op, f'the policy declares action_type {action_type!r}')

    def _reported(self, op: str, reply: Mapping[str, Any]) -> PolicyUnavailable:
        kind = str(reply.get('type') or 'Error')
        message = f'{kind}: {reply.get("message") or ""}'
        return self._unavailable(op, message, remote_type=kind, log_tail=str(reply.get('log_tail') or ''))

    def _unavailable(
        self,
        op: str,
        text: str,
        *,
        remote_type: str | None = None,
        log_tail: str = '',
    ) -> PolicyUnavailable:
        tail = logs.tail(self.log_file) if self.log_file is not None else ''
        return PolicyUnavailable(f'{op}: {text}', op=op, remote_type=remote_type, log_tail=tail or log_tail)

    def _drop(self, reason: str) -> None:
        self._closed = reason
        if self._conn is not None:
            self._conn.close()
            self._conn = None

    def _connect(self, authkey: bytes) -> FrameSocket:
        try:
            family, target = wire.parse_address(self.address)
        except WireError as exc:
            raise self._unavailable('connect', str(exc)) from exc
        deadline = time.monotonic() + self.timeout_s
        conn = FrameSocket(self._reach(family, target, deadline))
        conn.deadline = deadline
        try:
            # The standard library's mutual challenge. It is typed for its own Connection and uses two of
            # its methods, which a FrameSocket has.
            answer_challenge(cast(Any, conn), authkey)
            deliver_challenge(cast(Any, conn), authkey)
        except BaseException as exc:
            conn.close()
            if not isinstance(exc, Exception):
                raise
            raise self._unavailable('connect', self._refusal(exc, deadline)) from exc
        return conn

    def _reach(self, family: str, target: Any, deadline: float) -> socket.socket:
        """Return a connected socket. A server that does not listen yet is waited for."""
        try:
            kind, where = wire.socket_address(family, target)
        except OSError as exc:
            raise self._unavailable('connect', f'cannot reach {self.address}: {exc}') from exc
        while True:
            sock = socket.socket(kind, socket.SOCK_STREAM)
            try:
                # However late it is, there is time to be refused.
                sock.settimeout(min(max(deadline - time.monotonic(), _RETRY_S), LONGEST_S))
                sock.connect(where)
                return sock
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as exc:
                # BlockingIOError: a Unix listener whose backlog is full just now.
                sock.close()
                if time.monotonic() + _RETRY_S >= deadline:
                    text = f'nothing listened at {self.address} within {self.timeout_s:g}s ({exc})'
                    raise self._unavailable('connect', text) from exc
                time.sleep(_RETRY_S)
            except BaseException as exc:
                sock.close()
                if not isinstance(exc, Exception):
                    raise
                raise self._unavailable('connect', f'cannot reach {self.address}: {exc}') from exc

    def _refusal(self, exc: Exception, deadline: float) -> str:
        if time.monotonic() >= deadline:
            return f'authentication did not finish within {self.timeout_s:g}s'
        if isinstance(exc, multiprocessing.AuthenticationError):
            return f'the server at {self.address} refused this key: {exc}'
        if isinstance(exc, EOFError) or (isinstance(exc, OSError) and exc.errno is not None):
            return f'the server hung up while authenticating: {_named(exc)}'
        return f'the server answered the handshake with nonsense: {_named(exc)}'


def _named(exc: BaseException) -> str:
    return f'{type(exc).__name__}: {exc}'
