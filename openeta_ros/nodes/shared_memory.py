# SPDX-License-Identifier: Apache-2.0
"""Shared memory of Fast DDS that killed processes left: up to 32 MiB each, until the machine restarts."""

from __future__ import annotations

import contextlib
import fcntl
import re
import time
from pathlib import Path

FOLDER = Path('/dev/shm')
SEGMENT = re.compile('fastrtps_[0-9a-f]{16}')
# A segment is made, and then locked.
SETTLED_S = 10.0


def remove_abandoned() -> list[Path]:
    """Remove the segments that nobody owns any more; return which.

    An owner holds a lock of the file `<segment>_el` as long as it lives, by which Fast DDS itself knows. What
    somebody on this machine owns, with whatever program, is not touched; nor what is younger than
    `SETTLED_S`.
    """
    removed = []
    for segment in (path for path in FOLDER.glob('fastrtps_*') if SEGMENT.fullmatch(path.name)):
        owner = segment.with_name(f'{segment.name}_el')
        with contextlib.suppress(OSError):  # it is owned, another user's, or gone meanwhile
            if time.time() - owner.stat().st_mtime < SETTLED_S:
                continue
            with owner.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                segment.unlink()
                owner.unlink()
            removed.append(segment)
    return removed
