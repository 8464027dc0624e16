# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between a client and a policy, one class for each party that can act on it."""

from __future__ import annotations

from collections.abc import Sequence


class WireError(ValueError):
    """A message that the wire format cannot carry, or that breaks it. On sending: nothing was sent."""


class ManifestError(ValueError):
    """A policy.yaml that cannot be used.

    Attributes:
        path: the file.
        problems: every problem found, one sentence each.
    """

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        self.path = path
        self.problems = list(problems)
        super().__init__(
            '\n  - '.join([f'{path}: {len(self.problems)} problem(s)', *self.problems]),
        )


class PolicyUnavailable(RuntimeError):
    """A policy that could not be reached, or that did not answer a call.

    Attributes:
        message: what happened, without the log that the error's text quotes after it.
        op: the operation that failed ('connect', 'hello', 'reset', 'prompt', 'act', 'close').
        remote_type: class name of the exception in the policy; None unless the server itself reported one.
        log_tail: the last lines of the policy's log, '' when there is none.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        remote_type: str | None = None,
        log_tail: str = '',
    ) -> None:
        self.message = message
        self.op = op
        self.remote_type = remote_type
        self.log_tail = log_tail
        quoted = f'\n--- policy log (tail) ---\n{log_tail.rstrip()}' if log_tail else ''
        super().__init__(message + quoted)
