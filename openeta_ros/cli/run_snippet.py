# SPDX-License-Identifier: Apache-2.0
"""`openeta run-snippet`: run a snippet of Python against an env, within budgets and in a sandbox."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openeta_ros.cli.arguments import add_scene
from openeta_ros.cli.errors import UsageError
from openeta_ros.cli.eval import stdout_as_stderr
from openeta_ros.cli.wanted import check_env, contract

if TYPE_CHECKING:
    from openeta_ros.code_policy import Budgets, CodePolicyExecutionResult
    from openeta_ros.embodiment import Embodiment
    from openeta_ros.envs.backend import CameraPose

HELP = 'run a snippet of Python against an env: in a sandbox, within budgets, with a record'

EPILOG = """\
examples:
  openeta run-snippet examples/snippets/pick_cube.py --env mujoco --task pick_cube --seed 1
      in the scene of seed 1; its record (code, trace, video, rewards, result) is in results/<time>-snippet
  openeta run-snippet mine.py --env mujoco --dry-run
      what would happen: a simulator's state is put back afterwards
  openeta run-snippet mine.py --env mujoco --budget wall_s=20 --budget rows=300 --json
      with tighter limits; the whole result is printed as JSON
  openeta run-snippet mine.py --env arm --hardware real --embodiment my_franka.yaml
      on an arm, whose drivers run

exit code:
  0 the snippet ran to its end (status executed; with --dry-run: planned), whether or not it solved the task,
  which is printed and in the result as `success`; 1 it did not; 2 it was asked for wrongly; 130 Ctrl-C, after
  which the arm holds.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta run-snippet`."""
    parser.add_argument('file', metavar='FILE', help='the snippet (Python; - reads it from stdin)')
    where = parser.add_argument_group('where it is run')
    add_scene(where)
    where.add_argument(
        '--seed', type=int, default=0, metavar='N', help='the scene to begin in (default: %(default)s)'
    )
    where.add_argument(
        '--max-steps', type=int, metavar='N', help="rows until the episode ends (default: the task's)"
    )
    where.add_argument(
        '--hardware',
        choices=('real', 'mock'),
        help="of --env arm: the arm that is there (on this shell's ROS_DOMAIN_ID), which moves at once, or a "
        'mock of it that is started too',
    )
    how = parser.add_argument_group('how it is run')
    how.add_argument('--dry-run', action='store_true', help='show what would happen, and move nothing')
    how.add_argument(
        '--strict',
        action=argparse.BooleanOptionalAction,
        default=True,
        help='refuse to run where a boundary of the sandbox cannot be enforced (default: yes); otherwise the '
        'result says which',
    )
    how.add_argument(
        '--budget',
        action='append',
        default=[],
        metavar='NAME=NUMBER',
        help='a limit of this run, such as wall_s, cpu_s, memory_bytes, calls, rows, resets; may be repeated',
    )
    how.add_argument(
        '--output', metavar='DIR', help='where the record goes (default: results/<time>-snippet)'
    )
    how.add_argument('--json', action='store_true', help='print the whole result as JSON instead of lines')


def main(args: argparse.Namespace) -> int:
    """Check, run, tell; return the exit code."""
    from openeta_ros.code_policy import CodePolicyStatus
    from openeta_ros.envs import EnvError

    code = _code(args.file)
    budgets = budgets_of(args.budget)
    if args.seed < 0:
        raise UsageError(f'--seed must not be negative, and is {args.seed}')
    check_env(args.env, args.task)
    _check_hardware(args.env, args.hardware)
    if args.max_steps is not None and args.max_steps < 1:
        raise UsageError(f'--max-steps must be at least 1, not {args.max_steps}')
    embodiment = contract(args.embodiment, args.env)
    output = Path(args.output or f'results/{time.strftime("%Y-%m-%d_%H-%M-%S")}-snippet').absolute()
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f'{output} is not empty; name another --output')
    try:
        if args.json:
            with stdout_as_stderr():
                result = _run(args, code, budgets, embodiment, output)
        else:
            result = _run(args, code, budgets, embodiment, output)
    except (EnvError, OSError) as error:
        print(f'openeta run-snippet: it could not be run: {error}', file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        print(*lines(result), sep='\n')
    wanted = CodePolicyStatus.PLANNED if args.dry_run else CodePolicyStatus.EXECUTED
    return 0 if result.status is wanted else 1


def budgets_of(texts: Sequence[str]) -> Budgets:
    """Return the budgets that `NAME=NUMBER` texts change.

    Raises:
        UsageError: there is no such budget, or its number cannot be meant.
    """
    from openeta_ros.code_policy import Budgets
    from openeta_ros.code_policy.types import BudgetError

    names = [entry.name for entry in fields(Budgets)]
    changes: dict[str, Any] = {}
    for text in texts:
        name, _, number = text.partition('=')
        if name not in names:
            raise UsageError(f'--budget {text}: there is no budget {name!r}; there are {", ".join(names)}')
        try:
            changes[name] = float(number) if name.endswith('_s') else int(number)
        except ValueError:
            raise UsageError(f'--budget {text}: {number!r} is no number') from None
    try:
        return replace(Budgets(), **changes)
    except BudgetError as error:
        raise UsageError(f'--budget: {error}') from None


def lines(result: CodePolicyExecutionResult) -> list[str]:
    """Return what a person wants to know of a result, a line each."""
    details = result.details
    told = {
        'status': result.status.value,
        'success': {True: 'yes', False: 'no', None: 'not known'}[details.get('success')],
        'reward': details.get('reward'),
        'used': ', '.join(f'{name} {value:g}' for name, value in (details.get('used') or {}).items()),
        'not enforced': '; '.join((details.get('isolation') or {}).get('not_enforced') or ()),
        'record': details.get('record'),
    }
    table = [f'{name:<13} {value}' for name, value in told.items() if value not in (None, '')]
    return [result.content.rstrip(), '', *table]


def _code(file: str) -> str:
    try:
        return sys.stdin.read() if file == '-' else Path(file).read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f'{file} cannot be read: {error}') from None


def _check_hardware(env: str, hardware: str | None) -> None:
    from openeta_ros.episodes.settings import ARM

    if env == ARM and hardware is None:
        raise UsageError('--env arm moves an arm: say which, with --hardware real or --hardware mock')
    if env != ARM and hardware is not None:
        raise UsageError(f'--hardware is of --env arm; env {env!r} has none')
    if env == ARM and importlib.util.find_spec('rclpy') is None:
        raise UsageError('--env arm needs ROS 2 (rclpy does not import): run `make setup` or source one')


@contextlib.contextmanager
def _env(args: argparse.Namespace, embodiment: Embodiment) -> Iterator[tuple[Any, Mapping[str, CameraPose]]]:
    """Yield the env, and where its cameras are when it is a simulator; an arm's contract says that."""
    from openeta_ros.envs import EnvFacade, EnvSpec

    if args.hardware is None:
        spec = EnvSpec(backend=args.env, task=args.task, embodiment=embodiment, max_steps=args.max_steps)
        with EnvFacade.from_spec(spec) as env:
            yield env, env.camera_poses
        return
    from openeta_ros.nodes.graph import arm_graph

    wanted = {'embodiment': args.embodiment, 'task': args.task, 'seed': args.seed}
    with arm_graph(args.hardware, **wanted, max_steps=args.max_steps or 0):
        from openeta_ros.nodes.guest import env_of_graph  # rclpy reads the graph's environment

        with env_of_graph(embodiment, lambda text: print(text, file=sys.stderr)) as held:
            yield held, {}


def _run(
    args: argparse.Namespace, code: str, budgets: Budgets, embodiment: Embodiment, output: Path
) -> CodePolicyExecutionResult:
    from openeta_ros.code_policy import (
        CodePolicyApi,
        CodePolicyExecutionRequest,
        CodePolicySandbox,
        SandboxConfig,
    )

    if not args.json:
        print(f'starting {args.env}', flush=True)
    with _env(args, embodiment) as (env, cameras):
        request = CodePolicyExecutionRequest(
            code=code,
            api=CodePolicyApi(env, embodiment, camera_poses=cameras),
            metadata={'file': args.file, 'env': args.env, 'task': args.task, 'embodiment': embodiment.name},
            budgets=budgets,
            dry_run=args.dry_run,
            seed=args.seed,
            output=output,
        )
        sandbox = CodePolicySandbox(SandboxConfig(strict=args.strict))
        return sandbox.execute(request, on_event=None if args.json else _tell)


def _tell(event: dict[str, Any]) -> None:
    """Print one call of the snippet as soon as it is done."""
    moved = event.get('steps')
    error = event.get('error')
    told = [
        f'line {event["line"]}' if event.get('line') else 'runtime',
        str(event['call']),
        f'rows {moved[0]} to {moved[1]}' if moved else '',
        f'{event["duration_s"] * 1e3:.1f} ms',
        f'{error["kind"]}: {error["message"]}' if error else '',
    ]
    print('  ', '  '.join(filter(None, told)), flush=True)
