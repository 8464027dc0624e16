# SPDX-License-Identifier: Apache-2.0
"""An evaluation: some episodes, their files, and results.json after each of them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from openeta_ros.control import ActionError
from openeta_ros.embodiment import Embodiment, load
from openeta_ros.envs import EnvError
from openeta_ros.envs.errors import HOLDS
from openeta_ros.episodes import machine
from openeta_ros.episodes.bag_demonstration import load_any
from openeta_ros.episodes.demonstration import Demonstration, DemonstrationError, record_demonstration
from openeta_ros.episodes.files import EpisodeWriter
from openeta_ros.episodes.page import write_page
from openeta_ros.episodes.results import (
    FILENAME,
    Contract,
    EpisodeResult,
    Failure,
    Latency,
    Results,
    SuccessRate,
)
from openeta_ros.episodes.runner import (
    EpisodeEnv,
    EpisodeObserver,
    EpisodePolicy,
    policy_seed,
    run_episode,
    utc_now,
)
from openeta_ros.episodes.settings import EXPERT, NO_DEMONSTRATION, EvalSettings
from openeta_ros.observation import ObservationError
from openeta_ros.vector_policy import PolicyUnavailable, WireError
from openeta_ros.vector_policy.manifest import FILENAME as POLICY_FILENAME


class EvaluationError(Exception):
    """An evaluation could not be carried out; results.json keeps the episodes until then.

    Attributes:
        kind: 'policy' (gone, or never there), 'env', 'demonstration' (none could be shown), 'output' (files).
        message: one sentence.
        episodes: how many episodes results.json holds.
    """

    def __init__(self, kind: str, message: str, episodes: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.episodes = episodes


class Progress(EpisodeObserver, Protocol):
    """Someone who is told how the evaluation goes: `Report`, or an action's feedback."""

    def episode_started(self, index: int, seed: int, note: str) -> None:
        """Episode `index` begins; `note` says what is being done."""

    def episode_ended(self, index: int, result: EpisodeResult) -> None:
        """Episode `index` came to its end."""


def evaluate(
    env: EpisodeEnv, policy: EpisodePolicy, settings: EvalSettings, progress: Sequence[Progress] = ()
) -> Results:
    """Run all episodes of `settings`; write their files and results.json into its output directory.

    results.json is written before the first episode (status 'running') and after each one. An interrupt
    (KeyboardInterrupt, SystemExit) passes through, with status 'interrupted' written.

    Raises:
        EvaluationError: it could not be carried out; status 'failed' is written, when anything can be.
    """
    return _Evaluation(env, policy, settings, progress).run()


class _Evaluation:
    def __init__(
        self, env: EpisodeEnv, policy: EpisodePolicy, settings: EvalSettings, progress: Sequence[Progress]
    ) -> None:
        self._env, self._policy, self._settings, self._progress = env, policy, settings, progress
        self._embodiment: Embodiment = load(settings.embodiment)
        self._begin = time.monotonic()
        self._latencies_ms: list[float] = []
        self._results = Results(
            status='running',
            settings=settings,
            env=dict(env.descriptor()),
            policy={**policy.descriptor(), 'manifest': _manifest(settings.policy)},
            embodiment=_contract(self._embodiment),
            success_rate=SuccessRate.of(()),
            versions=machine.versions(),
            host=machine.host(),
            started_at=utc_now(),
        )

    def run(self) -> Results:
        try:
            self._write()
            given = self._given_demonstration()
            for index in range(self._settings.episodes):
                result = self._episode(index, given)
                episodes = (*self._results.episodes, result)
                self._write(episodes=episodes, success_rate=SuccessRate.of(episodes))
                for observer in self._progress:
                    observer.episode_ended(index, result)
            if not self._results.success_rate.n:
                first = self._results.episodes[0].error
                assert first is not None  # what is not scored says why
                raise self._failed('demonstration', f'no episode could be scored: {first.message}')
            self._write(status='complete')
            write_page(self._results, Path(self._settings.output))
        except PolicyUnavailable as error:
            raise self._failed('policy', error.message) from error
        except (EnvError, ObservationError) as error:
            raise self._failed('env', str(error)) from error
        except (DemonstrationError, WireError) as error:  # of what is sent only a given one is not ours
            raise self._failed('demonstration', str(error)) from error
        except OSError as error:
            raise self._failed('output', str(error)) from error
        except (KeyboardInterrupt, SystemExit):
            self._write(
                status='interrupted', error=Failure(kind='interrupted', message='stopped from outside')
            )
            raise
        return self._results

    def _episode(self, index: int, given: Demonstration | None) -> EpisodeResult:
        seed = self._settings.seed + index
        demonstration = given
        if self._settings.demonstration == EXPERT:
            self._tell(index, seed, 'the expert shows the task')
            started_at, begin = utc_now(), time.monotonic()
            demonstration, error = self._expert_demonstration(seed)
            if error is not None:
                return _not_scored(seed, error, started_at, round(time.monotonic() - begin, 3))
        self._tell(index, seed, 'the policy acts')
        writer = EpisodeWriter(
            Path(self._settings.output),
            index,
            self._embodiment,
            self._custom_data(),
            execution=self._settings.execution,
        )
        try:
            result = run_episode(
                self._env,
                self._policy,
                seed,
                demonstration=demonstration,
                observers=(writer, *self._progress),
                latencies_ms=self._latencies_ms,
                execution=self._settings.execution,
            )
        except BaseException:
            writer.abandon()
            raise
        files = writer.complete({'episode': result.model_dump_json()})
        return result.model_copy(update={'files': files})

    def _expert_demonstration(self, seed: int) -> tuple[Demonstration | None, Failure | None]:
        """Return the expert's demonstration of a scene, or why there is none that succeeds."""
        try:
            demonstration = record_demonstration(self._env, seed)
        except ActionError as error:
            return None, Failure(kind='demonstration', message=f"the expert's own rows were refused: {error}")
        except EnvError as error:
            if error.kind != 'no_expert' and error.kind not in HOLDS:
                raise
            return None, Failure(kind='demonstration', message=str(error))
        if not demonstration.success:
            message = f'the expert did not solve the scene of seed {seed}, so the policy was shown nothing'
            return None, Failure(kind='demonstration', message=message)
        return demonstration, None

    def _given_demonstration(self) -> Demonstration | None:
        if self._settings.demonstration in (EXPERT, NO_DEMONSTRATION):
            return None
        return load_any(Path(self._settings.demonstration), self._embodiment, Path(self._settings.output))

    def _tell(self, index: int, seed: int, note: str) -> None:
        for observer in self._progress:
            observer.episode_started(index, seed, note)

    def _custom_data(self) -> Mapping[str, str]:
        results = self._results
        return {
            'contract': results.embodiment.text,
            'settings': json.dumps(asdict(self._settings)),
            'env': json.dumps(results.env),
            'policy': json.dumps(results.policy),
            'versions': json.dumps(results.versions),
        }

    def _write(self, **update: Any) -> None:
        update['latency_ms'] = Latency.of(self._latencies_ms)
        update['wall_s'] = round(time.monotonic() - self._begin, 3)
        self._results = self._results.model_copy(update=update)
        self._results.write()

    def _failed(self, kind: str, message: str) -> EvaluationError:
        try:
            self._write(status='failed', error=Failure(kind=kind, message=message))
        except OSError as error:
            message = f'{message} (and {FILENAME} could not be written: {error})'
        return EvaluationError(kind, message, len(self._results.episodes))


def _manifest(policy: str) -> str | None:
    """Return the text of a local policy's policy.yaml; None for an address."""
    path = Path(policy)
    path = path / POLICY_FILENAME if path.is_dir() else path
    return path.read_text(encoding='utf-8') if path.is_file() else None


def _contract(embodiment: Embodiment) -> Contract:
    return Contract(
        name=embodiment.name, path=str(embodiment.path), text=embodiment.path.read_text(encoding='utf-8')
    )


def _not_scored(seed: int, error: Failure, started_at: str, wall_s: float) -> EpisodeResult:
    return EpisodeResult(
        seed=seed,
        policy_seed=policy_seed(seed),
        scored=False,
        success=False,
        steps=0,
        reward=0.0,
        clamped={},
        error=error,
        latency_ms=None,
        started_at=started_at,
        wall_s=wall_s,
    )
