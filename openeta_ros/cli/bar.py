# SPDX-License-Identifier: Apache-2.0
"""The progress bar of the verbs that read recordings."""

from __future__ import annotations


class Bar:
    """A progress bar on stderr; nothing where that is no terminal. A context manager."""

    def __init__(self, text: str) -> None:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self._progress = Progress(console=console, disable=not console.is_terminal, transient=True)
        self._task = self._progress.add_task(text, total=1.0)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, share: float) -> None:
        """Show how much is done, 0 to 1."""
        self._progress.update(self._task, completed=share)
