# SPDX-License-Identifier: Apache-2.0
"""Run a command in a process group of its own, none of which outlives whoever started it.

    python -I -S guard.py OWNER_PID FOLDER COMMAND...

The group, and whatever left it for a session of its own, is killed when the command ends, when the owner
ends (also by SIGKILL) or when this process gets SIGTERM. The exit status is the command's. FOLDER is the
owner's temporary folder, which nobody else can remove when the owner is gone.

Why a process between: PR_SET_PDEATHSIG fires when the *thread* that forked ends, so that a policy started
from a worker thread would die with that thread; it reaches one process and none of its children; and setting
it takes code between fork and exec, which may deadlock in a program that has threads. Here the owner is
watched as a process, all descendants are killed, and the one fork happens in a program of a single thread,
where PR_SET_PDEATHSIG does what it says: it covers the case that this process itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: How long the command may outlive the owner.
OWNER_CHECK_S = 0.1


def main(owner: int, folder: str, command: list[str]) -> int:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans among the descendants become children of this process
    ends = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    events = ends | {signal.SIGCHLD}
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, events)
    own_pid = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            if os.getppid() == own_pid:  # otherwise the guard died before prctl could tell
                os.execv(command[0], command)
        finally:
            os._exit(127)
    # Looked at, not reaped: while its leader is a zombie, the group's number cannot become another's.
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        event = signal.sigtimedwait(events, OWNER_CHECK_S)
        # Stopped and continued, it returns an event that never was (its timeout passed in an interruption).
        if os.getppid() != owner or (event is not None and event.si_signo in ends):
            break
    with contextlib.suppress(ProcessLookupError):  # it has not come to setsid yet
        os.killpg(child, signal.SIGKILL)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    kill_children()
    if os.getppid() != owner:
        shutil.rmtree(folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def kill_children() -> None:
    """Kill every child, and the orphans which that makes, until none is left."""
    with contextlib.suppress(OSError):  # a kernel without this file
        while True:
            with open(f'/proc/self/task/{os.getpid()}/children') as file:
                children = [int(pid) for pid in file.read().split()]
            if not children:
                return
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


if __name__ == '__main__':
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
