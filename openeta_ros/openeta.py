# SPDX-License-Identifier: Apache-2.0
"""OpenETA's names for what this package does: they import from here and mean the same.

`docs/reference/openeta.md` says of each what is different, and why.
"""

from __future__ import annotations

from openeta_ros.code_policy.api import CodePolicyApi
from openeta_ros.code_policy.api_backend import ApiBackendConfig as CommercialApiBackendConfig
from openeta_ros.code_policy.api_backend import ApiCodePolicyBackend as CommercialApiCodePolicyBackend
from openeta_ros.code_policy.backends import (
    CallableCodePolicyBackend,
    CodePolicyBackend,
    CodePolicyGenerationRequest,
    CodePolicyGenerationResult,
    PlaceholderCodePolicyBackend,
    StaticCodePolicyBackend,
)
from openeta_ros.code_policy.interface import ActionExecutionContext, CodePolicyInterface
from openeta_ros.code_policy.planner import CodePolicyPlanner, PlannerDecision
from openeta_ros.code_policy.sandbox import CodePolicySandbox as RlinfCodePolicySandbox
from openeta_ros.code_policy.trace import Trace as PolicyApiTrace
from openeta_ros.code_policy.types import CodePolicyExecutionRequest, CodePolicyExecutionResult
from openeta_ros.code_policy.types import CodePolicyExecutionResult as ActionExecutionResult
from openeta_ros.code_policy.types import CodePolicyStatus as PipelineStatus
from openeta_ros.code_policy.types import SandboxConfig as RlinfSandboxConfig
from openeta_ros.envs import RlinfEnvFacade, RlinfEnvSpec, RlinfStepResult

__all__ = [
    'ActionExecutionContext',
    'ActionExecutionResult',
    'CallableCodePolicyBackend',
    'CodePolicyApi',
    'CodePolicyBackend',
    'CodePolicyExecutionRequest',
    'CodePolicyExecutionResult',
    'CodePolicyGenerationRequest',
    'CodePolicyGenerationResult',
    'CodePolicyInterface',
    'CodePolicyPlanner',
    'CommercialApiBackendConfig',
    'CommercialApiCodePolicyBackend',
    'PipelineStatus',
    'PlaceholderCodePolicyBackend',
    'PlannerDecision',
    'PolicyApiTrace',
    'RlinfCodePolicySandbox',
    'RlinfEnvFacade',
    'RlinfEnvSpec',
    'RlinfSandboxConfig',
    'RlinfStepResult',
    'StaticCodePolicyBackend',
]
