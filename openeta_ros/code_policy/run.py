# SPDX-License-Identifier: Apache-2.0
"""One run of one snippet: its process on one side, the api on the other, and the limits in between."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

from openeta_ros.code_policy import preflight
from openeta_ros.code_policy.api import CodePolicyApi, error_dict
from openeta_ros.code_policy.child import MAX_TEXT, SNIPPET
from openeta_ros.code_policy.confine import WALLS
from openeta_ros.code_policy.describe import methods
from openeta_ros.code_policy.isolation import Cell, Ended, describe
from openeta_ros.code_policy.meter import Meter, Stop
from openeta_ros.code_policy.tools import ToolError
from openeta_ros.code_policy.trace import plain, printable
from openeta_ros.code_policy.types import CodePolicyExecutionRequest, SandboxConfig
from openeta_ros.code_policy.values import pack, unpack
from openeta_ros.control import ActionError
from openeta_ros.envs import EnvError
from openeta_ros.vector_policy import WireError, wire

#: How often limits are looked at while the snippet computes.
TICK_S = 0.05
#: Until the process has loaded Python and NumPy, on a busy machine.
START_TIMEOUT_S = 60.0
#: For a message to come whole, or to be taken whole, and how long it may stand still in between.
MESSAGE_TIMEOUT_S, PATIENCE_S = 10.0, 5.0
#: How much later than its own alarm the process is ended, when nothing was heard of the alarm: on a busy
#: machine it does not come to tell at once.
LATE_S = 1.0
#: For the rest of what Python writes of where it is, which it does word by word.
TRACEBACK_S = 1.0
#: Kinds that the process may give as its own reason; whatever else it claims is an exception.
OWN_KINDS = ('syntax', 'memory', 'output', 'action', 'env', 'tool', 'exception')
#: What it may add: as it was told of a call of its own that was refused.
OWN_DETAILS = ('action_kind', 'row', 'joint', 'env_kind')

#: Kinds of what the preflight finds.
FINDINGS = ('syntax', 'forbidden', 'warning')

_LINE = re.compile(rf'File "{SNIPPET}", line (\d+) in')
#: The outermost of what Python was at: nothing comes after it.
_OUTERMOST = 'File "<string>", line 1 in <module>\n'

Error = dict[str, Any]


class Refused(Exception):
    """Nothing of the snippet ran; `error` is why."""

    def __init__(self, error: Error) -> None:
        super().__init__(error['message'])
        self.error = error


class ListenerError(Exception):
    """Who is told of calls cannot be: `error`, which is not the connection's."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Run:
    """A snippet in its process.

    Args:
        cancelled: asked every now and then, and between rows; True ends the run.

    Raises:
        Refused: from `prepare`.

    Attributes:
        isolation: what holds the snippet in, once `prepare` is through.
        warnings: what the preflight says of it without refusing it.
        output: what it printed.
        result: its RESULT.
    """

    def __init__(
        self,
        config: SandboxConfig,
        request: CodePolicyExecutionRequest,
        api: CodePolicyApi,
        cancelled: Callable[[], bool],
    ) -> None:
        self.isolation: dict[str, Any] = {}
        self.warnings: list[dict[str, Any]] = []
        self.output = ''
        self.result: Any = None
        self.wall_s = self.cpu_s = 0.0
        self._config, self._request, self._api, self._cancelled = config, request, api, cancelled
        self._budgets = request.budgets
        self._printed = bytearray()
        self._begin = time.monotonic()
        self._traceback = ''
        self._looks_at = 0.0
        self._number = 1  # of the next message: the greeting is 0
        try:
            self._cell = Cell(config, self._budgets)
        except OSError as error:
            raise Refused(_error('isolation', f"the snippet's process cannot be started: {error}")) from error

    def prepare(self) -> None:
        """Start the process, confine it, look through the snippet."""
        connection = self._cell.connection
        fields = {
            'code': self._request.code,
            'policy_context': plain(self._request.policy_context),
            'seed': self._api.seed,
            'wall_s': self._budgets.wall_s,
            'output_bytes': self._budgets.output_bytes,
            'message_bytes': self._budgets.message_bytes,
            'methods': {
                name: f'{method["signature"]}\n\n{method["doc"]}'
                for name, method in methods(type(self._api)).items()
            },
        }
        connection.deadline = time.monotonic() + START_TIMEOUT_S
        try:
            wire.send(connection, 'prompt', fields)
        except WireError as error:
            raise Refused(_error('forbidden', f'snippet and context cannot be passed on: {error}')) from error
        except OSError:
            pass  # it has ended, which the next line tells more of
        try:
            problems, findings = greeting(wire.recv(connection)[1])
        except WireError as error:  # the text is in there already, if only to be looked through
            raise Refused(
                _error('forbidden', f'its process did not say how it is confined: {error}')
            ) from error
        except (EOFError, OSError) as error:
            if self._cell.kill().signal == 'SIGSEGV':
                raise Refused(_error('syntax', 'it is too deep for the parser of Python')) from error
            text = self._cell.printed().decode('utf-8', 'replace').strip()[-500:]
            reason = text or f'{type(error).__name__}: {error}'
            raise Refused(_error('isolation', f"the snippet's process did not start: {reason}")) from error
        connection.patience_s = PATIENCE_S
        self.isolation = {'strict': self._config.strict, **describe(self._cell.bubblewrap, problems)}
        if self._config.strict and self.isolation['not_enforced']:
            lacking = '; '.join(self.isolation['not_enforced'])
            raise Refused(_error('isolation', f'strict, and not all can be enforced here: {lacking}'))
        findings = findings if self._config.preflight else []
        self.warnings = [finding for finding in findings if finding['kind'] == 'warning']
        refused = [finding for finding in findings if finding['kind'] != 'warning']
        if refused:
            message = '; '.join(finding['message'] for finding in refused[:5])
            raise Refused(_error(refused[0]['kind'], message, refused[0]['line'], findings=refused))

    def execute(self) -> Error | None:
        """Let the snippet run; return why it did not come to its end.

        Raises:
            OSError: the listener of the trace did.
        """
        self._begin = time.monotonic()
        self._api.meter = Meter(self._budgets, self._check)
        self._api.trace.by = 'snippet'
        try:
            self._let_pass()
            wire.send(self._cell.connection, 'ok')
            error = self._serve()
        except Stop as stop:
            error = _error(stop.kind, str(stop), self._line_by_traceback())
        except ListenerError as listener:
            raise listener.error from None
        except WireError as broken:
            error = _error('forbidden', f'it wrote to the connection of its own process: {broken}')
        except TimeoutError:
            error = self._silent()
        except (EOFError, OSError):
            error = self._ended(self._cell.wait(1.0))
        self._api.trace.by, self._api.trace.line = 'runtime', None
        self._api.meter.check = lambda: None  # the host's own calls after it are no part of the run
        self.wall_s = time.monotonic() - self._begin
        ended = self._cell.kill()
        self.cpu_s = self.cpu_s or ended.cpu_s  # which of bubblewrap does not hold what ran in it
        self._printed += self._cell.printed()
        self.output = self._printed[: self._budgets.output_bytes].decode('utf-8', 'replace')
        return error

    def close(self) -> None:
        """End the process and remove its scratch folder."""
        self._cell.close()

    def _serve(self) -> Error | None:
        connection = self._cell.connection
        while True:
            connection.deadline = None
            self._check(LATE_S)
            if not connection.wait_readable(TICK_S):
                continue
            self._let_pass()
            op, fields, arrays = wire.recv(connection, max_bytes=self._budgets.message_bytes)
            number = fields.get('number')
            if type(number) is not int or number != self._number:
                raise WireError(f'message {number!r:.60} where message {self._number} was due')
            self._number += 1
            if op == 'close':
                return self._closed(fields, arrays)
            if op != 'act':
                raise WireError(f'op {op!r:.60}')
            error = self._answer(fields, arrays)
            if error is not None:
                return error

    def _answer(self, fields: dict[str, Any], arrays: dict[str, Any]) -> Error | None:
        """Carry out a call and answer it; return why the run ends with it."""
        name, arguments, keywords, line, held = _parsed(fields, arrays)
        self._api.trace.line = line
        packed: dict[str, Any] = {}
        try:
            self._cell.shared.begin(held)
            value = pack(self._api.call(name, arguments, keywords), packed, self._cell.shared.place)
        except Stop as stop:
            return _error(stop.kind, str(stop), line)
        except TypeError as error:
            refused: Error = {**error_dict(error), 'kind': 'call'}
        except (ActionError, EnvError, ToolError) as error:
            refused = error_dict(error)
        except OSError as error:
            raise ListenerError(error) from error
        else:
            try:
                self._send('ok', {'value': value}, packed)
                return None
            except WireError as error:  # nothing of it was sent
                refused = {'kind': 'tool', 'message': f'what came of it cannot be passed on: {error}'}
        kind, message = refused.pop('kind'), refused.pop('message')
        self._send('error', {'kind': kind, 'message': message, 'details': refused})
        return None

    def _send(self, op: str, fields: dict[str, Any], arrays: dict[str, Any] | None = None) -> None:
        """Answer. Nobody may be there to take it: what came before the process ended says how that was."""
        self._let_pass()
        with contextlib.suppress(ConnectionError):
            wire.send(self._cell.connection, op, fields, arrays)

    def _let_pass(self) -> None:
        """Give the next message its time: while it comes bit by bit nobody is asked whether to go on."""
        ends = self._begin + self._budgets.wall_s + LATE_S
        self._cell.connection.deadline = min(ends, time.monotonic() + MESSAGE_TIMEOUT_S)

    def _closed(self, fields: dict[str, Any], arrays: dict[str, Any]) -> Error | None:
        """Take the process's own account of how it ended."""
        try:
            self.result = unpack(fields.get('result'), arrays)
        except (ValueError, TypeError) as error:
            raise WireError(str(error)) from error
        claimed = fields.get('cpu_s')
        if isinstance(claimed, float) and 0 <= claimed < 2 * self._budgets.cpu_s + 2:
            self.cpu_s = claimed
        said = fields.get('error')
        if said is None:
            return None
        if not isinstance(said, dict):
            raise WireError('an error is no mapping')
        kind = said.get('kind') if said.get('kind') in OWN_KINDS else 'exception'
        details, lines = said.get('details'), said.get('lines')
        told = {name: said[name] if isinstance(said.get(name), str) else '' for name in ('message', 'type')}
        more = {
            name: _short(value)
            for name, value in (details.items() if isinstance(details, dict) else ())
            if name in OWN_DETAILS and (value is None or isinstance(value, str | int))
        }
        return {
            **more,
            **_error(
                str(kind), _short(told['message']) or 'it did not say why', _line_number(said.get('line'))
            ),
            'type': _short(told['type']),
            'lines': [n for n in map(_line_number, lines[-10:]) if n] if isinstance(lines, list) else [],
        }

    def _check(self, late_s: float = 0.0) -> None:
        """Raise Stop when the run is to end: between rows and calls, and while the snippet computes.

        Args:
            late_s: how long a computing snippet is waited for, whose own alarm says which line it is at.
        """
        if self._cancelled():
            raise Stop('cancelled', 'the run was cancelled')
        now = time.monotonic()
        if now >= self._looks_at:
            self._looks_at = now + TICK_S
            self._look()
        if now - self._begin > self._budgets.wall_s + late_s:
            raise Stop('timeout', f'it took more than {self._budgets.wall_s:g} s')

    def _look(self) -> None:
        """Raise Stop when something that the process does by itself ends the run."""
        self._traceback = self._cell.traceback()
        if self._traceback:
            early = time.monotonic() - self._begin < self._budgets.wall_s - TICK_S
            if 'most recent call first' not in self._traceback:
                raise Stop('forbidden', "it wrote to a pipe that is Python's own")
            self._read_traceback()
            if early:
                raise Stop('cpu', f'it used more than {self._budgets.cpu_s:g} s of processor time')
            raise Stop('timeout', f'it took more than {self._budgets.wall_s:g} s')
        self._printed += self._cell.printed()
        if len(self._printed) > self._budgets.output_bytes:
            raise Stop('output', f'more than {self._budgets.output_bytes} bytes were printed')
        if self._cell.scratch_bytes() > self._budgets.file_bytes:
            raise Stop('output', f'its files hold more than {self._budgets.file_bytes} bytes')

    def _read_traceback(self) -> None:
        """Wait for the line of the snippet in what Python has begun to write."""
        end = time.monotonic() + TRACEBACK_S
        while (
            time.monotonic() < end and not _LINE.search(self._traceback) and _OUTERMOST not in self._traceback
        ):
            time.sleep(TICK_S / 10)
            self._traceback += self._cell.traceback()

    def _line_by_traceback(self) -> int | None:
        found = _LINE.search(self._traceback)  # the innermost frame comes first
        return int(found[1]) if found else None

    def _silent(self) -> Error:
        """The process did not go on in the middle of a message."""
        with contextlib.suppress(Stop):
            self._look()
        if time.monotonic() - self._begin > self._budgets.wall_s:
            return _error('timeout', f'it took more than {self._budgets.wall_s:g} s')
        return _error('forbidden', 'it stopped in the middle of a message')

    def _ended(self, ended: Ended) -> Error:
        """Say why a process ended that did not say so itself."""
        self._traceback = self._cell.traceback()
        line = self._line_by_traceback()
        if ended.signal == 'SIGXCPU' or (ended.signal == 'SIGKILL' and ended.cpu_s >= self._budgets.cpu_s):
            return _error('cpu', f'it used more than {self._budgets.cpu_s:g} s of processor time', line)
        how = f'by {ended.signal}' if ended.signal else f'with code {ended.code}'
        return _error('killed', f'its process ended {how} before the snippet did', line)


def greeting(said: dict[str, Any]) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return how far the process is confined and what the preflight found, once it is sure to be that.

    Raises:
        WireError: it is something else.
    """
    problems, findings = said.get('problems'), said.get('findings')
    if not isinstance(problems, dict) or set(problems) != set(WALLS):
        raise WireError(f'the walls are {", ".join(WALLS)}')
    if not all(isinstance(problem, str) for problem in problems.values()):
        raise WireError('what is wrong with a wall is no text')
    if not isinstance(findings, list):
        raise WireError('what was found is no list')
    for finding in findings:
        if not isinstance(finding, dict) or finding.get('kind') not in FINDINGS:
            raise WireError('a finding is of no kind')
        if not isinstance(finding.get('message'), str) or _line_number(finding.get('line')) is None:
            raise WireError('a finding has no words, or no line')
    return problems, findings


def _error(kind: str, message: str, line: int | None = None, **more: Any) -> Error:
    return {'kind': kind, 'message': message, 'line': line, **more}


def _short(value: Any) -> Any:
    return printable(value[:MAX_TEXT]) if isinstance(value, str) else value


def _line_number(value: Any) -> int | None:
    within = isinstance(value, int) and 0 < value <= preflight.MAX_CODE_CHARS
    return value if within and not isinstance(value, bool) else None


def _parsed(
    fields: dict[str, Any], arrays: dict[str, Any]
) -> tuple[str, list[Any], dict[str, Any], int | None, set[int]]:
    """Return what is called and with what, where and which pictures are held, once it is sure to be that."""
    name, held = fields.get('call'), fields.get('held')
    try:
        arguments = unpack(fields.get('arguments'), arrays)
        keywords = unpack(fields.get('keywords'), arrays)
    except (ValueError, TypeError) as error:
        raise WireError(str(error)) from error
    if not (isinstance(name, str) and isinstance(arguments, list) and isinstance(keywords, dict)):
        raise WireError('a call is no name with arguments and keywords')
    if not isinstance(held, list) or not all(type(start) is int for start in held):
        raise WireError('what a call holds is no list of places')
    return name, arguments, keywords, _line_number(fields.get('line')), set(held)
