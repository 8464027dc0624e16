# SPDX-License-Identifier: Apache-2.0
"""Episodes: run them, record them, score them, tell about them."""

from openeta_ros.episodes.demonstration import Demonstration, DemonstrationError, record_demonstration
from openeta_ros.episodes.evaluate import EvaluationError, Progress, evaluate
from openeta_ros.episodes.report import Report
from openeta_ros.episodes.results import EpisodeResult, Results, without_times
from openeta_ros.episodes.runner import EpisodeEnv, EpisodeObserver, EpisodePolicy, run_episode
from openeta_ros.episodes.settings import EvalSettings, SettingsError

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
