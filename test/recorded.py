# SPDX-License-Identifier: Apache-2.0
"""An evaluation of the point env with its files, for those who read recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from point_env import PointEnv, ReplayPolicy, settings

from openeta_ros.episodes import evaluate


def recorded(output: Path, *, episodes: int = 1, policy: Any = None, **changes: Any) -> Path:
    """Return the folder of an evaluation: results.json, and episodes/<n>/ with bag and videos."""
    evaluate(PointEnv(), policy or ReplayPolicy(), settings(output, episodes=episodes, **changes))
    return output
