# SPDX-License-Identifier: Apache-2.0
"""Wait for clients that know the key, whoever else connects.

Each peer shows that it knows the key in a thread of its own, under a deadline: one that says nothing, or half
of something, keeps nobody else waiting. Each that fails is named in one line of the log and hung up on.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import socket
import threading
import time
from multiprocessing.connection import answer_challenge, deliver_challenge
from typing import Any, cast

from openeta_ros.vector_policy import wire
from openeta_ros.vector_policy.frames import FrameSocket

#: For the whole handshake. A client may be busy (importing, compiling) between connecting and answering.
HANDSHAKE_TIMEOUT_S = 10.0
#: For the rest of a handshake's frame once it began: nobody is busy in the middle of 50 bytes.
STALL_TIMEOUT_S = 0.8
#: Peers that may be in the handshake at once; more are hung up on.
MAX_ENTERING = 64

_log = logging.getLogger('vector_policy.serve')


class Listener:
    """A socket listening at an address, and those who came through it.

    Args:
        address: Unix socket path, host:port or [IPv6]:port.

    Raises:
        WireError: it is no address.
        OSError, ValueError: nothing can listen there.
    """

    def __init__(self, address: str) -> None:
        family, target = wire.parse_address(address)
        self._path = os.path.abspath(target) if family == 'AF_UNIX' else None
        kind, where = wire.socket_address(family, self._path or target)
        self._closed = False
        self._lock = threading.Lock()
        self._entering: set[FrameSocket] = set()
        self._clients: queue.SimpleQueue[FrameSocket] = queue.SimpleQueue()
        self._sock = socket.socket(kind, socket.SOCK_STREAM)
        # The file of a Unix socket is the user's alone from the moment it is there.
        mask = os.umask(0o177)
        try:
            if self._path is None:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._sock.bind(where)
            self._sock.listen()
        except BaseException:
            self._sock.close()
            raise
        finally:
            os.umask(mask)

    def admit(self, authkey: bytes) -> None:
        """Begin to let in those who know the key."""
        threading.Thread(target=self._accept, args=(authkey,), name='accept', daemon=True).start()

    def next_client(self) -> FrameSocket:
        """Wait for the next client that knows the key, in the order in which they showed it."""
        return self._clients.get()

    def close(self) -> None:
        """Let nobody in any more, remove the socket's file, and hang up on who is still waiting."""
        with self._lock:
            self._closed = True
            waiting = [*self._entering]
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # ends the wait for a peer; closing alone would not
        self._sock.close()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.append(self._clients.get_nowait())
        for conn in waiting:
            conn.close()

    def _accept(self, authkey: bytes) -> None:
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError as exc:
                if self._closed:
                    return
                _log.warning('cannot accept a client: %s', exc)
                time.sleep(0.1)  # out of file descriptors, most likely
                continue
            conn = FrameSocket(sock)
            with self._lock:
                refused = self._closed or len(self._entering) >= MAX_ENTERING
                if not refused:
                    self._entering.add(conn)
            if refused:
                _log.warning('refused a client: too many are authenticating')
                conn.close()
            else:
                threading.Thread(
                    target=self._greet, args=(conn, authkey), name='handshake', daemon=True
                ).start()

    def _greet(self, conn: FrameSocket, authkey: bytes) -> None:
        refusal = _authenticate(conn, authkey)
        with self._lock:
            self._entering.discard(conn)
            if self._closed:
                refusal = refusal or 'came too late'
            elif refusal is None:
                self._clients.put(conn)
            else:
                _log.warning('%s', refusal)
        if refusal is not None:
            conn.close()


def _authenticate(conn: FrameSocket, authkey: bytes) -> str | None:
    """Return None when both ends know the key, and otherwise what happened."""
    conn.deadline = time.monotonic() + HANDSHAKE_TIMEOUT_S
    conn.patience_s = STALL_TIMEOUT_S
    try:
        # Typed for the standard library's Connection; they use two methods, which a FrameSocket has.
        deliver_challenge(cast(Any, conn), authkey)
        answer_challenge(cast(Any, conn), authkey)
    except multiprocessing.AuthenticationError as exc:
        return f'refused a client: {exc}'
    except TimeoutError:
        return 'a client did not authenticate in time'
    except Exception as exc:
        gone = isinstance(exc, EOFError) or (isinstance(exc, OSError) and exc.errno is not None)
        return f'a client {"left" if gone else "sent nonsense"} during authentication: {exc}'
    conn.deadline = conn.patience_s = None
    return None
