# SPDX-License-Identifier: Apache-2.0
"""`openeta serve`: serve a policy at an address, for whoever knows the key."""

from __future__ import annotations

import argparse
import os
import secrets
import tempfile
from pathlib import Path

from openeta_ros.cli.arguments import positive_seconds
from openeta_ros.cli.errors import UsageError
from openeta_ros.cli.wanted import NO_POLICY

HELP = 'serve a policy of a directory at an address, for an evaluation or a robot elsewhere'

EPILOG = """\
examples:
  openeta serve my_policy/ --address 127.0.0.1:5555
      makes a key and prints it; clients need it in VECTOR_POLICY_AUTHKEY
  openeta serve my_policy/ --address 0.0.0.0:5555 --max-sessions 1000
      with the key that VECTOR_POLICY_AUTHKEY holds, to a thousand clients, one after the other
  openeta eval --policy 127.0.0.1:5555
      what uses it

exit code:
  0 the last client closed, hung up or went quiet; 1 the policy could not be built, or a message was
  malformed; 2 serving never began; 128 + n it was stopped by signal n.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta serve`."""
    parser.add_argument('policy', metavar='POLICY_DIR', help='a directory with policy.yaml, or that file')
    parser.add_argument(
        '--address', required=True, help='where to listen: HOST:PORT, [IPv6]:PORT, or the path of a socket'
    )
    parser.add_argument(
        '--max-sessions',
        type=_count,
        default=1,
        metavar='N',
        help='clients to serve, one after the other, before it ends (default: %(default)s)',
    )
    parser.add_argument(
        '--idle-timeout',
        type=positive_seconds,
        metavar='SECONDS',
        help='end a session in which the client says nothing for so long (default: half an hour)',
    )
    parser.add_argument(
        '--log-file',
        metavar='FILE',
        help='append all output there, that of the policy too; clients are told its end with each error',
    )


def main(args: argparse.Namespace) -> int:
    """Serve until the last client is gone; return the server's exit code."""
    from openeta_ros.embodiment.resources import local_policy
    from openeta_ros.vector_policy import ManifestError, WireError, wire
    from openeta_ros.vector_policy.process import checked_manifest, start_server

    source = local_policy(args.policy)
    if source is None:
        raise UsageError(f'{args.policy} does not exist; {NO_POLICY}')
    try:
        family, _ = wire.parse_address(args.address)
        loaded = checked_manifest(source)
    except (WireError, ManifestError) as error:
        raise UsageError(str(error)) from None
    socket = Path(args.address).absolute() if family == 'AF_UNIX' else None
    ours = socket is not None and not socket.exists()
    options = ['--max-sessions', str(args.max_sessions)]
    if args.idle_timeout is not None:
        options += ['--idle-timeout-s', str(args.idle_timeout)]
    if args.log_file is not None:
        options += ['--log-file', str(Path(args.log_file).absolute())]
    authkey = _authkey()
    with tempfile.TemporaryDirectory() as folder:
        address = args.address if socket is None else str(socket)
        server = start_server(loaded.path, address, authkey, folder=folder, options=options)
        try:
            return server.wait()
        finally:
            if server.poll() is None:
                server.terminate()  # the guard, which kills the policy and what it started
                server.wait()
                if ours and socket is not None:
                    socket.unlink(missing_ok=True)


def _authkey() -> bytes:
    """Return the key of the environment; where there is none, one that is made and printed."""
    from openeta_ros.vector_policy.process import AUTHKEY_ENV, authkey_of
    from openeta_ros.vector_policy.wire import MIN_AUTHKEY_BYTES

    authkey = authkey_of()
    if authkey is not None:
        return authkey
    if os.environ.get(AUTHKEY_ENV):
        raise UsageError(
            f'{AUTHKEY_ENV} does not hold a key of at least {MIN_AUTHKEY_BYTES} bytes in hex; '
            'unset it to be given one'
        )
    authkey = secrets.token_bytes(32)
    print(f'clients need this key:\n  export {AUTHKEY_ENV}={authkey.hex()}', flush=True)
    return authkey


def _count(text: str) -> int:
    from openeta_ros.vector_policy.serve import positive_count

    return positive_count(text)
