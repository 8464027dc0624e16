# SPDX-License-Identifier: Apache-2.0
"""What the package needs is written down once: setup.py, package.xml and the constraints agree."""

from __future__ import annotations

import ast
import re
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]

# Where a Python package has a name of its own in a ROS 2 distribution.
ROSDEP = {
    'numpy': 'python3-numpy',
    'pyyaml': 'python3-yaml',
    'pydantic': 'python3-pydantic',
    'rich': 'python3-rich',
    'opencv-python': 'python3-opencv',
    'pin': 'pinocchio',
}


def requirements(keyword: str) -> list[Requirement]:
    """The requirement strings of setup.py's install_requires or extras_require."""
    for node in ast.walk(ast.parse((ROOT / 'setup.py').read_text())):
        if isinstance(node, ast.keyword) and node.arg == keyword:
            value = ast.literal_eval(node.value)
            texts = value if isinstance(value, list) else [text for group in value.values() for text in group]
            return [Requirement(text) for text in texts]
    raise AssertionError(f'setup.py has no {keyword}')


def package_xml(path: Path, tag: str) -> set[str]:
    return {element.text or '' for element in ElementTree.parse(path).getroot().iter(tag)}


def constraints() -> list[Requirement]:
    lines = (ROOT / 'environment/constraints.txt').read_text().splitlines()
    return [Requirement(text) for line in lines if (text := line.split('#')[0].strip())]


def test_package_xml_names_what_setup_py_requires() -> None:
    declared = package_xml(ROOT / 'package.xml', 'exec_depend') | package_xml(ROOT / 'package.xml', 'pip')
    required = {
        ROSDEP.get(requirement.name, requirement.name) for requirement in requirements('install_requires')
    }
    assert required <= declared
    python_keys = {name for name in declared if name.startswith('python3-')} | package_xml(
        ROOT / 'package.xml', 'pip'
    )
    assert python_keys <= required, 'package.xml names a Python package that setup.py does not require'


def test_the_ros_packages_imported_are_declared() -> None:
    imported = set()
    for path in (ROOT / 'openeta_ros').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported.update(alias.name.split('.')[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add((node.module or '').split('.')[0])
    ros = {name for name in imported if name == 'rclpy' or re.fullmatch(r'\w+_(msgs|srvs|interfaces)', name)}
    assert 'rclpy' in ros
    assert ros <= package_xml(ROOT / 'package.xml', 'exec_depend')


@pytest.mark.parametrize(
    'requirement', requirements('install_requires') + requirements('extras_require'), ids=str
)
def test_the_environment_holds_what_setup_py_requires(requirement: Requirement) -> None:
    assert requirement.specifier.contains(version(requirement.name), prereleases=True)


def test_constraints_and_setup_py_can_be_met_together() -> None:
    held = {requirement.name: requirement.specifier for requirement in constraints()}
    for requirement in requirements('install_requires') + requirements('extras_require'):
        if requirement.name in held:
            assert held[requirement.name].contains(version(requirement.name))


def test_both_packages_carry_one_version_and_one_maintainer() -> None:
    ours, messages = ROOT / 'package.xml', ROOT / 'openeta_msgs/package.xml'
    for tag in ('version', 'maintainer', 'license'):
        assert package_xml(ours, tag) == package_xml(messages, tag)
    assert package_xml(ours, 'version') == {version('openeta_ros')}
