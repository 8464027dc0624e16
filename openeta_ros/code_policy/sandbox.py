# SPDX-License-Identifier: Apache-2.0
"""Runs snippets: dry or for real, bounded, recorded, and told about."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from openeta_ros.code_policy.api import CodePolicyApi, error_dict
from openeta_ros.code_policy.feedback import feedback
from openeta_ros.code_policy.isolation import without_bubblewrap
from openeta_ros.code_policy.meter import Meter
from openeta_ros.code_policy.record import Record, sha256
from openeta_ros.code_policy.run import Refused, Run
from openeta_ros.code_policy.trace import Listener, Trace, plain
from openeta_ros.code_policy.types import (
    Budgets,
    CodePolicyExecutionRequest,
    CodePolicyExecutionResult,
    CodePolicyStatus,
    SandboxConfig,
)
from openeta_ros.envs import EnvError


class CodePolicySandbox:
    """Runs one snippet at a time, each in a process of its own."""

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()

    def descriptor(self) -> dict[str, Any]:
        """Return what this sandbox is, in types that JSON has."""
        return {
            'name': 'CodePolicySandbox',
            'implemented': True,
            'isolation': self.config.isolation,
            'strict': self.config.strict,
            'preflight': self.config.preflight,
            'bubblewrap': not without_bubblewrap(self.config.isolation),
            'runtime_protocol': ['reset', 'observe', 'step', 'chunk_step', 'descriptor'],
            'budgets': Budgets().to_dict(),
        }

    def execute(
        self,
        request: CodePolicyExecutionRequest,
        *,
        on_event: Listener | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> CodePolicyExecutionResult:
        """Run a snippet, in the thread that the env belongs to; whatever happens, the arm holds after.

        Args:
            on_event: told every entry of the trace as it is made.
            cancelled: asked between rows and twenty times a second; True stops the run.

        Raises:
            OSError: the record cannot be written, or `on_event` raised it.
        """
        cancelled = cancelled or (lambda: False)
        api = request.api
        if api is None and request.env is not None:
            api = CodePolicyApi.of_facade(request.env)
        details: dict[str, Any] = {
            'error': None,
            'code_sha256': sha256(request.code),
            'budgets': request.budgets.to_dict(),
            'policy_context_keys': sorted(request.policy_context),
            'metadata': plain(request.metadata),
            'dry_run': None,
            'record': str(request.output) if request.output is not None else None,
        }
        if not request.code.strip():
            return _result(CodePolicyStatus.SKIPPED, request, details)
        if cancelled():
            details['error'] = {'kind': 'cancelled', 'message': 'cancelled before it began', 'line': None}
            return _result(CodePolicyStatus.SKIPPED, request, details)
        if api is None:
            return _result(CodePolicyStatus.PENDING, request, details)
        api.begin(Trace(on_event, hashed=request.output is not None), Meter(request.budgets))
        record = Record(request.output, request, api) if request.output is not None else None
        try:
            if record is not None:
                api.mover.observers.append(record)
            with _dry(api, request.dry_run) as how:
                details['dry_run'] = how
                status = self._run(request, api, details, cancelled)
        except BaseException:
            if record is not None:
                record.abandon()
            raise
        finally:
            if record is not None:
                api.mover.observers.remove(record)
        result = _result(status, request, details)
        if record is not None:
            record.complete(result)
        return result

    def _run(
        self,
        request: CodePolicyExecutionRequest,
        api: CodePolicyApi,
        details: dict[str, Any],
        cancelled: Callable[[], bool],
    ) -> CodePolicyStatus:
        """Run the snippet and put into `details` all that is known of it."""
        run: Run | None = None
        try:
            if request.seed is not None:
                api.seed = request.seed
            run = Run(self.config, request, api, cancelled)
            run.prepare()
            if request.seed is not None:
                api.call('reset', [request.seed], {})
            details['error'] = run.execute()
        except Refused as refused:
            details['error'] = refused.error
            return CodePolicyStatus.BLOCKED
        except EnvError as error:
            details['error'] = {**error_dict(error), 'line': None}
        finally:
            if run is not None:
                run.close()
                details |= {
                    'isolation': run.isolation,
                    'warnings': run.warnings,
                    'output': run.output,
                    'result': plain(run.result),
                }
            self._hold(api, details)
            details |= {
                'used': {
                    **api.meter.used,
                    'wall_s': round(run.wall_s, 3) if run else 0.0,
                    'cpu_s': round(run.cpu_s, 3) if run else 0.0,
                    'output_bytes': len(run.output.encode()) if run else 0,
                },
                'checkpoints': api.checkpoints,
                'trace': api.trace.calls,
                'state': api.state,
                'reward': api.mover.reward,
                'success': api.mover.success,
            }
        if details['error'] is not None:
            return CodePolicyStatus.FAILED
        return CodePolicyStatus.PLANNED if request.dry_run else CodePolicyStatus.EXECUTED

    def _hold(self, api: CodePolicyApi, details: dict[str, Any]) -> None:
        try:
            api.hold()
        except EnvError as error:
            details['error'] = details['error'] or {**error_dict(error), 'line': None}


@contextlib.contextmanager
def _dry(api: CodePolicyApi, dry_run: bool) -> Iterator[str | None]:
    """Make what happens inside not count, where it is a dry run; yield how: 'copy', or 'limits' alone."""
    if not dry_run:
        yield None
        return
    snapshot = api.mover.snapshot()
    if not snapshot.env_kept:
        api.mover.pretend = True
    try:
        yield 'copy' if snapshot.env_kept else 'limits'
    finally:
        api.mover.pretend = False
        api.mover.restore(snapshot)


def _result(
    status: CodePolicyStatus, request: CodePolicyExecutionRequest, details: dict[str, Any]
) -> CodePolicyExecutionResult:
    return CodePolicyExecutionResult(status, feedback(status, request.code, details), details)
