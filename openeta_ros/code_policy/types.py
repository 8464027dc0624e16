# SPDX-License-Identifier: Apache-2.0
"""What goes into a run of a snippet and what comes out, as plain data.

sandbox = CodePolicySandbox(SandboxConfig())
result = sandbox.execute(CodePolicyExecutionRequest(code, env=facade, seed=3, output=Path('run')))
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from openeta_ros.code_policy.api import CodePolicyApi
    from openeta_ros.envs import EnvFacade

#: Why a run did not end well: the `kind` in `details['error']`.
ERROR_KINDS = (
    'syntax',  # the text is no Python
    'forbidden',  # it names what snippets may not use, or broke the rules of its connection
    'isolation',  # strict: something could not be enforced here, so nothing ran
    'timeout',  # wall time
    'cpu',
    'memory',
    'output',  # bytes printed, sent or written
    'calls',
    'rows',
    'resets',
    'action',  # the pipeline refused rows; its own kind is `action_kind`
    'env',  # the env cannot go on; its own kind is `env_kind`
    'tool',  # there is no such tool, or it failed
    'exception',  # the snippet raised
    'killed',  # its process ended without saying so
    'cancelled',
)


class CodePolicyStatus(str, Enum):
    """How a run went."""

    PLANNED = 'planned'
    """A dry run went through: the real one may follow."""
    PENDING = 'pending'
    """Nothing to run yet: there is no env, or the text is a placeholder's."""
    EXECUTED = 'executed'
    """It ran to its end."""
    BLOCKED = 'blocked'
    """It was refused before any of it ran."""
    FAILED = 'failed'
    """It began and did not come to its end; `details['error']` says why."""
    SKIPPED = 'skipped'
    """There was nothing in it, or it was cancelled before it began."""


class BudgetError(ValueError):
    """A budget that cannot be meant; the text is one sentence naming it."""


@dataclass(frozen=True)
class Budgets:
    """What one run may use. Each is a hard limit.

    Attributes:
        wall_s: seconds from the first line to the end, those of the env included.
        cpu_s: seconds of the snippet's own processor time; enforced in whole seconds, rounded up.
        memory_bytes: address space of the snippet's process, Python and NumPy (0.3 GB) included.
        output_bytes: bytes printed.
        file_bytes: bytes in the scratch folder.
        message_bytes: bytes of the arrays in one call.
        sent_bytes: bytes that all calls together send, about; the trace keeps every one of them.
        calls: calls of `api`, of any kind.
        rows: rows sent to the env.
        resets: calls of `api.reset` (the one that the request's `seed` asks for does not count).
        checkpoints: checkpoints that the snippet sets.

    Raises:
        BudgetError: a value is no number, or not above zero (`resets` and `checkpoints` may be zero).
    """

    wall_s: float = 120.0
    cpu_s: float = 30.0
    memory_bytes: int = 1 << 30
    output_bytes: int = 64 << 10
    file_bytes: int = 16 << 20
    message_bytes: int = 16 << 20
    sent_bytes: int = 16 << 20
    calls: int = 1000
    rows: int = 2000
    resets: int = 3
    checkpoints: int = 100

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            seconds = entry.name.endswith('_s')
            if isinstance(value, bool) or not isinstance(value, (int, float) if seconds else int):
                wanted = 'a number' if seconds else 'an integer'
                raise BudgetError(f'budget {entry.name} is {wanted}, not {value!r}')
            may_be_zero = entry.name in ('resets', 'checkpoints')
            if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
                raise BudgetError(f'budget {entry.name} is {value!r}; it must be above zero')

    def to_dict(self) -> dict[str, float | int]:
        """Return all of them by name."""
        return asdict(self)


@dataclass(frozen=True)
class SandboxConfig:
    """How snippets are kept in.

    Attributes:
        isolation: 'auto' takes bubblewrap where it works and else the kernel's own means alone (Landlock,
            seccomp); 'bubblewrap' insists on it; 'process' does without it.
        strict: refuse to run (status blocked, kind 'isolation') where a boundary cannot be enforced.
        preflight: look through the text first, and refuse what snippets may not use. It spares a run and
            gives line numbers; the isolation does not count on it.
    """

    isolation: Literal['auto', 'bubblewrap', 'process'] = 'auto'
    strict: bool = True
    preflight: bool = True


@dataclass(frozen=True)
class CodePolicyExecutionRequest:
    """One snippet to run.

    Attributes:
        code: Python. It gets `api` (see `CodePolicyApi`), `policy_context` and NumPy as `np`.
        policy_context: what the snippet was written from, JSON; the snippet sees it.
        env: a facade to run against; an api is made of it.
        api: an api that is made already: for an env that is no `EnvFacade`, or with tools of the host's own.
        metadata: kept with the record, JSON.
        budgets: what the run may use.
        dry_run: show what would happen. Where the env can keep its state (a simulator) the snippet runs
            against it and the state is put back; elsewhere actions are only checked, and nothing moves.
        seed: scene to reset to before the snippet runs; None: the scene stays as it is.
        output: folder for the record (code, trace, video, rewards, result); None: none is written.
    """

    code: str
    policy_context: Mapping[str, Any] = field(default_factory=dict)
    env: EnvFacade | None = None
    api: CodePolicyApi | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    budgets: Budgets = field(default_factory=Budgets)
    dry_run: bool = False
    seed: int | None = None
    output: Path | None = None


@dataclass(frozen=True)
class CodePolicyExecutionResult:
    """What came of it.

    Attributes:
        status: how it went.
        content: text for whoever writes the next snippet: what was done, where it stopped and why, what is
            allowed.
        details: everything else that is known, in types that JSON has: `error` (None, or `kind`, `message`,
            `line`, `type` and what its kind adds), `warnings`, `isolation`, `budgets`, `used`, `checkpoints`,
            `trace`, `output` (what was printed), `result` (the snippet's `RESULT`), `reward`, `success`,
            `code_sha256`, `record` (the folder).
    """

    status: CodePolicyStatus
    content: str = ''
    details: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it in types that JSON has."""
        return {'status': self.status.value, 'content': self.content, 'details': self.details}
