# SPDX-License-Identifier: Apache-2.0
"""A program that only drives a policy needs NumPy and the standard library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
before = set(sys.modules)
import openeta_ros.vector_policy.{module}
loaded = set(sys.modules) - before
files = [name for name in loaded if getattr(sys.modules[name], '__file__', None)]
print(*({{name.split('.')[0] for name in files}} - sys.stdlib_module_names))
"""


@pytest.mark.parametrize('module', ['client', 'process', 'wire'])
def test_driving_a_policy_loads_numpy_and_the_standard_library_only(module):
    command = [sys.executable, '-c', PROGRAM.format(module=module)]
    loaded = subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert set(loaded.stdout.split()) == {'numpy', 'openeta_ros'}
