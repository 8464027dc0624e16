# SPDX-License-Identifier: Apache-2.0
"""An agent's action 'code_policy': its decision to run a snippet, carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openeta_ros.code_policy.types import (
    Budgets,
    CodePolicyExecutionRequest,
    CodePolicyExecutionResult,
    CodePolicyStatus,
)

if TYPE_CHECKING:
    from openeta_ros.code_policy.api import CodePolicyApi
    from openeta_ros.code_policy.planner import PlannerDecision
    from openeta_ros.code_policy.sandbox import CodePolicySandbox
    from openeta_ros.envs import EnvFacade


@dataclass(frozen=True)
class ActionExecutionContext:
    """One decision to carry out: `request` has `code` and `parameters`, as a `PlannerDecision` does."""

    request: PlannerDecision
    observation: Any = None
    memory_context: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)


class CodePolicyInterface:
    """Runs the decision's code in the sandbox against this env, or this api.

    With neither it cannot act, and says so: the result's status is 'pending' then.
    """

    kind = 'tool_call'
    name = 'code_policy'
    description = 'Runs a short snippet of Python against the env, within budgets.'

    def __init__(
        self,
        sandbox: CodePolicySandbox | None = None,
        *,
        env: EnvFacade | None = None,
        api: CodePolicyApi | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        from openeta_ros.code_policy.sandbox import CodePolicySandbox

        self._sandbox = sandbox or CodePolicySandbox()
        self._env, self._api = env, api
        self._budgets = budgets or Budgets()

    def execute(self, context: ActionExecutionContext) -> CodePolicyExecutionResult:
        """Return what came of the decision; one without code is 'blocked', and why it is can be read."""
        decision = context.request
        if not decision.code.strip():
            return CodePolicyExecutionResult(
                CodePolicyStatus.BLOCKED, f'there is no code to run: {decision.reasoning}'
            )
        return self._sandbox.execute(
            CodePolicyExecutionRequest(
                decision.code,
                policy_context=decision.parameters.get('policy_context', {}),
                env=self._env,
                api=self._api,
                metadata=context.metadata,
                budgets=self._budgets,
            )
        )
