# SPDX-License-Identifier: Apache-2.0
"""Imports point down only, and nothing but nodes/ needs ROS 2."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / 'openeta_ros'

# A folder may import from the folders below it, never from one beside or above it.
RANK = {
    'embodiment': 0,
    'control': 1,
    'observation': 1,
    'envs': 2,
    'episodes': 3,
    'code_policy': 4,
    'nodes': 5,
    'cli': 6,
}
# Used from above by whoever speaks to a policy; it imports nothing of this package.
ALONE = 'vector_policy'

ROS = ('rclpy', 'sensor_msgs', 'std_msgs', 'std_srvs', 'geometry_msgs', 'builtin_interfaces', 'rosgraph_msgs',
       'lifecycle_msgs', 'rcl_interfaces', 'action_msgs', 'diagnostic_msgs', 'openeta_msgs')  # fmt: skip

# What takes seconds to import, or is only installed where it is used.
HEAVY = ('torch', 'genesis', 'mujoco', 'pinocchio', 'av')

# Runs in a fresh interpreter: imports sys.argv[2:] with the packages of sys.argv[1] made unimportable.
IMPORT_WITHOUT = """
import importlib, sys
blocked = set(sys.argv[1].split(','))
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in blocked:
            raise ModuleNotFoundError(f'No module named {name!r} (made absent by the test)', name=name)
before = set(sys.modules)  # what the environment's own .pth files load into every interpreter
sys.meta_path.insert(0, Absent())
for name in sys.argv[2:]:
    importlib.import_module(name)
print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))
"""


def modules(folder: str) -> list[str]:
    paths = sorted((PACKAGE / folder).rglob('*.py'))
    names = ['.'.join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix('').parts)) for path in paths]
    return [name.removesuffix('.__init__') for name in names if not name.endswith('__main__')]


def folders() -> list[str]:
    return sorted(path.parent.name for path in PACKAGE.glob('*/__init__.py'))


def imported_names(path: Path) -> set[str]:
    """Every module that the file imports, at its top or inside a function, as an absolute name."""
    package = (PACKAGE.name, *path.parent.relative_to(PACKAGE).parts)
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = '.'.join((*base, *((node.module,) if node.module else ())))
            names.update((module, *(f'{module}.{alias.name}' for alias in node.names)))
    return names


def import_without(absent: tuple[str, ...], names: list[str]) -> set[str]:
    done = subprocess.run(
        [sys.executable, '-c', IMPORT_WITHOUT, ','.join(absent), *names], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_every_folder_has_its_place_in_the_order() -> None:
    assert set(folders()) <= {*RANK, ALONE}
    assert set(folders()) >= {
        'embodiment',
        'observation',
        'control',
        'envs',
        'episodes',
        'nodes',
        'cli',
        ALONE,
    }


@pytest.mark.parametrize('folder', folders())
def test_imports_point_down_only(folder: str) -> None:
    wrong = []
    for path in sorted((PACKAGE / folder).rglob('*.py')):
        for name in imported_names(path):
            top, _, rest = name.partition('.')
            there = rest.split('.')[0]
            if top != PACKAGE.name or there not in {*RANK, ALONE} or there == folder:
                continue
            if folder == ALONE or (there != ALONE and RANK[there] >= RANK[folder]):
                wrong.append(f'{path.relative_to(PACKAGE)} imports {name}')
    assert not wrong


@pytest.mark.parametrize('folder', [name for name in folders() if name != 'nodes'])
def test_a_folder_imports_where_ros_and_what_is_heavy_are_absent(folder: str) -> None:
    assert PACKAGE.name in import_without((*ROS, *HEAVY), modules(folder))


def test_vector_policy_needs_numpy_alone() -> None:
    names = [name for name in modules(ALONE) if name.split('.')[-1] not in ('manifest', 'serve')]
    loaded = import_without(('yaml',), names)
    assert {name for name in loaded if not name.startswith('_')} - set(sys.stdlib_module_names) == {
        'numpy',
        PACKAGE.name,
    }
