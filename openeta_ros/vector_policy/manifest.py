# SPDX-License-Identifier: Apache-2.0
"""policy.yaml: which class a policy directory serves. Every problem of a file is reported at once."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from openeta_ros.vector_policy.errors import ManifestError

API_VERSION = 1
FILENAME = 'policy.yaml'
MAX_BYTES = 1 << 20

_KEYS = ('api', 'policy', 'kwargs', 'requirements', 'benchmarks')
_NAME = '[A-Za-z_][A-Za-z0-9_]*'
_POLICY = re.compile(rf'{_NAME}(\.{_NAME})*:{_NAME}')
_MERGE_TAG = 'tag:yaml.org,2002:merge'
_MAX_YAML_ERROR_CHARS = 1000

# An excerpt, because aliases let a small file describe a value of any size.
_repr = reprlib.Repr()
_repr.maxlevel = 2
_repr.maxstring = _repr.maxother = _repr.maxlong = 60
_repr.maxlist = _repr.maxtuple = _repr.maxdict = _repr.maxset = 6
_excerpt = _repr.repr


@dataclass(frozen=True)
class Manifest:
    """A policy.yaml that is in order.

    Attributes:
        path: the file, absolute, symlinks kept.
        policy: 'module:Class', importable from the file's directory.
        kwargs: what the class is constructed with.
        requirements: path of a requirements file relative to the directory; nobody installs it here.
        benchmarks: names of the benchmarks the policy is meant for.
    """

    path: Path
    api: int
    policy: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    requirements: str | None = None
    benchmarks: tuple[str, ...] = ()

    @property
    def root(self) -> Path:
        return self.path.parent

    @property
    def module(self) -> str:
        return self.policy.partition(':')[0]

    @property
    def attribute(self) -> str:
        return self.policy.partition(':')[2]

    @property
    def requirements_path(self) -> Path | None:
        return None if self.requirements is None else self.root / self.requirements


def load(path: str | Path) -> Manifest:
    """Read and check a policy.yaml.

    Raises:
        ManifestError: whatever is wrong with it.
    """
    path = Path(path).absolute()
    try:
        with open(path, 'rb') as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode('utf-8')
    except (OSError, ValueError) as exc:
        raise ManifestError(str(path), [f'cannot be read: {exc}']) from exc
    if len(content) > MAX_BYTES:
        raise ManifestError(str(path), [f'is larger than {MAX_BYTES} bytes'])
    try:
        data = yaml.load(text, Loader=_Loader)
    except RecursionError as exc:
        raise ManifestError(str(path), ['is not valid YAML: nested too deeply']) from exc
    except Exception as exc:  # YAMLError, or what PyYAML lets out: ValueError of an impossible date
        reason = str(exc)
        if len(reason) > _MAX_YAML_ERROR_CHARS:
            reason = reason[:_MAX_YAML_ERROR_CHARS] + ' [...]'
        raise ManifestError(str(path), [f'is not valid YAML: {reason}']) from exc
    return validate(data, path)


def validate(data: Any, path: str | Path) -> Manifest:
    """Check what a policy.yaml at this path says.

    Raises:
        ManifestError: with every problem.
    """
    path = Path(path).absolute()
    if not isinstance(data, Mapping):
        raise ManifestError(str(path), [f'must be a mapping, not {type(data).__name__}'])
    problems: list[str] = []
    unknown = [key for key in data if key not in _KEYS]
    if unknown:
        names = ', '.join(_excerpt(key) for key in unknown)
        problems.append(f'unknown key(s) {names}; allowed: {", ".join(_KEYS)}')
    problems += _api_problems(data) + _policy_problems(data) + _kwargs_problems(data.get('kwargs'))
    problems += _requirements_problems(data.get('requirements'), path.parent)
    benchmarks = data.get('benchmarks')
    if benchmarks is not None and not (
        isinstance(benchmarks, list) and all(isinstance(name, str) and name for name in benchmarks)
    ):
        problems.append(f'benchmarks: must be a list of names, not {_excerpt(benchmarks)}')
    if problems:
        raise ManifestError(str(path), problems)
    return Manifest(
        path=path,
        api=data['api'],
        policy=data['policy'],
        kwargs=dict(data.get('kwargs') or {}),
        requirements=data.get('requirements'),
        benchmarks=tuple(benchmarks or ()),
    )


def _api_problems(data: Mapping[Any, Any]) -> list[str]:
    if 'api' not in data:
        return ['api: required']
    api = data['api']
    if type(api) is not int or api != API_VERSION:
        return [f'api: must be {API_VERSION}, not {_excerpt(api)}']
    return []


def _policy_problems(data: Mapping[Any, Any]) -> list[str]:
    if 'policy' not in data:
        return ['policy: required, as module:Class']
    policy = data['policy']
    if not isinstance(policy, str) or not _POLICY.fullmatch(policy):
        return [f'policy: must be module:Class, such as pkg.module:MyPolicy, not {_excerpt(policy)}']
    return []


def _kwargs_problems(kwargs: Any) -> list[str]:
    if kwargs is None:
        return []
    if not isinstance(kwargs, Mapping):
        return [f'kwargs: must be a mapping, not {type(kwargs).__name__}']
    wrong = [key for key in kwargs if not (isinstance(key, str) and key.isidentifier())]
    if wrong:
        return [f'kwargs: keys must be identifiers, not {", ".join(_excerpt(key) for key in wrong)}']
    return []


def _requirements_problems(requirements: Any, root: Path) -> list[str]:
    if requirements is None:
        return []
    if not isinstance(requirements, str) or not requirements:
        return [f'requirements: must be a path, not {_excerpt(requirements)}']
    quoted = _excerpt(requirements)
    if '\0' in requirements:
        return [f'requirements: {quoted} holds a NUL character']
    if requirements.startswith(('/', '~')):
        return [f'requirements: {quoted} must be relative to the repository root']
    try:
        resolved = (root / requirements).resolve()
        inside = resolved.is_relative_to(root.resolve())
        found = resolved.is_file()
    except (OSError, RuntimeError) as exc:  # a loop of symlinks is a RuntimeError before Python 3.13
        return [f'requirements: {quoted} cannot be resolved: {_excerpt(str(exc))}']
    if not inside:
        return [f'requirements: {quoted} leaves the repository']
    return [] if found else [f'requirements: {quoted} is not a file in the repository']


class _Loader(yaml.SafeLoader):
    """Safe YAML in which no mapping may give one key twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        # Here, and not when the mapping is built: by then merges have put their keys among its own.
        for key_node, _ in node.value:
            if key_node.tag == _MERGE_TAG or not isinstance(key_node, yaml.ScalarNode):
                continue
            key = self.construct_object(key_node)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    problem=f'key {key!r} is given twice',
                    problem_mark=key_node.start_mark,
                )
            seen.add(key)
        return node
