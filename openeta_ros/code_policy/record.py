# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: the snippet, its trace, what was seen and done, and what came of it.

snippet.py      the text
request.json    what it was written from and what it might use; its sha256
trace.jsonl     every call (`trace`)
episodes/<n>/   one for each reset: videos and the bag of rows, rewards and pictures, as an evaluation's
result.json     the result
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from openeta_ros.code_policy.api import CodePolicyApi
from openeta_ros.code_policy.trace import plain
from openeta_ros.code_policy.types import CodePolicyExecutionRequest, CodePolicyExecutionResult
from openeta_ros.embodiment.schema import ActionType
from openeta_ros.envs import Sensors, StepResult
from openeta_ros.episodes import machine
from openeta_ros.episodes.files import EpisodeWriter
from openeta_ros.episodes.results import EpisodeResult, Failure
from openeta_ros.episodes.runner import policy_seed, utc_now

SNIPPET, REQUEST, TRACE, RESULT = 'snippet.py', 'request.json', 'trace.jsonl', 'result.json'


class Record:
    """Writes the folder of one run, as an observer of its env (`EpisodeObserver`).

    Raises:
        OSError: the folder is not empty, or cannot be written.
    """

    def __init__(self, folder: Path, request: CodePolicyExecutionRequest, api: CodePolicyApi) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise FileExistsError(f'{folder} is not empty; a run is recorded in a folder of its own')
        self._folder, self._api = folder, api
        self._writer: EpisodeWriter | None = None
        self._index = 0
        self._begin, self._started_at, self._rows = time.monotonic(), utc_now(), 0
        self._sha256 = sha256(request.code)
        (folder / SNIPPET).write_bytes(request.code.encode('utf-8', 'surrogatepass'))
        self._write(
            REQUEST,
            {
                'code_sha256': self._sha256,
                'policy_context': plain(request.policy_context),
                'metadata': plain(request.metadata),
                'budgets': request.budgets.to_dict(),
                'dry_run': request.dry_run,
                'seed': request.seed,
                'env': dict(api.env.descriptor()),
                'embodiment': str(api.embodiment.path),
                'versions': machine.versions(),
            },
        )

    def started(self, sensors: Sensors) -> None:
        """An episode begins: the one before it is complete."""
        self._complete(None)
        self._begin, self._started_at, self._rows = time.monotonic(), utc_now(), 0
        embodiment, env = self._api.embodiment, dict(self._api.env.descriptor())
        settings = {
            'env': env.get('backend'),
            'task': env.get('task'),
            'embodiment': embodiment.name,
            'seed': self._api.seed,
        }
        custom_data = {
            'contract': embodiment.path.read_text(encoding='utf-8'),
            'settings': json.dumps(settings),
            'env': json.dumps(env),
            'policy': json.dumps({'policy': 'snippet', 'sha256': self._sha256, 'action_type': 'qpos'}),
            'versions': json.dumps(machine.versions()),
        }
        self._writer = EpisodeWriter(self._folder, self._index, embodiment, custom_data)
        self._writer.started(sensors)
        self._index += 1

    def chunk(self, actions: NDArray[Any], action_type: ActionType, stamp_ns: int, latency_ms: float) -> None:
        """Rows go to the env; the first of them begin an episode that was under way."""
        if self._writer is None:
            self.started(self._api.env.sensors)
        assert self._writer is not None
        self._writer.chunk(actions, action_type, stamp_ns, latency_ms)

    def row(self, result: StepResult, sensors: Sensors) -> None:
        """A row was executed."""
        assert self._writer is not None
        self._rows += 1
        self._writer.row(result, sensors)

    def complete(self, result: CodePolicyExecutionResult) -> None:
        """Finish every file."""
        self._complete(result.details.get('error'))
        self._api.trace.write(self._folder / TRACE)
        self._write(RESULT, result.to_dict())

    def abandon(self) -> None:
        """Finish the files of half a run, which an interrupt ended."""
        if self._writer is not None:
            self._writer.abandon()
        with contextlib.suppress(OSError):
            self._api.trace.write(self._folder / TRACE)

    def _complete(self, error: dict[str, Any] | None) -> None:
        if self._writer is None:
            return
        api = self._api
        episode = EpisodeResult(
            seed=api.seed,
            policy_seed=policy_seed(api.seed),
            scored=True,
            success=api.mover.success and error is None,
            steps=self._rows,
            reward=api.mover.reward,
            clamped={},
            error=Failure(kind=error['kind'], message=error['message']) if error else None,
            latency_ms=None,
            started_at=self._started_at,
            wall_s=round(time.monotonic() - self._begin, 3),
        )
        self._writer.complete({'episode': episode.model_dump_json()})
        self._writer = None

    def _write(self, name: str, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=1, allow_nan=False)
        (self._folder / name).write_text(text + '\n', encoding='utf-8')


def sha256(code: str) -> str:
    """Return the digest that names a snippet's text."""
    return hashlib.sha256(code.encode('utf-8', 'surrogatepass')).hexdigest()
