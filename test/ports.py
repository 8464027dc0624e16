# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that are told which one to take."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def held_port(host: str = '127.0.0.1') -> Iterator[int]:
    """Yield a port that nobody else is given: it is bound, and a server with SO_REUSEADDR may take it too."""
    with socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        yield held.getsockname()[1]
