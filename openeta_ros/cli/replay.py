# SPDX-License-Identifier: Apache-2.0
"""`openeta replay`: a recorded episode again, for a policy or in an env."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from openeta_ros.cli import eval
from openeta_ros.cli.arguments import add_namespace, positive_seconds, seconds
from openeta_ros.cli.bar import Bar
from openeta_ros.cli.errors import UsageError
from openeta_ros.cli.wanted import check_env, policy_source

if TYPE_CHECKING:
    from openeta_ros.embodiment import Embodiment
    from openeta_ros.episodes.actuate import Again, RecordedPolicy
    from openeta_ros.episodes.bag import Bag
    from openeta_ros.episodes.demonstration import Demonstration

HELP = (
    'replay a recorded episode: to a policy (open-loop), in an env (actuate), or on the ROS 2 graph (stream)'
)

EPILOG = """\
examples:
  openeta replay results/2025-01-01/episodes/0 --mode open-loop --policy my_policy/
      the policy sees the recorded observations; its rows are compared with the recorded ones
  openeta replay recordings/pick_1 --mode open-loop --policy my_policy/ --embodiment my_robot.yaml --every 1
      any rosbag2 folder; the policy is asked at every row
  openeta replay results/2025-01-01/episodes/0 --mode actuate
      the recorded actions in the recorded env, task and scene: both runs must be the same
  openeta replay recordings/pick_1 --mode actuate --env mujoco --task pick_cube --embodiment my_robot.yaml
      in another env, through the same checks as a policy's actions
  openeta replay recordings/pick_1 --mode actuate --env arm --task pick_cube --embodiment my_robot.yaml
      on the arm itself, or with --hardware mock on a mock of it
  openeta replay results/2025-01-01/episodes/0 --mode stream --rate 0.5 --loop
      its topics and /clock, for whatever listens: a bridge, RViz, Foxglove

exit code:
  0 it was carried out, whatever came out; 1 it could not be; 2 it was asked for wrongly; 130 Ctrl-C.
"""

STREAM = 'stream'
RECORDED = 'recorded'
NONE = 'none'
ARM = 'arm'
# Where options do something: elsewhere they are a mistake.
ONLY = {
    **dict.fromkeys(('policy', 'demonstration', 'every', 'policy_timeout'), ('open-loop',)),
    **dict.fromkeys(('env', 'task', 'seed', 'env_embodiment', 'hardware', 'output'), ('actuate',)),
    **dict.fromkeys(('rate', 'from_s', 'to_s', 'loop', 'paused', 'clock_hz', 'wait_for'), (STREAM,)),
    **dict.fromkeys(('embodiment', 'namespace', 'recover', 'json'), ('open-loop', 'actuate')),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta replay`."""
    parser.add_argument(
        'episode', metavar='EPISODE', help='an episode folder, a bag folder, or a single .mcap or .db3 file'
    )
    parser.add_argument('--mode', choices=(*MODES, STREAM), required=True, help='what is done with it')
    parser.add_argument(
        '--embodiment',
        metavar='NAME|FILE',
        help='the contract of the robot that was recorded (default: the one that the recording carries)',
    )
    add_namespace(parser)
    parser.add_argument('--recover', action='store_true', help='of a truncated MCAP file, take what is whole')
    parser.add_argument('--json', action='store_true', help='print JSON instead of lines')
    loop = parser.add_argument_group('--mode open-loop')
    loop.add_argument(
        '--policy', metavar='DIR|ADDRESS', help='a directory with policy.yaml, or the address of a server'
    )
    loop.add_argument(
        '--demonstration',
        metavar='recorded|none|FILE',
        help='what the policy is shown first: the recording itself, nothing, or another one (default: the '
        'recording when its own policy was shown something, else nothing)',
    )
    loop.add_argument(
        '--every',
        type=int,
        metavar='ROWS',
        help='rows between two questions (default: as many as the policy answered)',
    )
    loop.add_argument(
        '--policy-timeout',
        type=positive_seconds,
        default=60.0,
        metavar='SECONDS',
        help='how long one answer may take (default: %(default)g)',
    )
    again = parser.add_argument_group('--mode actuate')
    again.add_argument('--env', help='the env (default: the recorded one)')
    again.add_argument('--task', help='its task (default: the recorded one)')
    again.add_argument('--seed', type=int, metavar='N', help='its scene (default: the recorded one)')
    again.add_argument(
        '--env-embodiment',
        metavar='NAME|FILE',
        help='the contract of the robot in the env (default: that of the recorded one)',
    )
    again.add_argument(
        '--hardware',
        choices=('real', 'mock'),
        help='of --env arm: the arm that is there, or a mock of it that is started too (default: real)',
    )
    again.add_argument(
        '--output', metavar='DIR', help='where the new run goes (default: results/<time>-replay)'
    )

    stream = parser.add_argument_group('--mode stream')
    stream.add_argument(
        '--rate', type=float, default=1.0, help='times the speed of recording (default: %(default)g)'
    )
    stream.add_argument(
        '--from',
        dest='from_s',
        type=seconds,
        default=0.0,
        metavar='SECONDS',
        help='begin so long after it begins',
    )
    stream.add_argument(
        '--to', dest='to_s', type=seconds, default=0.0, metavar='SECONDS', help='end so long after it begins'
    )
    stream.add_argument('--loop', action='store_true', help='begin again at the end, until Ctrl-C')
    stream.add_argument(
        '--paused',
        action='store_true',
        help='begin with time standing: space goes on, s or the right arrow steps',
    )
    stream.add_argument(
        '--wait-for',
        action='append',
        default=[],
        metavar='TOPIC',
        help='begin when somebody listens to it (several: once each)',
    )
    stream.add_argument(
        '--clock-hz',
        type=float,
        default=100.0,
        metavar='HZ',
        help='how often /clock is published; 0 plays the one that was recorded (default: %(default)g)',
    )


def main(args: argparse.Namespace) -> int:
    """Replay, tell, return the exit code."""
    from openeta_ros.embodiment import EmbodimentError, KinematicsError
    from openeta_ros.envs import EnvError
    from openeta_ros.episodes.bag import Bag
    from openeta_ros.episodes.bag_metadata import BagError
    from openeta_ros.episodes.demonstration import DemonstrationError
    from openeta_ros.vector_policy import PolicyUnavailable

    path = Path(args.episode)
    if not path.exists():
        raise UsageError(f'{path} does not exist')
    _check_options(args)
    if args.every is not None and args.every < 1:
        raise UsageError(f'--every must be at least 1, not {args.every}')
    if args.mode == STREAM:
        return _stream(args, path)
    try:
        with (
            Bag(path, recover=args.recover, namespace=args.namespace) as bag,
            tempfile.TemporaryDirectory() as scratch,
        ):
            return MODES[args.mode](args, bag, Path(scratch))
    except (BagError, EmbodimentError, KinematicsError, DemonstrationError, EnvError, OSError) as error:
        print(f'openeta replay: {error}', file=sys.stderr)
    except PolicyUnavailable as error:
        print(f'openeta replay: {error}', file=sys.stderr)
    return 1


def _check_options(args: argparse.Namespace) -> None:
    """Refuse options that would do nothing."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for name, modes in ONLY.items():
        if getattr(args, name) != parser.get_default(name) and args.mode not in modes:
            option = f'--{name.removesuffix("_s").replace("_", "-")}'
            raise UsageError(f'{option} is of --mode {" and ".join(modes)}, and does nothing in {args.mode}')


def _open_loop(args: argparse.Namespace, bag: Bag, scratch: Path) -> int:
    from openeta_ros.episodes.bag_description import with_description
    from openeta_ros.episodes.open_loop import open_loop
    from openeta_ros.episodes.policy import LocalPolicy
    from openeta_ros.episodes.recording import embodiment_of, facts
    from openeta_ros.episodes.runner import policy_seed
    from openeta_ros.vector_policy.process import open_policy

    if args.policy is None:
        raise UsageError('--mode open-loop needs a --policy')
    source = policy_source(args.policy)
    embodiment = embodiment_of(bag, args.embodiment, scratch)
    if embodiment.action.mode == 'relative':  # which takes kinematics to make absolute
        embodiment = with_description(bag, embodiment)
    demonstration = _demonstration(args, bag, embodiment, scratch)
    seed = int(facts(bag).episode.get('policy_seed', policy_seed(0)))
    log = scratch / 'policy.log'
    with (
        open_policy(source, timeout_s=args.policy_timeout, log_file=log) as remote,
        Bar(str(bag.path)) as bar,
    ):
        compared = open_loop(
            bag,
            embodiment,
            LocalPolicy(remote, embodiment),
            policy_seed=seed,
            demonstration=demonstration,
            every=args.every,
            progress=bar.show,
        )
    print(json.dumps(compared.json(), indent=2) if args.json else '\n'.join(compared.lines()))
    return 0


def _demonstration(
    args: argparse.Namespace, bag: Bag, embodiment: Embodiment, scratch: Path
) -> Demonstration | None:
    from openeta_ros.episodes.bag_demonstration import load_any
    from openeta_ros.episodes.recording import facts

    wanted = args.demonstration
    if wanted is None:
        wanted = NONE if facts(bag).settings.get('demonstration', NONE) == NONE else RECORDED
    if wanted == NONE:
        return None
    if wanted == RECORDED:
        return load_any(bag.path, embodiment, scratch, namespace=args.namespace)
    return load_any(Path(wanted), embodiment, scratch)


def _actuate(args: argparse.Namespace, bag: Bag, scratch: Path) -> int:
    from openeta_ros.embodiment import load
    from openeta_ros.envs import EnvFacade, EnvSpec
    from openeta_ros.episodes.actuate import RecordedPolicy, actuate
    from openeta_ros.episodes.recording import embodiment_of, facts

    carried = facts(bag)
    env, task = args.env or carried.env.get('backend'), args.task or carried.env.get('task')
    known = carried.episode.get('seed', carried.info.get('seed', 0 if env == ARM else None))
    seed = args.seed if args.seed is not None else known
    asked = {'--env': env, '--task': task, '--seed': seed}
    lacking = [name for name, value in asked.items() if value is None]
    if lacking:
        raise UsageError(f'{bag.path} does not carry what was run: name {", ".join(lacking)}')
    if not str(seed).isdecimal():
        raise UsageError(f'the seed {seed!r} is no scene: name one with --seed')
    check_env(str(env), str(task))
    if args.hardware and env != ARM:
        raise UsageError(f'--hardware is of --env arm; env {env!r} has none')
    output = Path(args.output or f'results/{time.strftime("%Y-%m-%d_%H-%M-%S")}-replay')
    if output.exists():
        raise UsageError(f'{output} exists; name another --output')
    embodiment = embodiment_of(bag, args.embodiment, scratch)
    robot = load(args.env_embodiment) if args.env_embodiment else embodiment
    policy = RecordedPolicy(bag, embodiment)
    if env == ARM:
        return _on_arm(
            _Actuation(args, bag, scratch, embodiment, robot, policy, str(task), int(str(seed)), output)
        )
    spec = EnvSpec(backend=str(env), task=str(task), embodiment=robot, max_steps=policy.max_steps)
    with EnvFacade.from_spec(spec) as facade:
        again = actuate(bag, embodiment, facade, policy, int(str(seed)), output, env_embodiment=robot)
    return _told(args, again, output)


class _Actuation(NamedTuple):
    args: argparse.Namespace
    bag: Bag
    scratch: Path
    embodiment: Embodiment
    robot: Embodiment
    policy: RecordedPolicy
    task: str
    seed: int
    output: Path


def _on_arm(run: _Actuation) -> int:
    """Evaluate the recorded actions as a policy on an arm's graph; compare, tell, return the exit code."""
    from openeta_ros.episodes.actuate import compared, write_policy
    from openeta_ros.episodes.results import FILENAME, read

    folder = run.scratch / 'policy'
    write_policy(run.policy, folder)
    wanted = [
        *('--env', ARM, '--task', run.task, '--embodiment', str(run.robot.path), '--seed', str(run.seed)),
        *('--policy', str(folder), '--demonstration', 'none', '--episodes', '1'),
        *('--max-steps', str(run.policy.max_steps), '--output', str(run.output)),
        *(('--hardware', run.args.hardware) if run.args.hardware else ()),
    ]
    parser = argparse.ArgumentParser()
    eval.add_arguments(parser)
    with eval.stdout_as_stderr() if run.args.json else contextlib.nullcontext():
        code = eval.main(parser.parse_args(wanted))
    if code:
        return code
    (result,) = read(run.output / FILENAME).episodes
    if result.files is None:
        return 1  # the evaluation has said why
    recording = run.output / result.files.bag
    again = compared(run.bag, run.embodiment, run.policy, result, recording, run.robot)
    return _told(run.args, again, run.output)


def _told(args: argparse.Namespace, again: Again, output: Path) -> int:
    (output / 'comparison.json').write_text(json.dumps(again.json(), indent=2) + '\n', encoding='utf-8')
    if args.json:
        print(json.dumps(again.json(), indent=2))
    else:
        print(*again.lines(), f'written to {output}', sep='\n')
    return 0


def _stream(args: argparse.Namespace, path: Path) -> int:
    """Become the replay node, on the graph that this shell is on."""
    from openeta_ros.nodes.graph import NodeSpec, become

    if importlib.util.find_spec('rclpy') is None:
        raise UsageError('--mode stream needs ROS 2 (rclpy does not import): run `make setup` or source one')
    if not 0.001 <= args.rate <= 1000:
        raise UsageError(f'--rate must be between 0.001 and 1000, not {args.rate:g}')
    if not 0 <= args.clock_hz <= 10_000:
        raise UsageError(f'--clock-hz must be between 0 and 10000, not {args.clock_hz:g}')
    if args.from_s < 0 or (args.to_s and args.to_s <= args.from_s):
        raise UsageError(f'--from {args.from_s:g} --to {args.to_s:g} is no part of a recording')
    node = NodeSpec(
        'replay',
        {
            'bag': str(path.absolute()),
            'rate': args.rate,
            'from_s': args.from_s,
            'to_s': args.to_s,
            'loop': args.loop,
            'paused': args.paused,
            'clock_hz': args.clock_hz,
            'wait_for': ' '.join(args.wait_for),
        },
    )
    become(node)


MODES = {'open-loop': _open_loop, 'actuate': _actuate}
