# SPDX-License-Identifier: Apache-2.0
"""Episodes: run them, record them, score them, tell about them.

A name is imported when it is asked for, so that a node which needs one starts without the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openeta_ros.episodes.demonstration import Demonstration, DemonstrationError, record_demonstration
    from openeta_ros.episodes.evaluation import EvaluationError, Progress, evaluate
    from openeta_ros.episodes.report import Report
    from openeta_ros.episodes.results import EpisodeResult, Results, without_times
    from openeta_ros.episodes.runner import EpisodeEnv, EpisodeObserver, EpisodePolicy, run_episode
    from openeta_ros.episodes.settings import EvalSettings, SettingsError

_MODULES = {
    'Demonstration': 'demonstration',
    'DemonstrationError': 'demonstration',
    'EpisodeEnv': 'runner',
    'EpisodeObserver': 'runner',
    'EpisodePolicy': 'runner',
    'EpisodeResult': 'results',
    'EvalSettings': 'settings',
    'EvaluationError': 'evaluation',
    'Progress': 'evaluation',
    'Report': 'report',
    'Results': 'results',
    'SettingsError': 'settings',
    'evaluate': 'evaluation',
    'record_demonstration': 'demonstration',
    'run_episode': 'runner',
    'without_times': 'results',
}

__all__ = [
    'Demonstration',
    'DemonstrationError',
    'EpisodeEnv',
    'EpisodeObserver',
    'EpisodePolicy',
    'EpisodeResult',
    'EvalSettings',
    'EvaluationError',
    'Progress',
    'Report',
    'Results',
    'SettingsError',
    'evaluate',
    'record_demonstration',
    'run_episode',
    'without_times',
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_MODULES[name]}'), name)
