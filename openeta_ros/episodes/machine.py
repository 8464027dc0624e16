# SPDX-License-Identifier: Apache-2.0
"""The machine and the versions that a run is made with."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

# glibc's mallopt has these by number.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

# What can change a picture, a motion or a file.
PACKAGES = (
    'numpy',
    'opencv-python',
    'pin',
    'mujoco',
    'genesis-world',
    'torch',
    'rosbags',
    'av',
    'ros-jazzy-rclpy',
)


def versions() -> dict[str, str]:
    """Return the versions of Python, of this package (with its commit, in a checkout) and of `PACKAGES`."""
    found = {'python': platform.python_version(), 'openeta_ros': _own_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def host() -> dict[str, Any]:
    """Return what the machine is: system, processor, processors usable, memory in GiB."""
    pages, page_size = os.sysconf('SC_PHYS_PAGES'), os.sysconf('SC_PAGE_SIZE')
    return {
        'system': platform.platform(),
        'machine': platform.machine(),
        'processor': _processor(),
        'processors': len(os.sched_getaffinity(0)),
        'memory_gib': round(pages * page_size / 2**30, 1),
    }


def _own_version() -> str:
    try:
        version = metadata.version('openeta_ros')
    except metadata.PackageNotFoundError:
        version = 'not installed'
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / '.git').exists():
        return version
    command = ['git', '-C', str(checkout), 'describe', '--always', '--dirty', '--exclude', '*']
    try:
        described = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return version
    return f'{version} ({described})'


def _processor() -> str:
    try:
        for line in Path('/proc/cpuinfo').read_text().splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def keep_large_blocks() -> None:
    """Tell malloc to keep large blocks for the next picture: a fresh one costs its page faults each time.

    Only the C library of GNU knows how.
    """
    set_option = getattr(ctypes.CDLL(None), 'mallopt', None)
    if set_option is not None:
        set_option(M_MMAP_THRESHOLD, 32 << 20)  # the largest that every version takes
        set_option(M_TRIM_THRESHOLD, 256 << 20)
