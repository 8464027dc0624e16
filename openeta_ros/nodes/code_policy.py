# SPDX-License-Identifier: Apache-2.0
"""The code_policy node: runs snippets against the env node of the graph, each in a sandbox of its own.

A snippet comes with the goal, or a model writes it for the goal's task: it is shown what the env shows, what
the api offers, and what came of the goals before. Cancelled, a run ends at the row that is moving, and the
arm holds.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rclpy.action.server import ServerGoalHandle
from rclpy.node import Node

from openeta_msgs.action import RunSnippet
from openeta_msgs.srv import Describe
from openeta_ros.code_policy import (
    ApiBackendConfig,
    ApiCodePolicyBackend,
    BudgetError,
    Budgets,
    CodePolicyApi,
    CodePolicyBackend,
    CodePolicyExecutionRequest,
    CodePolicyExecutionResult,
    CodePolicyPlanner,
    CodePolicySandbox,
    CodePolicyStatus,
    PlaceholderCodePolicyBackend,
    PlannerDecision,
    SandboxConfig,
    remember,
)
from openeta_ros.envs import EnvError
from openeta_ros.envs.backend import CameraPose
from openeta_ros.nodes import messages, runtime
from openeta_ros.nodes.description import load_contract
from openeta_ros.nodes.goals import serve_goals
from openeta_ros.nodes.held import HeldEnv
from openeta_ros.nodes.peer import bring_up

# What the planner is given of earlier goals; it shortens that further where it is too long.
REMEMBERED_GOALS = 20
POLL_S = 0.05


class CodePolicyNode(Node):
    """See openeta_msgs for what the action means, and `parameters` for the parameters."""

    def __init__(self, process: runtime.Process) -> None:
        super().__init__('code_policy')
        self._process = process
        self._values = runtime.declare(self, 'code_policy')
        self._sandbox = CodePolicySandbox(SandboxConfig(strict=self._values['strict']))
        self._backend = _backend(self._values)
        self._env: HeldEnv | None = None
        self._api: CodePolicyApi | None = None
        self._descriptor: dict[str, Any] = {}
        self._memory: list[Any] = []
        self._goals = 0
        self.create_service(Describe, '~/describe', self._on_describe)
        serve_goals(self, process, RunSnippet, '~/run_snippet', self._run_snippet)
        process.submit(self._prepare)

    def _prepare(self) -> None:
        """Wake the env, so that the first goal need not. What fails is tried again by the first goal."""
        try:
            self._ready()
        except (Exception, KeyboardInterrupt) as error:
            if not self._process.stopping:
                runtime.log_failure(self, 'the env is not ready yet', error)

    def _ready(self) -> CodePolicyApi:
        """Return the api of the env, found and active. On the worker."""
        values = self._values
        if self._env is None:
            embodiment = load_contract(self, self._process, values)
            name, row_timeout_s = values['env_node'], values['row_timeout_s']
            self._env = HeldEnv(self, self._process, name, embodiment, row_timeout_s=row_timeout_s)
        self._env.wait_until_found(time.monotonic() + values['discovery_timeout_s'])
        bring_up([self._env.peer], values['configure_timeout_s'], self.get_logger().info)
        if self._api is None:
            # Of a simulated scene; where an arm's cameras are, its contract says.
            told = self._env.descriptor()['camera_poses']
            cameras = {name: CameraPose(**pose) for name, pose in told.items()}
            self._api = CodePolicyApi(self._env, self._env.embodiment, camera_poses=cameras)
        self._descriptor = {**self._api.descriptor(), 'budgets': self._budgets().to_dict()}
        return self._api

    def _on_describe(self, request: Any, response: Any) -> Any:
        if self._descriptor:
            told = {'api': self._descriptor, 'backend': self._backend.descriptor()}
            response.descriptor = json.dumps(told)
        return response

    def _run_snippet(self, goal: ServerGoalHandle) -> Any:
        answer = RunSnippet.Result()
        try:
            result = self._carried_out(goal)
            answer.status, answer.content = result.status.value, result.content
            answer.details = json.dumps(result.details)
        except (Exception, KeyboardInterrupt) as error:
            answer.failure = messages.failure_message(error)
            if isinstance(error, KeyboardInterrupt):
                answer.failure.kind = 'interrupted'
                answer.failure.message = 'the node was told to end'
            runtime.log_failure(self, 'not carried out', error)
        return answer

    def _carried_out(self, goal: ServerGoalHandle) -> CodePolicyExecutionResult:
        wanted = goal.request
        budgets = self._budgets(wanted)
        api = self._ready()
        if wanted.seed >= 0:
            self._memory.clear()  # another scene
        code, context = wanted.code, {'task': wanted.task}
        if not code.strip():
            if not wanted.task.strip():
                raise EnvError('option', 'the goal holds neither code nor a task to write it for')
            if wanted.seed >= 0 and not wanted.dry_run:
                api.reset(wanted.seed)  # so that the model sees the scene that its snippet will run in
            decision = self._written(goal, wanted.task, budgets)
            if decision is None or decision.metadata['generation_status'] != CodePolicyStatus.PLANNED.value:
                result = _without_code(decision)
                self._remember(result.content)
                return result
            code, context = decision.code, dict(decision.parameters['policy_context'])
        self._goals += 1
        folder = Path(self._values['records'] or 'results/snippets').absolute()
        result = self._sandbox.execute(
            CodePolicyExecutionRequest(
                code=code,
                policy_context=context,
                api=api,
                metadata={'task': wanted.task, 'node': self.get_fully_qualified_name()},
                budgets=budgets,
                dry_run=wanted.dry_run,
                seed=wanted.seed if wanted.seed >= 0 else None,
                output=folder / f'{time.strftime("%Y-%m-%d_%H-%M-%S")}_{self._goals}',
            ),
            on_event=lambda event: goal.publish_feedback(RunSnippet.Feedback(event=json.dumps(event))),
            cancelled=lambda: goal.is_cancel_requested or self._process.stopping,
        )
        self._remember(remember(result, code=code))
        return result

    def _remember(self, entry: Any) -> None:
        self._memory = [*self._memory, entry][-REMEMBERED_GOALS:]

    def _written(self, goal: ServerGoalHandle, task: str, budgets: Budgets) -> PlannerDecision | None:
        """Return the planner's decision; None when the goal was cancelled before it came."""
        assert self._api is not None
        api = {**self._descriptor, 'budgets': budgets.to_dict()}
        planner = CodePolicyPlanner(self._backend, api=api, pictures=self._values['pictures'])
        observation = self._api.observe()
        return _unless(
            lambda: goal.is_cancel_requested or self._process.stopping,
            lambda: planner.plan(observation, memory=list(self._memory), task=task),
        )

    def _budgets(self, wanted: Any = None) -> Budgets:
        values = self._values
        own = Budgets(wall_s=values['wall_s'], calls=values['max_calls'], rows=values['max_rows'])
        if wanted is None:
            return own
        asked = {'wall_s': wanted.wall_s, 'calls': int(wanted.max_calls), 'rows': int(wanted.max_rows)}
        try:
            return replace(own, **{name: value for name, value in asked.items() if value})
        except BudgetError as error:
            raise EnvError('option', str(error)) from None


def _backend(values: dict[str, Any]) -> CodePolicyBackend:
    if values['provider'] == 'none':
        return PlaceholderCodePolicyBackend()
    try:
        config = ApiBackendConfig(
            provider=values['provider'],
            model=values['model'],
            api_base=values['api_base'] or None,
            api_key_env=values['api_key_env'] or None,
            timeout_s=values['generation_timeout_s'],
        )
    except ValueError as error:
        raise EnvError('option', f'no snippets can be written: {error}') from None
    return ApiCodePolicyBackend(config)


def _without_code(decision: PlannerDecision | None) -> CodePolicyExecutionResult:
    if decision is None:
        return CodePolicyExecutionResult(CodePolicyStatus.SKIPPED, 'cancelled before a snippet was written')
    status, text = CodePolicyStatus(decision.metadata['generation_status']), decision.reasoning
    if status is CodePolicyStatus.PENDING:
        text = 'nobody writes snippets here: set the parameters provider and model, or send code'
    details = {'error': {'kind': 'generation', 'message': text}, 'generation': decision.metadata}
    return CodePolicyExecutionResult(status, text, details)


def _unless(cancelled: Callable[[], bool], job: Callable[[], PlannerDecision]) -> PlannerDecision | None:
    """Return what a job returns; None when it is cancelled first. The job is then left to itself."""
    outcome: list[PlannerDecision] = []
    thread = threading.Thread(target=lambda: outcome.append(job()), name='generation', daemon=True)
    thread.start()
    while thread.is_alive():
        if cancelled():
            return None
        thread.join(POLL_S)
    if not outcome:
        raise RuntimeError('the planner failed; its traceback is in the log of the node')
    return outcome[0]


def main() -> None:
    """Run the node."""
    runtime.main(CodePolicyNode)


if __name__ == '__main__':
    main()
