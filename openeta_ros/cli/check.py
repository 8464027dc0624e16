# SPDX-License-Identifier: Apache-2.0
"""`openeta check`: what an evaluation does with a policy, without a robot or a simulator."""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from openeta_ros.cli.checks import Check, tell
from openeta_ros.cli.errors import UsageError
from openeta_ros.cli.wanted import NO_POLICY

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from openeta_ros.embodiment import Embodiment, Kinematics
    from openeta_ros.episodes.policy import LocalPolicy

T = TypeVar('T')

HELP = 'check a policy as an evaluation first meets it, and say what would be refused'

EPILOG = """\
examples:
  openeta check my_policy/
      builds it in a process of its own, shows it a demonstration, asks it for actions, and checks these
  openeta check my_policy/ --embodiment ur5e_2f85 --json

What the policy sees is made up: pictures without anything on them, and a robot at home. Actions that are
refused for their limits may be right where there is something to see.

exit code:
  0 nothing would be refused; 1 something would; 2 it was asked for wrongly.
"""

# A line of a requirements file that names a package, and is neither an address nor a path.
REQUIREMENT = re.compile(r'([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:$|[\[<>=!~;@#])')
SEED = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta check`."""
    parser.add_argument('policy', metavar='POLICY_DIR', help='a directory with policy.yaml, or that file')
    parser.add_argument(
        '--embodiment',
        default='franka_genesis',
        metavar='NAME|FILE',
        help='the contract whose shapes and limits count: a name, or a YAML file (default: %(default)s)',
    )
    parser.add_argument(
        '--timeout',
        type=float,
        default=60.0,
        metavar='SECONDS',
        help='how long one answer may take (default: %(default)g)',
    )
    parser.add_argument(
        '--start-timeout',
        type=float,
        default=300.0,
        metavar='SECONDS',
        help='how long building it may take (default: %(default)g)',
    )
    parser.add_argument('--json', action='store_true', help='print JSON instead of lines')


def main(args: argparse.Namespace) -> int:
    """Print the checks; return 0 when nothing is refused."""
    from openeta_ros.embodiment import EmbodimentError, Kinematics, KinematicsError, load

    try:
        embodiment = load(args.embodiment)
        kinematics = Kinematics(embodiment)
    except (EmbodimentError, KinematicsError) as error:
        raise UsageError(str(error)) from None
    for name in ('timeout', 'start_timeout'):
        if not getattr(args, name) > 0:
            raise UsageError(f'--{name.replace("_", "-")} must be positive, not {getattr(args, name):g}')
    checks = tell(_checks(args, embodiment, kinematics), as_json=args.json)
    return 1 if any(check.status == 'refused' for check in checks) else 0


def _checks(args: argparse.Namespace, embodiment: Embodiment, kinematics: Kinematics) -> Iterator[Check]:
    """Make one check after the other, until one that nothing can follow."""
    from openeta_ros.embodiment.resources import local_policy
    from openeta_ros.episodes.policy import LocalPolicy
    from openeta_ros.vector_policy import ManifestError, PolicyUnavailable
    from openeta_ros.vector_policy.process import checked_manifest, open_policy

    source = local_policy(args.policy)
    if source is None:
        yield Check('policy.yaml', 'refused', f'{args.policy} does not exist', NO_POLICY)
        return
    try:
        loaded = checked_manifest(source)
    except ManifestError as error:
        yield Check('policy.yaml', 'refused', f'{error.path}: {"; ".join(error.problems)}')
        return
    yield Check('policy.yaml', 'ok', f'{loaded.policy} in {loaded.root}')
    if loaded.requirements_path is not None:
        yield _requirements(loaded.requirements_path)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / 'policy.log'
        begin = time.monotonic()
        policy = open_policy(
            loaded.path, timeout_s=args.timeout, start_timeout_s=args.start_timeout, log_file=log
        )
        try:
            with policy as remote:
                local = LocalPolicy(remote, embodiment)
                took = f'built in {time.monotonic() - begin:.1f} s'
                yield Check('start', 'ok', f'{took}, action_type {local.action_type}')
                yield from _Episodes(local, embodiment, kinematics).checks()
        except PolicyUnavailable as error:
            yield _refused('start', error)


def _requirements(path: Path) -> Check:
    """Are the packages there that a requirements file names? Their versions are pip's business."""
    lacking = []
    for line in path.read_text(encoding='utf-8', errors='replace').splitlines():
        name = REQUIREMENT.match(line.strip())
        if name is not None:
            try:
                metadata.version(name[1])
            except metadata.PackageNotFoundError:
                lacking.append(name[1])
    if lacking:
        remedy = f'pip install -r {path}'
        return Check('requirements', 'warning', f'not installed here: {", ".join(lacking)}', remedy)
    return Check('requirements', 'ok', f'all that {path.name} names is installed')


class _Episodes:
    """Two short episodes with a policy, as the runner has them."""

    def __init__(self, policy: LocalPolicy, embodiment: Embodiment, kinematics: Kinematics) -> None:
        from openeta_ros.control import ActionPipeline

        self._policy, self._embodiment, self._kinematics = policy, embodiment, kinematics
        self._pipeline = ActionPipeline(embodiment, kinematics)
        self._over = False  # the policy is gone, or late: nothing can follow

    def checks(self) -> Iterator[Check]:
        """Make the checks."""
        from openeta_ros.episodes.made_up import made_up_demonstration
        from openeta_ros.episodes.runner import policy_seed

        shown = made_up_demonstration(self._embodiment, self._kinematics)
        for episode in ('', ' of the second episode'):
            if self._over:
                return
            yield self._call(f'reset{episode}', lambda: self._policy.reset(policy_seed(SEED)))[0]
            if not self._over:
                yield self._call(
                    f'demonstration{episode}',
                    lambda: self._policy.set_demonstration(shown),
                    f'{len(shown.arrays)} arrays, {len(shown.arrays["times"])} moments',
                )[0]
            qpos = self._embodiment.home_qpos
            for which in ('act', 'next act'):
                if self._over:
                    break
                reached = yield from self._act(f'{which}{episode}', qpos)
                if reached is None:
                    break
                qpos = reached

    def _act(
        self, name: str, qpos: NDArray[np.float64]
    ) -> Generator[Check, None, NDArray[np.float64] | None]:
        """Ask for actions at a wire row (D,), and check them; return the row that they lead to."""
        from openeta_ros.control import ActionError
        from openeta_ros.episodes.made_up import made_up_observation

        observation = made_up_observation(self._embodiment, self._kinematics, qpos)
        try:
            check, rows = self._call(name, lambda: self._policy.act(observation), 'answered')
        except ActionError as error:  # relative rows that cannot be made absolute
            yield Check(name, 'refused', f'{error} ({error.kind})')
            return None
        yield check
        if rows is None:
            return None
        name = f'actions of {name}'
        try:
            plan = self._pipeline.plan(rows, self._policy.action_type, qpos)
        except ActionError as error:
            yield Check(name, 'refused', f'{error} ({error.kind})')
            return None
        found = f'{len(plan)} row{"s" * (len(plan) > 1)} of {rows.shape[-1]} {rows.dtype}'
        clamped = sorted({joint for row in plan.clamped for joint in row})
        if clamped:
            yield Check(name, 'warning', f'{found}; clamped: {", ".join(clamped)}')
        else:
            yield Check(name, 'ok', f'{found}, within the limits of {self._embodiment.name}')
        reached: NDArray[np.float64] = plan.qpos[-1]
        return reached

    def _call(self, name: str, call: Callable[[], T], found: str = 'done') -> tuple[Check, T | None]:
        """Return how a call of the policy went, and what it returned."""
        from openeta_ros.vector_policy import PolicyUnavailable

        begin = time.monotonic()
        try:
            answer = call()
        except PolicyUnavailable as error:
            self._over = error.remote_type is None
            return _refused(name, error), None
        return Check(name, 'ok', f'{found} in {1e3 * (time.monotonic() - begin):.1f} ms'), answer


def _refused(name: str, error: Exception) -> Check:
    return Check(name, 'refused', getattr(error, 'message', str(error)), log=getattr(error, 'log_tail', ''))
