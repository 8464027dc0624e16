# SPDX-License-Identifier: Apache-2.0
"""Read the end of a log that a policy writes, and that it may have put anything in the place of."""

from __future__ import annotations

import os
import stat
from pathlib import Path

#: What an error message quotes: a traceback fits, a screen is not flooded.
TAIL_LINES = 40
TAIL_BYTES = 8192


def tail(path: str | Path, lines: int = TAIL_LINES, max_bytes: int = TAIL_BYTES) -> str:
    """Return the last lines of a regular file, '' for anything else. Never blocks, follows no symlink."""
    try:
        # O_NONBLOCK: opening a named pipe without a writer would wait for one.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ''
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return ''
        text = os.pread(fd, max_bytes, max(0, status.st_size - max_bytes)).decode('utf-8', 'replace')
    finally:
        os.close(fd)
    return '\n'.join(text.splitlines()[-lines:])
