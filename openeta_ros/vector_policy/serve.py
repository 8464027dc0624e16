# SPDX-License-Identifier: Apache-2.0
"""Serve one policy: `python -m openeta_ros.vector_policy.serve --manifest policy.yaml --address ...`.

Exit status: 0 the client closed, hung up or went quiet; 1 the policy could not be built, or a message was
malformed; 2 serving never began. With several sessions it is the last one's. The process leaves by os._exit,
so that no thread of the policy's holds it.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from openeta_ros.vector_policy import manifest, wire
from openeta_ros.vector_policy.errors import ManifestError, WireError
from openeta_ros.vector_policy.listener import Listener
from openeta_ros.vector_policy.manifest import Manifest
from openeta_ros.vector_policy.session import IDLE_TIMEOUT_S, Session, build_policy, checked_action, leave

__all__ = ['Session', 'build_policy', 'checked_action', 'main']

_log = logging.getLogger('vector_policy.serve')


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until the client is gone; return the exit status."""
    options = _arguments(argv)
    log_file = None
    if options.log_file is not None:
        log_file = Path(options.log_file).absolute()
        try:
            _redirect_output(log_file)
        except (OSError, ValueError) as exc:
            print(f'vector_policy.serve: cannot write the log file: {exc}', file=sys.stderr)
            return 2
    _start_logging()
    try:
        authkey = _take_authkey(options.authkey_env)
        wire.parse_address(options.address)
        loaded = manifest.load(options.manifest)
        listener = _listen(options.address)
    except (_CannotServe, WireError, ManifestError) as exc:
        _log.error('%s', exc)
        return 2
    try:
        whom = 'one client' if options.max_sessions == 1 else f'{options.max_sessions} clients in turn'
        _log.info('listening on %s to serve %s to %s', options.address, loaded.policy, whom)
        listener.admit(authkey)
        return _serve(loaded, listener, log_file, options.idle_timeout_s, options.max_sessions)
    except BaseException:
        _log.exception('serving failed')
        return 1


def _serve(
    loaded: Manifest,
    listener: Listener,
    log_file: Path | None,
    idle_timeout_s: float,
    sessions: int,
) -> int:
    """Serve clients one after the other, all by the one policy; return the last one's exit status."""
    policy, in_turn = None, sessions > 1
    while True:
        conn = listener.next_client()
        if in_turn and conn.peer_left():  # gave up waiting
            conn.close()
            continue
        if sessions == 1:
            listener.close()
        session = Session(
            loaded,
            conn,
            log_file=log_file,
            idle_timeout_s=idle_timeout_s,
            policy=policy,
            last=sessions == 1,
        )
        status = session.run()
        policy = session.policy
        sessions -= 1
        if sessions == 0:
            return status


class _CannotServe(Exception):
    """Why serving cannot begin."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='vector_policy.serve',
        description='Serve one policy to one client, or to several in turn.',
    )
    parser.add_argument('--manifest', required=True, help='the policy.yaml of the policy')
    parser.add_argument(
        '--address',
        required=True,
        help='Unix socket path, host:port or [IPv6]:port to listen on',
    )
    parser.add_argument(
        '--authkey-env',
        required=True,
        metavar='NAME',
        help='environment variable holding the shared key in hex; removed before the policy is imported',
    )
    parser.add_argument('--log-file', help="append all output, the policy's included, to this file")
    parser.add_argument(
        '--idle-timeout-s',
        type=positive_seconds,
        default=IDLE_TIMEOUT_S,
        metavar='SECONDS',
        help='leave when the client says nothing for this long between calls (default %(default)g)',
    )
    parser.add_argument(
        '--max-sessions',
        type=positive_count,
        default=1,
        metavar='N',
        help='serve N clients, one after the other, with the policy that the first hello builds (default 1)',
    )
    return parser.parse_args(argv)


def positive_seconds(text: str) -> float:
    """Return an option's seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (seconds > 0 and math.isfinite(seconds)):
        raise argparse.ArgumentTypeError(f'{text!r} is not a positive number of seconds')
    return seconds


def positive_count(text: str) -> int:
    """Return an option's number of sessions."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f'{text!r} is not a positive number of sessions')
    return int(text)


def _redirect_output(log_file: Path) -> None:
    """Point file descriptors 1 and 2 at the log, so that output of native libraries is there, too."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        cast(Any, stream).reconfigure(line_buffering=True)


def _start_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter('%(asctime)s vector_policy.serve[%(process)d] %(levelname)s %(message)s'),
    )
    _log.addHandler(handler)
    _log.setLevel(logging.INFO)
    _log.propagate = False


def _take_authkey(name: str) -> bytes:
    try:
        authkey = bytes.fromhex(os.environ.pop(name, ''))
    except ValueError:
        authkey = b''
    if not authkey:
        raise _CannotServe(f'environment variable {name} does not hold a hex authkey')
    if len(authkey) < wire.MIN_AUTHKEY_BYTES:
        raise _CannotServe(f'the authkey must be at least {wire.MIN_AUTHKEY_BYTES} bytes, not {len(authkey)}')
    return authkey


def _listen(address: str) -> Listener:
    try:
        return Listener(address)
    except (OSError, ValueError) as exc:
        raise _CannotServe(f'cannot listen on {address}: {exc}') from exc


if __name__ == '__main__':
    leave(main())
