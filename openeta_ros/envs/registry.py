# SPDX-License-Identifier: Apache-2.0
"""Which envs there are: the ones of this package, and those that other packages add.

Another package adds one by an entry point of the group `openeta_ros.envs` that names an `EnvKind`:

    entry_points={'openeta_ros.envs': ['my_sim = my_package.envs:MY_SIM']}
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from openeta_ros.embodiment import Kinematics
from openeta_ros.envs.errors import EnvError
from openeta_ros.envs.spec import EnvSpec, LiveWorld, World
from openeta_ros.envs.tasks import TASKS

GROUP = 'openeta_ros.envs'


@dataclass(frozen=True)
class EnvKind:
    """An env that can be made.

    `factory` is 'module:function', called as `function(spec, kinematics)`, which returns a `World` or a
    `LiveWorld`; its module is imported only then. `modules` are the imports that it needs, `install` the
    command that brings them. With `any_task` a task may also be told in words.
    """

    summary: str
    factory: str
    tasks: tuple[str, ...]
    modules: tuple[str, ...] = ()
    install: str = ''
    any_task: bool = False


BUILT_IN = {
    'arm': EnvKind(
        summary='a physical arm, or its mock, over the topics of its contract',
        factory='openeta_ros.nodes.robot:make_world',
        tasks=tuple(TASKS),
        modules=('rclpy',),
        install='source a ROS 2 distribution, or run `make setup`',
        any_task=True,
    ),
    'genesis': EnvKind(
        summary='Genesis: rigid bodies and pictures on the CPU',
        factory='openeta_ros.envs.genesis:make_world',
        tasks=tuple(TASKS),
        modules=('torch', 'genesis'),
        install='pip install torch genesis-world',
    ),
    'mujoco': EnvKind(
        summary='MuJoCo: rigid bodies and pictures on CPU, starts in seconds',
        factory='openeta_ros.envs.mujoco:make_world',
        tasks=tuple(TASKS),
        modules=('mujoco',),
        install='pip install mujoco',
    ),
}


def names() -> list[str]:
    """Return the names of all envs, sorted, whether they can run here or not."""
    return sorted({*BUILT_IN, *_added()})


def kind(name: str) -> EnvKind:
    """Return what is known about the env of that name.

    Raises:
        EnvError: 'backend': there is none, listing what exists; 'missing': its package does not import.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    added = _added()
    if name not in added:
        raise EnvError('backend', f'there is no env {name!r}; there are {", ".join(names())}')
    try:
        loaded = added[name].load()
    except Exception as error:  # whatever another package does when imported must not end `openeta envs`
        raise EnvError('missing', f'env {name!r} ({added[name].value}) does not import: {error}') from error
    if not isinstance(loaded, EnvKind):
        raise EnvError('missing', f'env {name!r}: {added[name].value} is no EnvKind')
    return loaded


def missing(name: str) -> str | None:
    """Return one sentence on what `name` lacks to run here and how to install it, or None when it can run."""
    try:
        known = kind(name)
    except EnvError as error:
        if error.kind == 'backend':
            raise
        return error.message
    absent = [module for module in known.modules if not _installed(module)]
    if not absent:
        return None
    remedy = f'; install: {known.install}' if known.install else ''
    return f'env {name!r} needs the Python package {" and ".join(absent)}, which is not installed{remedy}'


def check_task(name: str, task: str) -> None:
    """Raise EnvError 'task' unless the env of that name has the task."""
    known = kind(name)
    if not task or not (known.any_task or task in known.tasks):
        words = ', or any in words' if known.any_task else ''
        raise EnvError('task', f'env {name!r} has no task {task!r}; only {", ".join(known.tasks)}{words}')


def make(spec: EnvSpec, kinematics: Kinematics) -> World | LiveWorld:
    """Make the world that the spec names.

    Raises:
        EnvError: no such backend or task, something is not installed, or what the backend itself refuses.
    """
    known = kind(spec.backend)
    check_task(spec.backend, spec.task)
    lacking = missing(spec.backend)
    if lacking is not None:
        raise EnvError('missing', lacking)
    module, _, function = known.factory.partition(':')
    try:
        factory: Callable[[EnvSpec, Kinematics], World | LiveWorld] = getattr(
            importlib.import_module(module), function
        )
    except (ImportError, AttributeError) as error:
        raise EnvError(
            'missing', f'env {spec.backend!r} ({known.factory}) does not import: {error}'
        ) from error
    return factory(spec, kinematics)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except Exception:  # of `a.b` what it is in is imported, and that may raise anything
        return False


def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}
