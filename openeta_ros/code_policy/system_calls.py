# SPDX-License-Identifier: Apache-2.0
"""The system calls that a snippet's process may make: what Python and NumPy need once they are loaded.

Not among them, on purpose: whatever makes a process or a thread (clone, fork, execve), a socket or another
way to talk (socket, connect, shmget, msgget, io_uring_setup), a signal (kill, tgkill), or undoes a limit
(prctl, prlimit64, ioctl, fcntl, rt_sigaction), and whatever looks into other processes. Nor what removes
files (unlink, rename): one that is still open or mapped would hold bytes that nobody counts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """`audit` is the kernel's AUDIT_ARCH, the others are numbers of calls; `openat` is without O_TMPFILE."""

    audit: int
    seccomp: int
    openat: int
    allowed: tuple[int, ...]


def _numbers(table: str) -> tuple[int, ...]:
    return tuple(int(word) for word in table.split() if word.isdecimal())


#: By `platform.machine()`.
ARCHITECTURES = {
    'x86_64': Architecture(
        0xC000003E,
        317,
        257,
        _numbers("""
            read 0 write 1 close 3 stat 4 fstat 5 lstat 6 poll 7 lseek 8 mmap 9 mprotect 10 munmap 11 brk 12
            rt_sigreturn 15 pread64 17 pwrite64 18 readv 19 writev 20 select 23 sched_yield 24 mremap 25
            madvise 28 nanosleep 35 setitimer 38 getpid 39 sendmsg 46 recvmsg 47 shutdown 48 setsockopt 54
            getsockopt 55 exit 60 uname 63 ftruncate 77 getcwd 79 gettimeofday 96 getrusage 98 sysinfo 99
            times 100 getuid 102 getgid 104 geteuid 107 getegid 108 getppid 110 gettid 186 time 201 futex 202
            sched_getaffinity 204 getdents64 217 restart_syscall 219 clock_gettime 228 clock_getres 229
            clock_nanosleep 230 exit_group 231 newfstatat 262 pselect6 270 ppoll 271 getrandom 318
        """),
    ),
    'aarch64': Architecture(
        0xC00000B7,
        277,
        56,
        _numbers("""
            getcwd 17 ftruncate 46 close 57 getdents64 61 lseek 62 read 63 write 64 readv 65 writev 66
            pread64 67 pwrite64 68 pselect6 72 ppoll 73 newfstatat 79 fstat 80 exit 93
            exit_group 94 futex 98 nanosleep 101 setitimer 103 clock_gettime 113 clock_getres 114
            clock_nanosleep 115 sched_getaffinity 123 sched_yield 124 restart_syscall 128 rt_sigreturn 139
            times 153 uname 160 getrusage 165 gettimeofday 169 getpid 172 getppid 173 getuid 174 geteuid 175
            getgid 176 getegid 177 gettid 178 sysinfo 179 setsockopt 208 getsockopt 209 shutdown 210
            sendmsg 211 recvmsg 212 brk 214 munmap 215 mremap 216 mmap 222 mprotect 226 madvise 233
            getrandom 278
        """),
    ),
}
