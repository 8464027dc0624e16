# SPDX-License-Identifier: Apache-2.0
"""`openeta eval`: evaluate a policy. What can be wrong with the request is checked before anything starts."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from openeta_ros.cli import doctor, wanted
from openeta_ros.cli.arguments import add_namespace, add_scene
from openeta_ros.cli.errors import UsageError
from openeta_ros.cli.wanted import check_env

if TYPE_CHECKING:
    from openeta_ros.embodiment import Embodiment
    from openeta_ros.episodes import EvalSettings

HELP = 'evaluate a policy: run episodes, record them, and say how often it succeeds'

EPILOG = """\
examples:
  openeta eval
      the example policy picks a cube in Genesis, over the ROS 2 graph
  openeta eval --env mujoco --task stack_cubes --policy my_policy/ --episodes 20
      a policy of your own (a directory with policy.yaml), in MuJoCo
  openeta eval --env mujoco --transport local --policy my_policy/ --episodes 200 --workers 4
      as quick as the machine allows, with the same results
  openeta eval --transport local --policy 127.0.0.1:5555 --demonstration none
      a policy server that runs already (its hex key in VECTOR_POLICY_AUTHKEY), without ROS
  openeta eval --env mujoco --policy my_policy/ --demonstration recordings/both --namespace left_arm
      a policy that is shown what was recorded of one of two arms, instead of the scripted expert
  openeta eval --env arm --hardware mock --embodiment franka --task pick_cube
      the same over the controllers of an arm, which a mock plays; without --hardware mock, the arm itself

exit code:
  0 the evaluation was carried out, whatever the score; 1 it was not; 2 it was asked for wrongly;
  130 Ctrl-C. Results so far are kept, in results.json of the output directory.
"""

DEFAULT_POLICY = 'examples/replay_policy'

POLICY_LOG = 'policy.log'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta eval`."""
    what = parser.add_argument_group('what is evaluated')
    add_scene(what)
    what.add_argument(
        '--policy',
        default=DEFAULT_POLICY,
        metavar='DIR|ADDRESS',
        help='a directory with policy.yaml, served in a process of its own; or the address of a running '
        'policy server, HOST:PORT or a socket (default: %(default)s)',
    )
    what.add_argument(
        '--demonstration',
        default='expert',
        metavar='expert|none|FILE',
        help='what the policy is shown before it acts: the scripted expert in the very scene of each '
        'episode, nothing, a demonstration (.npz), or a recorded episode or bag (default: %(default)s)',
    )
    add_namespace(what, 'of a --demonstration that is a recording: ')
    how = parser.add_argument_group('how much of it')
    how.add_argument('--episodes', type=int, default=3, metavar='N', help='how many (default: %(default)s)')
    how.add_argument(
        '--seed',
        type=int,
        default=0,
        metavar='N',
        help='scene of the first episode; each next one adds 1 (default: 0)',
    )
    how.add_argument(
        '--max-steps', type=int, metavar='N', help="rows until an episode is lost (default: the task's)"
    )
    how.add_argument(
        '--policy-timeout',
        type=float,
        default=60.0,
        metavar='SECONDS',
        help='how long one answer of the policy may take (default: %(default)g)',
    )
    how.add_argument(
        '--horizon',
        type=int,
        metavar='N',
        help="rows of each of the policy's chunks that are executed before it is asked again (default: all)",
    )
    how.add_argument(
        '--asynchronous',
        action='store_true',
        help='of --env arm: ask the policy while rows are executed, and skip those that are past when it '
        'answers',
    )
    run = parser.add_argument_group('how it is run')
    run.add_argument(
        '--hardware',
        choices=('real', 'mock'),
        help="of --env arm: the arm that is there (on this shell's ROS_DOMAIN_ID), or a mock of it that is "
        'started too (default: real)',
    )
    run.add_argument(
        '--enable',
        action='store_true',
        help='of a real arm: it may move as soon as all is ready, without anybody calling /env/enable',
    )
    run.add_argument(
        '--speed',
        type=float,
        default=1.0,
        metavar='SHARE',
        help='of an arm: slow mode; 0.1 takes ten times as long for each row (default: %(default)g)',
    )
    run.add_argument(
        '--dry-run', action='store_true', help='of an arm: show commands (in logs/env.log) instead of sending'
    )
    run.add_argument(
        '--transport',
        choices=('local', 'ros'),
        default='ros',
        help='ros: env, policy and evaluation are ROS 2 nodes, started here; local: one process beside the '
        'policy, no ROS needed (default: %(default)s)',
    )
    run.add_argument(
        '--workers',
        type=int,
        default=1,
        metavar='N',
        help='how many episodes are run at once, each in processes of its own; the results are those of one '
        'worker (default: %(default)s)',
    )
    run.add_argument(
        '--output', metavar='DIR', help='where results.json and episodes/ go (default: results/<time>)'
    )
    run.add_argument(
        '--json', action='store_true', help='print results.json when done; the report goes to stderr'
    )


def main(args: argparse.Namespace) -> int:
    """Check, run, report; return the exit code."""
    settings = checked_settings(args)
    if args.workers < 1:
        raise UsageError(f'--workers must be at least 1, not {args.workers}')
    arm = arm_parameters(args, settings)
    if args.workers > 1 and (arm or settings.hardware == 'real'):
        raise UsageError('one arm does one episode at a time: leave out --workers')
    if args.workers > 1 and not Path(settings.policy).exists():
        raise UsageError(
            f'--workers needs a policy directory: the server at {settings.policy} has one client at a time'
        )
    wanted.folder_to_write(Path(settings.output))
    shown = wanted.arrays_shown(
        settings.demonstration, settings.embodiment, Path(settings.output), args.namespace
    )
    settings = replace(settings, demonstration=shown)
    if not args.json:
        return _run(settings, args.workers, arm)
    with stdout_as_stderr() as stdout:
        code = _run(settings, args.workers, arm)
    from openeta_ros.episodes.results import FILENAME

    path = Path(settings.output) / FILENAME
    if path.is_file():
        os.write(stdout, path.read_bytes())
    return code


def checked_settings(args: argparse.Namespace) -> EvalSettings:
    """Return the settings that the arguments ask for.

    Raises:
        UsageError: something in them is unknown, missing, or cannot run on this machine.
    """
    from openeta_ros.envs.tasks import TASKS
    from openeta_ros.episodes import EvalSettings, SettingsError
    from openeta_ros.episodes.settings import ARM

    output = Path(args.output or f'results/{time.strftime("%Y-%m-%d_%H-%M-%S")}').absolute()
    try:
        settings = EvalSettings(
            env=args.env,
            task=args.task,
            embodiment=_named(wanted.contract(args.embodiment, args.env), args.embodiment),
            policy=wanted.policy_source(args.policy),
            output=str(output),
            demonstration=wanted.demonstration(args.demonstration, args.namespace),
            episodes=args.episodes,
            seed=args.seed,
            max_steps=args.max_steps,
            transport=args.transport,
            policy_timeout_s=args.policy_timeout,
            execution_horizon=args.horizon,
            asynchronous=args.asynchronous,
            hardware=args.hardware or ('real' if args.env == ARM else None),
        )
    except SettingsError as error:
        raise UsageError(str(error)) from None
    check_env(settings.env, settings.task)
    if settings.hardware == 'mock' and settings.task not in TASKS:
        raise UsageError(f'a mock has no task {settings.task!r}, only {", ".join(TASKS)}')
    if settings.transport == 'ros' and importlib.util.find_spec('rclpy') is None:
        raise UsageError(
            'ROS 2 is not found (rclpy does not import): run `make setup` or source a ROS 2 distribution, '
            'or use --transport local'
        )
    for name in ('results.json', 'workers'):
        if os.path.exists(output / name):
            raise UsageError(f'{output} already holds {name}; name another --output')
    return settings


def arm_parameters(args: argparse.Namespace, settings: EvalSettings) -> dict[str, bool | float]:
    """Return the parameters of the env node that concern an arm alone, where they are asked for.

    Raises:
        UsageError: they are asked for of a simulator, or the speed is none.
    """
    asked: dict[str, bool | float] = {}
    if args.enable:
        asked['enabled'] = True
    if args.dry_run:
        asked['dry_run'] = True
    if args.speed != 1.0:
        asked['speed'] = args.speed
    if asked and settings.hardware is None:
        raise UsageError('--enable, --speed and --dry-run are for --env arm')
    if not 0.01 <= args.speed <= 1.0:
        raise UsageError(f'--speed must be from 0.01 to 1, not {args.speed:g}')
    return asked


def _run(settings: EvalSettings, workers: int, arm: dict[str, bool | float]) -> int:
    if settings.transport == 'local' and workers == 1:
        return run_local(settings)
    kernels = doctor.kernels()
    if settings.env == 'genesis' and kernels.remedy:
        print(kernels.remedy, flush=True)  # the env node and the worker say so too, but into their logs
    if workers > 1:
        from openeta_ros.cli.workers import run_workers

        return run_workers(settings, workers)
    from openeta_ros.nodes.graph import run_eval_graph

    return int(run_eval_graph(settings, arm))


def run_local(settings: EvalSettings) -> int:
    """Evaluate in this process (the policy in its own) and return the exit code."""
    from rich.console import Console

    from openeta_ros.embodiment import load
    from openeta_ros.envs import EnvError, EnvFacade, EnvSpec
    from openeta_ros.episodes import EvaluationError, Report, evaluate
    from openeta_ros.episodes.policy import LocalPolicy
    from openeta_ros.vector_policy import PolicyUnavailable
    from openeta_ros.vector_policy.process import open_policy

    output = Path(settings.output)
    spec = EnvSpec(
        backend=settings.env,
        task=settings.task,
        embodiment=load(settings.embodiment),
        max_steps=settings.max_steps,
    )
    try:
        with Report(Console(), settings.episodes) as report:
            served = not os.path.exists(settings.policy) or Path(settings.policy).is_socket()
            report.note(f'{"connecting to" if served else "starting"} the policy ({settings.policy})')
            timeout_s, log = settings.policy_timeout_s, output / POLICY_LOG
            with open_policy(settings.policy, timeout_s=timeout_s, log_file=log) as remote:
                report.note(f'starting {settings.env}')
                with EnvFacade.from_spec(spec) as env:
                    results = evaluate(env, LocalPolicy(remote, spec.embodiment), settings, [report])
            report.finished(results)
    except EvaluationError as error:
        kept = f'{error.episodes} of {settings.episodes} episodes are in {output / "results.json"}'
        return _failed(f'{error}; {kept}{_log(output) if error.kind == "policy" else ""}')
    except PolicyUnavailable as error:
        return _failed(f'the policy cannot be used: {error.message}{_log(output)}')
    except EnvError as error:
        return _failed(f'{settings.env} could not be started: {error}')
    return 0


def _log(output: Path) -> str:
    """Return where the policy's log is; one that runs elsewhere has its own."""
    log = output / POLICY_LOG
    return f'; its log is {log}' if log.exists() else ''


def _named(embodiment: Embodiment, name: str) -> str:
    """Return a contract as other processes find it: by its name, or by the path of its file."""
    from openeta_ros.embodiment import available

    return name if name in available() else str(embodiment.path)


def _failed(message: str) -> int:
    print(f'openeta eval: {message}', file=sys.stderr)
    return 1


@contextlib.contextmanager
def stdout_as_stderr() -> Iterator[int]:
    """Send what this process and its children print to stderr; yield a descriptor of the real stdout."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield stdout
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
