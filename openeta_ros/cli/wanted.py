# SPDX-License-Identifier: Apache-2.0
"""What a command names, a policy, a contract, an env, a demonstration, looked at before anything starts.

Raises everywhere: UsageError, one sentence on what is unknown, missing, or cannot be used here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from openeta_ros.cli.errors import UsageError

if TYPE_CHECKING:
    from openeta_ros.embodiment import Embodiment
    from openeta_ros.episodes.demonstration import Demonstration


# Of those that take no address.
NO_POLICY = 'name a directory with policy.yaml, or that file'


def contract(name: str, env: str) -> Embodiment:
    """Return a contract that fits its robot's description; of an arm's that comes over the graph nothing is
    known yet."""
    from openeta_ros.embodiment import EmbodimentError, Kinematics, KinematicsError, load
    from openeta_ros.episodes.settings import ARM

    try:
        embodiment = load(name)
        if env != ARM or embodiment.live_description is None:
            Kinematics(embodiment)
    except (EmbodimentError, KinematicsError) as error:
        raise UsageError(str(error)) from None
    return embodiment


def check_env(env: str, task: str) -> None:
    """Look whether there is such an env and task, and whether it can run here."""
    from openeta_ros.envs import EnvError, registry

    try:
        registry.check_task(env, task)
    except EnvError as error:
        raise UsageError(str(error)) from None
    lacking = registry.missing(env)
    if lacking is not None:
        raise UsageError(lacking)


def policy_source(source: str) -> str:
    """Return the absolute path of a policy that exists and whose policy.yaml is right, or the address of one,
    for which there is a key."""
    from openeta_ros.embodiment.resources import local_policy
    from openeta_ros.vector_policy import ManifestError, WireError, wire
    from openeta_ros.vector_policy.process import checked_manifest

    path = local_policy(source)
    if path is not None and not path.is_socket():
        try:
            checked_manifest(path)
        except ManifestError as error:
            raise UsageError(str(error)) from None
        return str(path)
    try:
        family, _ = wire.parse_address(source)
    except WireError as error:
        raise UsageError(str(error)) from None
    if family == 'AF_INET' or source.endswith('.sock') or path is not None:
        _check_key(source)
        return source if family == 'AF_INET' else str(path or Path(source).absolute())
    raise UsageError(
        f'there is no policy at {source}: no directory with policy.yaml, no socket, and not HOST:PORT'
    )


def demonstration(text: str, namespace: str = '') -> str:
    """Return what a policy is to be shown: 'expert', 'none', or the absolute path of a demonstration whose
    arrays a policy can be sent, or of a recording, which alone may have a namespace."""
    from openeta_ros.episodes.bag import Bag
    from openeta_ros.episodes.bag_demonstration import is_episode
    from openeta_ros.episodes.bag_metadata import BagError
    from openeta_ros.episodes.demonstration import DemonstrationError, load

    path = Path(text).absolute()
    recorded = not _without_file(text) and is_episode(path)
    if namespace and not recorded:
        raise UsageError(f'--namespace is of a recording, and --demonstration {text} is none')
    try:
        if recorded:
            Bag(path).close()
        elif not _without_file(text):
            _check_shown(path, load(path))
    except (BagError, DemonstrationError) as error:
        raise UsageError(str(error)) from None
    return text if _without_file(text) else str(path)


def arrays_shown(demonstration: str, embodiment: str, output: Path, namespace: str) -> str:
    """Return what `demonstration` returned; of a recording, the path of the arrays that are made of it here,
    in the output folder: when an env has started, after minutes, it is late to tell that it gives none."""
    from openeta_ros.cli.bar import Bar
    from openeta_ros.embodiment import EmbodimentError, KinematicsError, load
    from openeta_ros.episodes.bag import Bag
    from openeta_ros.episodes.bag_demonstration import MADE, convert, is_episode
    from openeta_ros.episodes.bag_metadata import BagError
    from openeta_ros.episodes.demonstration import load as load_arrays

    if _without_file(demonstration) or not is_episode(Path(demonstration)):
        return demonstration
    made = output / MADE
    try:
        with Bar(demonstration) as bar, Bag(Path(demonstration), namespace=namespace) as bag:
            convert(bag, load(embodiment), made, progress=bar.show)
    except (BagError, EmbodimentError, KinematicsError, OSError) as error:
        raise UsageError(str(error)) from None
    _check_shown(Path(demonstration), load_arrays(made))
    return str(made)


def _without_file(demonstration: str) -> bool:
    from openeta_ros.episodes.settings import EXPERT, NO_DEMONSTRATION

    return demonstration in (EXPERT, NO_DEMONSTRATION)


def _check_shown(path: Path, shown: Demonstration) -> None:
    """Look whether a policy can be sent a demonstration."""
    from openeta_ros.vector_policy import WireError, wire

    try:
        wire.encode('prompt', {'info': dict(shown.info)}, shown.arrays)
    except WireError as error:
        raise UsageError(f'{path} cannot be shown to a policy: {error}') from None


def folder_to_write(output: Path) -> None:
    """Make a folder in which something can be written."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f'{output} cannot be made: {error.strerror}; name another --output') from None
    if not os.access(output, os.W_OK | os.X_OK):
        raise UsageError(f'{output} cannot be written into; name another --output')


def _check_key(address: str) -> None:
    from openeta_ros.vector_policy.process import AUTHKEY_ENV, authkey_of
    from openeta_ros.vector_policy.wire import MIN_AUTHKEY_BYTES

    if authkey_of() is None:
        raise UsageError(
            f'the policy at {address} wants a key: set {AUTHKEY_ENV} to the key of its server, '
            f'at least {MIN_AUTHKEY_BYTES} bytes in hex'
        )
