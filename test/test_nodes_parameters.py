# SPDX-License-Identifier: Apache-2.0
"""A parameter is declared once: nodes, launch files and the graph that openeta starts all say the same."""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from openeta_ros.embodiment.resources import local_policy
from openeta_ros.episodes import EvalSettings
from openeta_ros.nodes import launching
from openeta_ros.nodes.graph import eval_graph
from openeta_ros.nodes.parameters import NODES, Parameter

LAUNCH = Path(__file__).parents[1] / 'launch'
EVERY = [
    pytest.param(parameter, id=f'{node}-{parameter.name}')
    for node, table in NODES.items()
    for parameter in table
]


@pytest.mark.parametrize('parameter', EVERY)
def test_every_parameter_is_described_and_its_default_is_in_range(parameter: Parameter) -> None:
    assert parameter.description.endswith('.') and parameter.description[0].isupper()
    if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool):
        assert parameter.minimum is not None and parameter.maximum is not None
        assert parameter.minimum <= parameter.default <= parameter.maximum


@pytest.mark.parametrize('file', sorted(LAUNCH.glob('*.launch.py')), ids=lambda file: file.name)
def test_launch_arguments_are_the_nodes_parameters(file: Path) -> None:
    nodes = runpy.run_path(str(file))['NODES']
    expected = {parameter.name: parameter for node in nodes for parameter in NODES[node]}
    arguments = {argument.name: argument for argument in launching.arguments(nodes)}
    assert arguments.pop('namespace') is launching.NAMESPACE
    assert arguments == expected


def test_nodes_that_share_a_parameter_mean_the_same() -> None:
    by_name: dict[str, set[Parameter]] = {}
    for table in NODES.values():
        for parameter in table:
            by_name.setdefault(parameter.name, set()).add(parameter)
    assert all(len(parameters) == 1 for parameters in by_name.values())


def test_the_defaults_are_those_of_the_settings() -> None:
    defaults = {parameter.name: parameter.default for parameter in NODES['eval']}
    settings = EvalSettings(env='e', task='t', embodiment='r', policy='p', output='/o')
    assert defaults['episodes'] == settings.episodes
    assert defaults['seed'] == settings.seed
    assert defaults['demonstration'] == settings.demonstration
    assert defaults['policy_timeout_s'] == settings.policy_timeout_s


def test_the_graph_hands_on_what_differs_from_the_defaults() -> None:
    settings = EvalSettings(
        env='mujoco', task='pick_cube', embodiment='light_arm', policy='a:1', output='/o', max_steps=7
    )
    env, policy, evaluation = eval_graph(settings)
    assert (env.name, policy.name, evaluation.name) == ('env', 'policy', 'eval')
    assert env.parameters == {'env': 'mujoco', 'embodiment': 'light_arm', 'max_steps': 7}
    assert policy.parameters == {'policy': 'a:1', 'embodiment': 'light_arm', 'policy_log': '/o/policy.log'}
    assert evaluation.parameters['output'] == '/o' and 'task' not in evaluation.parameters


def test_a_shipped_policy_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = local_policy('examples/zero_policy')
    assert shipped is not None and shipped.is_absolute() and (shipped / 'policy.yaml').is_file()
    (tmp_path / 'mine').mkdir()
    assert local_policy('mine') == tmp_path / 'mine'
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind('s')
        assert local_policy('s') == tmp_path / 's'
    os.mkfifo('pipe')  # whose reader would wait
    for other in ('127.0.0.1:5000', '', 'pipe', 'n' * 300, 'nul\0'):
        assert local_policy(other) is None


def test_starting_a_graph_imports_no_ros() -> None:
    code = (
        'import sys, openeta_ros.nodes.graph, openeta_ros.nodes.launching; assert "rclpy" not in sys.modules'
    )
    subprocess.run([sys.executable, '-c', code], check=True)
