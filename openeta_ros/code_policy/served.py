# SPDX-License-Identifier: Apache-2.0
"""A snippet as a policy of vector-policy: its rows are the answers to `act`, one at a time.

The snippet runs in its sandbox all through an episode. A call of it that moves waits: each row is what the
policy answers to one observation, and the next observation is what the call goes on with. So it sees after
each row what came of that row, as it would with an env of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openeta_ros.code_policy.api import CodePolicyApi
from openeta_ros.code_policy.sandbox import CodePolicySandbox
from openeta_ros.code_policy.types import (
    Budgets,
    CodePolicyExecutionRequest,
    CodePolicyExecutionResult,
    CodePolicyStatus,
    SandboxConfig,
)
from openeta_ros.control import Execution
from openeta_ros.embodiment import Embodiment, Kinematics, load
from openeta_ros.embodiment.schema import ActionType
from openeta_ros.envs import EnvError, Sensors, StepResult
from openeta_ros.episodes.runner import RowObserver
from openeta_ros.observation import Observation

Array = NDArray[Any]

POLL_S = 0.05
# How long a run may take to end once its episode is over.
END_S = 10.0


class SnippetPolicy:
    """Serves one snippet; policy.yaml gives its arguments.

    Args:
        snippet: the file, relative to the policy's directory.
        embodiment: the contract of the robot: a name, or the path of a YAML file. Tools that look take the
            places of the cameras from it (`mount`).
        budgets: limits of one episode that differ from `Budgets`' own; the env's time counts as wall time.
        strict: refuse to run where a boundary of the sandbox cannot be enforced.

    The snippet cannot reset, and is not told of rewards, success or the end of the episode: a policy is not.
    When it has run to its end the arm stays where it is; when it fails, the episode is lost and says why.
    """

    action_type = 'qpos'

    def __init__(
        self,
        snippet: str,
        embodiment: str,
        budgets: Mapping[str, Any] | None = None,
        strict: bool = True,
    ) -> None:
        self._code = Path(snippet).read_text(encoding='utf-8')
        self._embodiment = load(embodiment)
        self._kinematics = Kinematics(self._embodiment)
        self._budgets = Budgets(**{'wall_s': 3600.0, **(budgets or {})})
        self._sandbox = CodePolicySandbox(SandboxConfig(strict=strict))
        self._seed = 0
        self._run: _Run | None = None

    def set_demonstration(self, arrays: Mapping[str, Array], info: Mapping[str, Any]) -> None:
        """Nothing to do: a snippet is written already."""

    def reset(self, seed: int) -> None:
        """Begin a new episode; the snippet begins with its first observation."""
        self.close()
        self._seed = seed

    def act(self, observation: Mapping[str, Array]) -> dict[str, Array]:
        """Return the snippet's next row, after this was seen."""
        if self._run is None:
            seen = self._checked(observation)
            api = CodePolicyApi(
                _ActedEnv(self._embodiment),
                self._embodiment,
                self._kinematics,
                observation=seen,
                rows_per_call=1,
            )
            api.seed = self._seed
            self._run = _Run(self._sandbox, api, self._code, self._budgets)
            return {'action': self._run.first()}
        return {'action': self._run.next(Observation(observation, self._run.rows))}

    def close(self) -> None:
        """End the snippet."""
        if self._run is not None:
            self._run.end()
            self._run = None

    def _checked(self, observation: Mapping[str, Array]) -> Observation:
        wanted = self._embodiment.action_size('qpos')
        got = np.shape(observation.get('qpos', ()))
        if got != (wanted,):
            raise ValueError(
                f'the observation has qpos of shape {got}, and the contract {self._embodiment.name} '
                f'({wanted},): name the contract of this robot in policy.yaml'
            )
        return Observation(observation, 0)


class _ActedEnv:
    """The env of a served snippet: rows go out, and observations come in, through two queues."""

    def __init__(self, embodiment: Embodiment) -> None:
        self._embodiment = embodiment
        self.rows: SimpleQueue[Array | CodePolicyExecutionResult] = SimpleQueue()
        self.observations: SimpleQueue[Observation] = SimpleQueue()
        self.over = threading.Event()
        self._step = 0

    @property
    def sensors(self) -> Sensors:
        raise EnvError('option', 'a policy sees observations alone')

    def reset(self, seed: int) -> Observation:
        raise EnvError('option', 'a served snippet cannot reset: it begins with the episode')

    def expert(self) -> Array:
        raise EnvError('no_expert', 'a policy has no expert')

    def conditions(self) -> Mapping[str, int]:
        return {}

    def descriptor(self) -> Mapping[str, Any]:
        return {
            'backend': 'policy',
            'task': None,
            'embodiment': self._embodiment.name,
            'rate_hz': float(self._embodiment.rate_hz),
        }

    def chunk_step(
        self,
        actions: Array,
        action_type: ActionType,
        on_row: RowObserver | None = None,
        execution: Execution | None = None,
    ) -> list[StepResult]:
        results = []
        for action in actions:
            self.rows.put(np.array(action))
            observation = self._next_observation()
            self._step += 1
            info = {'success': False, 'step': self._step, 'clamped': ()}
            results.append(StepResult(observation, 0.0, False, False, info))
            if on_row is not None:
                on_row(results[-1], Sensors(observation.stamp_ns, {}, {}, {}))
        return results

    def _next_observation(self) -> Observation:
        while True:
            try:
                return self.observations.get(timeout=POLL_S)
            except Empty:
                if self.over.is_set():
                    raise EnvError('closed', 'the episode is over') from None


class _Run:
    """A snippet that runs on a thread of its own, and what it answers."""

    def __init__(self, sandbox: CodePolicySandbox, api: CodePolicyApi, code: str, budgets: Budgets) -> None:
        self.rows = 0
        assert isinstance(api.env, _ActedEnv)
        self._env = api.env
        self._row = np.array(api.observe()['qpos'])
        self._ended: CodePolicyExecutionResult | None = None
        request = CodePolicyExecutionRequest(code=code, api=api, budgets=budgets)

        def run() -> None:
            try:
                result = sandbox.execute(request, cancelled=self._env.over.is_set)
            except Exception as error:  # else the policy would wait for a row for good
                text = f'the snippet could not be run: {type(error).__name__}: {error}'
                result = CodePolicyExecutionResult(CodePolicyStatus.FAILED, text)
            self._env.rows.put(result)

        self._thread = threading.Thread(target=run, name='snippet', daemon=True)
        self._thread.start()

    def first(self) -> Array:
        """Return the first row."""
        return self._answer()

    def next(self, observation: Observation) -> Array:
        """Return the row after this was seen."""
        if self._ended is None:
            self._env.observations.put(observation)
        return self._answer()

    def end(self) -> None:
        """Stop the snippet, wherever it is."""
        self._env.over.set()
        self._thread.join(END_S)

    def _answer(self) -> Array:
        if self._ended is None:
            answer = self._env.rows.get()
            if isinstance(answer, CodePolicyExecutionResult):
                self._ended = answer
            else:
                self._row = answer
                self.rows += 1
        if self._ended is not None and self._ended.status is not CodePolicyStatus.EXECUTED:
            raise RuntimeError(self._ended.content)
        return self._row
