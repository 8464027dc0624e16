# SPDX-License-Identifier: Apache-2.0
"""Bounded generated snippets: what they may call, where they run, who writes them.

Names are imported when they are first used: the process that a snippet runs in loads two small modules of
this folder, and nothing else of the package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openeta_ros.code_policy.api import CodePolicyApi
    from openeta_ros.code_policy.api_backend import (
        ApiBackendConfig,
        ApiCodePolicyBackend,
    )
    from openeta_ros.code_policy.backends import (
        CallableCodePolicyBackend,
        CodePolicyBackend,
        CodePolicyGenerationRequest,
        CodePolicyGenerationResult,
        PlaceholderCodePolicyBackend,
        RecordedCodePolicyBackend,
        RecordingCodePolicyBackend,
        StaticCodePolicyBackend,
    )
    from openeta_ros.code_policy.planner import (
        CodePolicyPlanner,
        PlannerDecision,
        remember,
    )
    from openeta_ros.code_policy.sandbox import CodePolicySandbox
    from openeta_ros.code_policy.types import (
        BudgetError,
        Budgets,
        CodePolicyExecutionRequest,
        CodePolicyExecutionResult,
        CodePolicyStatus,
        SandboxConfig,
    )

_MODULES = {
    'ApiBackendConfig': 'api_backend',
    'ApiCodePolicyBackend': 'api_backend',
    'BudgetError': 'types',
    'Budgets': 'types',
    'CallableCodePolicyBackend': 'backends',
    'CodePolicyApi': 'api',
    'CodePolicyBackend': 'backends',
    'CodePolicyExecutionRequest': 'types',
    'CodePolicyExecutionResult': 'types',
    'CodePolicyGenerationRequest': 'backends',
    'CodePolicyGenerationResult': 'backends',
    'CodePolicyPlanner': 'planner',
    'CodePolicySandbox': 'sandbox',
    'CodePolicyStatus': 'types',
    'PlaceholderCodePolicyBackend': 'backends',
    'PlannerDecision': 'planner',
    'RecordedCodePolicyBackend': 'backends',
    'RecordingCodePolicyBackend': 'backends',
    'SandboxConfig': 'types',
    'StaticCodePolicyBackend': 'backends',
    'remember': 'planner',
}

__all__ = [
    'ApiBackendConfig',
    'ApiCodePolicyBackend',
    'BudgetError',
    'Budgets',
    'CallableCodePolicyBackend',
    'CodePolicyApi',
    'CodePolicyBackend',
    'CodePolicyExecutionRequest',
    'CodePolicyExecutionResult',
    'CodePolicyGenerationRequest',
    'CodePolicyGenerationResult',
    'CodePolicyPlanner',
    'CodePolicySandbox',
    'CodePolicyStatus',
    'PlaceholderCodePolicyBackend',
    'PlannerDecision',
    'RecordedCodePolicyBackend',
    'RecordingCodePolicyBackend',
    'SandboxConfig',
    'StaticCodePolicyBackend',
    'remember',
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_MODULES[name]}'), name)
