# SPDX-License-Identifier: Apache-2.0
"""Start the policy of a directory and drive it; nothing that was started outlives its user.

Importing this module loads NumPy and the standard library only; starting a policy also loads PyYAML.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from openeta_ros.vector_policy import guard, logs, wire
from openeta_ros.vector_policy.client import RemotePolicy
from openeta_ros.vector_policy.errors import ManifestError, PolicyUnavailable, WireError

if TYPE_CHECKING:
    from openeta_ros.vector_policy.manifest import Manifest

AUTHKEY_ENV = 'VECTOR_POLICY_AUTHKEY'
#: Starting and building a policy may load a large checkpoint.
START_TIMEOUT_S = 300.0
CALL_TIMEOUT_S = 60.0
#: A server that is started at the same time listens before it builds its policy.
CONNECT_TIMEOUT_S = 30.0

_POLL_S = 0.02
#: What a policy gets for its close(), and the server then for leaving by itself, before both are killed.
_CLOSE_TIMEOUT_S = 5.0
_EXIT_TIMEOUT_S = 2.0
#: For the guard to kill them all: nobody else can, and a busy machine, or much memory, makes it slow.
_KILL_TIMEOUT_S = 30.0
#: A Unix socket path has 107 bytes, which TMPDIR may fill by itself.
_SOCKET_PARENT = '/tmp'


class PolicyProcess:
    """The server of one policy directory, in a session and process group of its own.

    Args:
        source: a directory with a policy.yaml, or that file.
        log_file: where all output of server and policy is appended; None keeps it until close() only.
        timeout_s: limit of each call of the RemotePolicy that connect() returns.
        authkey_env: environment variable that carries the key to the server.

    Raises:
        ManifestError: there is no such policy, or its policy.yaml is wrong. Nothing was started.
        PolicyUnavailable: the log file cannot be written, or the server cannot be started.

    Attributes:
        address, authkey: what a client needs to connect.
        log_file: where the output is.

    Server, policy and all their children are killed by close(), and by the guard when this process ends in
    any way (see guard.py).
    """

    def __init__(
        self,
        source: str | Path,
        *,
        log_file: str | Path | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        authkey_env: str = AUTHKEY_ENV,
    ) -> None:
        self.source = str(source)
        self.timeout_s = timeout_s
        self._policy: RemotePolicy | None = None
        self.authkey = secrets.token_bytes(32)
        manifest_path = checked_manifest(source).path
        try:
            self._folder = tempfile.mkdtemp(prefix='policy-', dir=_SOCKET_PARENT)
        except OSError as exc:
            raise self._not_started(exc) from exc
        self.address = os.path.join(self._folder, 's')
        self.log_file = Path(
            log_file if log_file is not None else os.path.join(self._folder, 'log')
        ).absolute()
        try:
            self._guard = self._start(manifest_path, authkey_env)
        except OSError as exc:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise self._not_started(exc) from exc

    def connect(self, timeout_s: float = START_TIMEOUT_S) -> RemotePolicy:
        """Return a connection that has not said hello yet. A server takes one client, so call this once.

        Raises:
            PolicyUnavailable: the server ended, or did not listen within timeout_s.
        """
        deadline = time.monotonic() + timeout_s
        while not os.path.exists(self.address):
            status = self._guard.poll()
            if status is not None:
                raise self._unavailable(f'its server ended with status {status} before it listened')
            if time.monotonic() >= deadline:
                raise self._unavailable(f'its server did not listen within {timeout_s:g}s')
            time.sleep(_POLL_S)
        self._policy = RemotePolicy(
            self.address,
            self.authkey,
            timeout_s=max(deadline - time.monotonic(), 1.0),
            log_file=self.log_file,
        )
        self._policy.timeout_s = self.timeout_s
        return self._policy

    def close(self) -> None:
        """Close the policy, then kill what is left of its processes. May be called again; raises nothing.

        A call that another thread is waiting for is not: it fails, as the policy is killed.
        """
        if self._policy is not None:
            self._policy.timeout_s = min(self._policy.timeout_s, _CLOSE_TIMEOUT_S)
            if self._policy.stop():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._guard.wait(_EXIT_TIMEOUT_S)
        self._guard.terminate()  # the guard kills them all; does nothing when it has ended already
        try:
            self._guard.wait(_KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()  # takes the server along
            self._guard.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> PolicyProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _start(self, manifest_path: Path, authkey_env: str) -> subprocess.Popen[bytes]:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log_file, 'ab') as log:
            return start_server(
                manifest_path,
                self.address,
                self.authkey,
                folder=self._folder,
                options=('--log-file', str(self.log_file)),
                authkey_env=authkey_env,
                output=log,
            )

    def _not_started(self, exc: OSError) -> PolicyUnavailable:
        return PolicyUnavailable(f'cannot start the policy {self.source}: {exc}', op='connect')

    def _unavailable(self, text: str) -> PolicyUnavailable:
        return PolicyUnavailable(
            f'connect: the policy {self.source} cannot be used: {text}',
            op='connect',
            log_tail=logs.tail(self.log_file),
        )


def start_server(
    manifest_path: Path,
    address: str,
    authkey: bytes,
    *,
    folder: str,
    options: Sequence[str] = (),
    authkey_env: str = AUTHKEY_ENV,
    output: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a server, and the guard that kills it and its children: when it is terminated, when we end.

    Args:
        address: absolute, when it is the path of a socket.
        folder: an empty one of its own, as its working directory; the guard removes it when this process is
            gone.
        options: further options of `serve`.
        output: where it prints; None: where this process does.

    Raises:
        OSError: it cannot be started.
    """
    command = [sys.executable, '-m', 'openeta_ros.vector_policy.serve', '--manifest', str(manifest_path)]
    command += ['--address', address, '--authkey-env', authkey_env, *options]
    # The server must find this very package, wherever this program has it from.
    path = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get('PYTHONPATH')])]
    return subprocess.Popen(
        [sys.executable, '-I', '-S', guard.__file__, str(os.getpid()), folder, *command],
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(path), authkey_env: authkey.hex()},
        cwd=folder,  # not the policy's: modules there would stand before the server's own
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # Ctrl-C in the terminal is this program's to handle
    )


@contextlib.contextmanager
def open_policy(
    source: str | Path,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
    start_timeout_s: float = START_TIMEOUT_S,
    log_file: str | Path | None = None,
    authkey_env: str = AUTHKEY_ENV,
) -> Iterator[RemotePolicy]:
    """Yield a policy that said hello, and close it (and what was started for it) afterwards.

    A call that another thread still waits for at the end of the block fails; it is not waited for.

    Args:
        source: a policy directory or policy.yaml, which is served for as long as the block runs; or the
            address of a policy that is served already: host:port, [IPv6]:port, or the path of a socket (one
            that does not exist yet is waited for when its name ends in .sock).
        timeout_s: limit of each reset, set_demonstration and act.
        start_timeout_s: limit for connecting (of an address CONNECT_TIMEOUT_S at most), and again for
            building the policy.
        log_file: where a started policy's output goes; for an address, the log that errors quote.
        authkey_env: environment variable holding the key of an address, in hex.

    Raises:
        ManifestError: there is no such policy, or its policy.yaml is wrong.
        PolicyUnavailable: it could not be reached, built or authenticated with; quotes the end of its log.
    """
    with contextlib.ExitStack() as stack:
        if _is_address(str(source)):
            authkey = authkey_of(authkey_env)
            if authkey is None:
                raise PolicyUnavailable(
                    f"connect: the policy at {source} needs its key: set {authkey_env} to the server's, "
                    f'at least {wire.MIN_AUTHKEY_BYTES} bytes in hex',
                    op='connect',
                )
            policy = RemotePolicy(
                str(source),
                authkey,
                timeout_s=min(start_timeout_s, CONNECT_TIMEOUT_S),
                log_file=log_file,
            )
            stack.callback(policy.stop)
        else:
            process = stack.enter_context(
                PolicyProcess(source, log_file=log_file, timeout_s=timeout_s, authkey_env=authkey_env),
            )
            policy = process.connect(start_timeout_s)
        policy.timeout_s = start_timeout_s
        policy.hello()
        policy.timeout_s = timeout_s
        yield policy


def _is_address(source: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(os.stat(source).st_mode)
    try:
        return source.endswith('.sock') or wire.parse_address(source)[0] == 'AF_INET'
    except WireError:
        return True  # a port out of range: connecting says so


def authkey_of(authkey_env: str = AUTHKEY_ENV) -> bytes | None:
    """Return the shared key that the environment holds in hex; None when there is none long enough."""
    try:
        authkey = bytes.fromhex(os.environ.get(authkey_env, ''))
    except ValueError:
        return None
    return authkey if len(authkey) >= wire.MIN_AUTHKEY_BYTES else None


def checked_manifest(source: str | Path) -> Manifest:
    """Read the policy.yaml of a directory, or that file: its problems cost no process.

    Raises:
        ManifestError: there is none, or it is wrong.
    """
    from openeta_ros.vector_policy import manifest

    path = Path(source)
    if not os.path.exists(path):
        what = f'a directory with a {manifest.FILENAME}, that file, a socket, or host:port'
        raise ManifestError(str(source), [f'does not exist; a policy is {what}'])
    return manifest.load(path / manifest.FILENAME if path.is_dir() else path)
