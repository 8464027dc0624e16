# SPDX-License-Identifier: Apache-2.0
"""Folders that appear when all in them is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def appearing(output: Path) -> Iterator[Path]:
    """Yield a folder beside `output` that becomes it when the block ends; when it fails nothing is left.

    Its name is one that nothing else has: `<output>.partial` may be the very recording that is read.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f'.{output.name}.', dir=output.parent))
    folder.chmod(output.parent.stat().st_mode & 0o777)  # of its maker alone until here
    try:
        yield folder
        os.replace(folder, output)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
