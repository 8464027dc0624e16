# SPDX-License-Identifier: Apache-2.0
"""A process gives up what a snippet must not have: files, network, other processes, more than its share.

Called in the snippet's own process once everything it needs is loaded, before its text is. All of it is
enforced by the kernel, so that it holds against machine code just as well, and nothing of it can be undone:
Landlock (which files may be opened), a seccomp filter (an allow-list of system calls: none that makes a
process or thread, a socket or a signal, or changes any of this), resource limits, no capabilities.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import platform
import resource
import signal
import struct
from collections.abc import Callable, Sequence

from openeta_ros.code_policy.system_calls import ARCHITECTURES

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
# glibc's mallopt has these by number.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

# The same numbers on every architecture.
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_VERSION, LANDLOCK_PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, MAKE_REG = 1, 2, 4, 8, 1 << 8
TRUNCATE = 1 << 14
#: File system rights that each version of Landlock knows, from version 1 on.
FILE_RIGHTS = ((1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)
ALL_TCP, ALL_SCOPES = 3, 3

SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC = 1, 1
SECCOMP_RET_ALLOW, SECCOMP_RET_EPERM = 0x7FFF0000, 0x00050001
LOAD_WORD, JUMP_IF_EQUAL, JUMP_IF_SET, RETURN = 0x20, 0x15, 0x45, 0x06
# Where a filter finds the low half of the third argument, which has the flags of openat.
FLAGS = 32

#: What `confine` puts up, by name.
WALLS = ('landlock', 'seccomp', 'capabilities', 'limits')


class NotEnforced(Exception):
    """A boundary that this kernel does not offer; the text says why."""


def confine(
    *, readable: Sequence[str], scratch: str, limits: dict[str, float], traceback_fd: int
) -> dict[str, str]:
    """Give everything up, for good.

    Args:
        readable: files and folders to read from.
        scratch: the folder to write plain files into; links and folders cannot be made there, and nothing can
            be removed: what is open or mapped and has no name is not counted.
        limits: `cpu_s`, `memory_bytes`, `file_bytes` of the budgets.
        traceback_fd: where the line that Python is at is written on SIGXCPU, which comes when the processor
            time is over, and on SIGALRM.

    Returns:
        for each of `WALLS`: '' where it holds, else why it does not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    problems = dict.fromkeys(WALLS, '')
    steps: dict[str, Callable[[], None]] = {
        'limits': lambda: _limit(limits, traceback_fd),
        'landlock': lambda: _keep_to_files(libc, readable, scratch),
        'capabilities': lambda: _drop_capabilities(libc),
        'seccomp': lambda: _filter_calls(libc),  # the last: the others need calls that it refuses
    }
    for name, step in steps.items():
        try:
            step()
        except (NotEnforced, OSError, ValueError) as error:
            problems[name] = str(error)
    return problems


def keep_large_blocks() -> None:
    """Tell malloc to keep large blocks for the next picture: a fresh one costs its page faults each time.

    Only the C library of GNU knows how.
    """
    set_option = getattr(ctypes.CDLL(None), 'mallopt', None)
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, 32 << 20)  # the largest that every version takes
        set_option(M_TRIM_THRESHOLD, 64 << 20)


def _limit(limits: dict[str, float], traceback_fd: int) -> None:
    for number in (signal.SIGALRM, signal.SIGXCPU):
        faulthandler.register(number, file=traceback_fd, all_threads=False)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = int(used.ru_utime + used.ru_stime + limits['cpu_s']) + 1
    memory, file_bytes = int(limits['memory_bytes']), int(limits['file_bytes'])
    for which, soft, hard in (
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),  # the first tells where it is, the second ends it
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, file_bytes, file_bytes),
        (resource.RLIMIT_NOFILE, 32, 32),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
    ):
        resource.setrlimit(which, (soft, hard))


def _keep_to_files(libc: ctypes.CDLL, readable: Sequence[str], scratch: str) -> None:
    version = libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION)
    if version < 1:
        raise NotEnforced(f'this kernel ({platform.release()}) has no Landlock, or it is switched off')
    with contextlib.suppress(FileNotFoundError):  # /proc is not there in bubblewrap
        if len(os.listdir('/proc/self/task')) > 1:
            raise NotEnforced('a thread is running already, which Landlock would not hold')
    rights = FILE_RIGHTS[min(version, len(FILE_RIGHTS)) - 1]
    attributes = struct.pack(
        '=QQQ', rights, ALL_TCP if version >= 4 else 0, ALL_SCOPES if version >= 6 else 0
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _called(
        libc.syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0), 'landlock_create_ruleset'
    )
    try:
        for path in readable:
            read = READ_FILE | EXECUTE | (READ_DIR if os.path.isdir(path) else 0)
            _allow_beneath(libc, ruleset, path, read)
        write = READ_FILE | WRITE_FILE | READ_DIR | MAKE_REG | (TRUNCATE & rights)
        _allow_beneath(libc, ruleset, scratch, write)
        _called(libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0), 'landlock_restrict_self')
    finally:
        os.close(ruleset)


def _allow_beneath(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack('=Qi', rights, folder)
        added = libc.syscall(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_PATH_BENEATH, rule, 0)
        _called(added, f'landlock_add_rule {path}')
    finally:
        os.close(folder)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header = struct.pack('=Ii', 0x20080522, 0)  # version 3, this process
    _called(libc.capset(header, bytes(24)), 'capset')


def _filter_calls(libc: ctypes.CDLL) -> None:
    if platform.machine() not in ARCHITECTURES or struct.calcsize('P') != 8:
        raise NotEnforced(f'the list of system calls is not written for {platform.machine()}')
    architecture = ARCHITECTURES[platform.machine()]
    calls = architecture.allowed
    instructions = [
        (LOAD_WORD, 0, 0, 4),
        (JUMP_IF_EQUAL, 0, len(calls) + 4, architecture.audit),
        (LOAD_WORD, 0, 0, 0),
        # Files are opened by their names: O_TMPFILE makes one without.
        (JUMP_IF_EQUAL, 0, 2, architecture.openat),
        (LOAD_WORD, 0, 0, FLAGS),
        (JUMP_IF_SET, len(calls), len(calls) + 1, os.O_TMPFILE & ~os.O_DIRECTORY),
        # A match jumps over the rest of the calls and the refusal after them.
        *((JUMP_IF_EQUAL, len(calls) - index, 0, number) for index, number in enumerate(calls)),
        (RETURN, 0, 0, SECCOMP_RET_EPERM),
        (RETURN, 0, 0, SECCOMP_RET_ALLOW),
    ]
    code = b''.join(struct.pack('=HBBI', *instruction) for instruction in instructions)
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack('@HP', len(instructions), ctypes.addressof(kept))
    answer = libc.syscall(architecture.seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, program)
    if answer > 0:
        raise NotEnforced(f'thread {answer} could not be brought under the filter')
    _called(answer, 'seccomp')


def _called(answer: int, name: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f'{name}: {os.strerror(number)}')
    return answer
