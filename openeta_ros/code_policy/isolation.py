# SPDX-License-Identifier: Apache-2.0
"""Starts the process of a snippet, with as many walls around it as this machine has, and ends it whole.

Two kinds of wall. Namespaces (bubblewrap, where it is installed and works): another root folder, read-only
but for the scratch folder, no network, no other process to be seen. And what the process takes on itself
(`confine`), which needs no privilege and works in containers too. Either is enough for files and network;
new processes are refused by `confine` alone.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

import openeta_ros
from openeta_ros.code_policy.shared import SharedMemory
from openeta_ros.code_policy.types import Budgets, SandboxConfig
from openeta_ros.vector_policy.frames import FrameSocket

#: What the process sees of the environment. Threads it cannot make; equal seeds give equal order of sets.
ENVIRONMENT = {
    'LC_ALL': 'C.UTF-8',
    'PYTHONUTF8': '1',
    'PYTHONHASHSEED': '0',
    'PYTHONDONTWRITEBYTECODE': '1',
    'OPENBLAS_NUM_THREADS': '1',
    'OMP_NUM_THREADS': '1',
    'MKL_NUM_THREADS': '1',
}
BOOTSTRAP = (
    'import sys; sys.path[:1] = sys.argv[2:]; '
    'from openeta_ros.code_policy.child import main; main(sys.argv[1])'
)
#: For the first use of bubblewrap on a busy machine.
PROBE_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (negative: the signal), and the processor time that it used."""

    code: int
    cpu_s: float

    @property
    def signal(self) -> str | None:
        """The name of the signal that ended it; bubblewrap tells it as 128 + its number."""
        number = -self.code if self.code < 0 else self.code - 128
        with contextlib.suppress(ValueError):
            return signal.Signals(number).name
        return None


class Cell:
    """The process of one snippet. Use it as a context manager: nothing of it is left behind.

    Raises:
        OSError: the process cannot be started.

    Attributes:
        connection: to the process; see `child`.
        shared: takes pictures to it.
        scratch: the only folder that it writes to; removed at the end.
        bubblewrap: '' when it is inside one, else why not.
    """

    def __init__(self, config: SandboxConfig, budgets: Budgets) -> None:
        self.bubblewrap = without_bubblewrap(config.isolation)
        self.scratch = Path(tempfile.mkdtemp(prefix='snippet-'))
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as theirs:
            failed.callback(shutil.rmtree, self.scratch, ignore_errors=True)
            connection, their_connection = socket.socketpair()
            failed.callback(connection.close)
            theirs.callback(their_connection.close)
            self.shared = SharedMemory()
            theirs.callback(os.close, self.shared.descriptor)
            self._output, output = _pipe(failed, theirs)
            self._traceback, traceback = _pipe(failed, theirs)
            setup = {
                'socket_fd': their_connection.fileno(),
                'shared_fd': self.shared.descriptor,
                'traceback_fd': traceback,
                'readable': _python_paths(),
                'scratch': str(self.scratch),
                'limits': {name: getattr(budgets, name) for name in ('cpu_s', 'memory_bytes', 'file_bytes')},
            }
            prefix = [] if self.bubblewrap else _bubblewrapped(self.scratch)
            self._process = subprocess.Popen(
                [*prefix, *_python(), BOOTSTRAP, json.dumps(setup), *_import_paths()],
                env=ENVIRONMENT,
                cwd=self.scratch,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(their_connection.fileno(), self.shared.descriptor, traceback),
                start_new_session=True,
            )
            failed.pop_all()
        for end in (self._output, self._traceback):
            os.set_blocking(end, False)
        self.connection = FrameSocket(connection)
        self._ended: Ended | None = None

    def printed(self) -> bytes:
        """Return what was printed since the last call."""
        return _read_all(self._output)

    def traceback(self) -> str:
        """Return what Python wrote when its time was over: the lines that it was at."""
        return _read_all(self._traceback).decode('utf-8', 'replace')

    def scratch_bytes(self) -> int:
        """Return what the scratch folder holds; a file counts at least one block."""
        total = 0
        for folder, _, names in os.walk(self.scratch):
            for name in names:
                with contextlib.suppress(OSError):
                    status = os.lstat(os.path.join(folder, name))
                    total += max(status.st_blocks * 512, 4096)
        return total

    def kill(self) -> Ended:
        """End the process and all that is in it, if it has not ended, and tell how it did."""
        if self._ended is None:
            # In bubblewrap this one's death takes the whole namespace along. It is not reaped before, so that
            # the number is nobody else's.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._ended = self._reap()
        return self._ended

    def wait(self, timeout_s: float) -> Ended:
        """Give the process this long to end by itself, then kill it."""
        if self._ended is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                _wait_exit(self._process.pid, timeout_s)
        return self.kill()

    def close(self) -> None:
        """Kill what is left and remove the scratch folder."""
        self.kill()
        self.connection.close()
        os.close(self._output)
        os.close(self._traceback)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def __enter__(self) -> Cell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reap(self) -> Ended:
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return Ended(self._process.returncode, usage.ru_utime + usage.ru_stime)


def describe(bubblewrap: str, problems: Mapping[str, str]) -> dict[str, Any]:
    """Return what holds a snippet in: `layers`, and `not_enforced`: each boundary that nothing does.

    Args:
        bubblewrap: as `Cell.bubblewrap`.
        problems: as `confine` returns them.
    """
    walls = {'bubblewrap': bubblewrap, **problems}
    by = {
        'files': ('bubblewrap', 'landlock'),
        'network': ('bubblewrap', 'seccomp'),
        'processes': ('seccomp',),
        'privileges': ('capabilities',),
        'memory, processor time, file size': ('limits',),
    }
    return {
        'layers': [name for name, problem in walls.items() if not problem],
        'not_enforced': [
            f'{boundary}: {"; ".join(f"{name}: {walls[name]}" for name in names)}'
            for boundary, names in by.items()
            if all(walls[name] for name in names)
        ],
        'absent': {name: problem for name, problem in walls.items() if problem},
    }


def without_bubblewrap(isolation: str) -> str:
    """Return why there is no bubblewrap around snippets here; '' when there is."""
    return 'not asked for' if isolation == 'process' else _probe()


@functools.cache
def _probe() -> str:
    if shutil.which('bwrap') is None:
        return 'bwrap is not installed (Debian package bubblewrap)'
    with tempfile.TemporaryDirectory(prefix='snippet-') as folder:
        command = [*_bubblewrapped(Path(folder)), *_python(), 'pass']
        try:
            done = subprocess.run(
                command, env=ENVIRONMENT, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f'bwrap does not run: {error}'
    return '' if done.returncode == 0 else f'bwrap does not work here: {done.stderr.strip()[-300:]}'


def _python() -> list[str]:
    """Return Python without site-packages or the user's own, all of which it would look through."""
    return [os.path.realpath(sys.executable), '-s', '-S', '-c']


def _bubblewrapped(scratch: Path) -> list[str]:
    command = [shutil.which('bwrap') or 'bwrap', '--unshare-all', '--die-with-parent', '--new-session']
    command += ['--cap-drop', 'ALL']
    for path in [*_library_paths(), *_python_paths()]:
        command += ['--ro-bind', path, path]
    return [
        *command,
        '--bind',
        str(scratch),
        str(scratch),
        '--remount-ro',
        '/',
        '--chdir',
        str(scratch),
        '--',
    ]


@functools.cache
def _library_paths() -> tuple[str, ...]:
    """Return what the system's loader and Python's own program need."""
    executable = os.path.realpath(sys.executable)
    candidates = [
        '/lib',
        '/lib64',
        '/usr/lib',
        '/usr/lib64',
        '/etc/ld.so.cache',
        '/etc/alternatives',
        executable,
    ]
    candidates.append(sysconfig.get_config_var('LIBDIR') or '')
    return tuple(dict.fromkeys(path for path in candidates if path and os.path.exists(path)))


@functools.cache
def _python_paths() -> tuple[str, ...]:
    """Return what may be read from inside: Python's library, NumPy and the two folders of this package."""
    paths = {sysconfig.get_paths()[name] for name in ('stdlib', 'platstdlib')}
    numpy_folder = Path(np.__file__).parent
    package = Path(openeta_ros.__file__).parent
    paths |= {str(numpy_folder), str(numpy_folder.with_name('numpy.libs'))}
    paths |= {str(package / name) for name in ('__init__.py', 'code_policy', 'vector_policy')}
    return tuple(sorted(path for path in paths if os.path.exists(path)))


def _import_paths() -> list[str]:
    return [str(Path(openeta_ros.__file__).parents[1]), str(Path(np.__file__).parents[1])]


def _pipe(failed: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    """Return the reading end of a pipe, which is ours, and the writing end."""
    reading, writing = os.pipe()
    failed.callback(os.close, reading)
    theirs.callback(os.close, writing)
    return reading, writing


def _wait_exit(pid: int, timeout_s: float) -> None:
    """Wait for the end of a child without reaping it, which would free its number."""
    handle = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        poller.poll(timeout_s * 1e3)
    finally:
        os.close(handle)


def _read_all(end: int) -> bytes:
    pieces = []
    with contextlib.suppress(BlockingIOError):
        for _ in range(16):  # a pipe's content at once; who fills it faster than this is not waited for
            piece = os.read(end, 1 << 16)
            if not piece:
                break
            pieces.append(piece)
    return b''.join(pieces)
