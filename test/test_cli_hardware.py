# SPDX-License-Identifier: Apache-2.0
"""`openeta eval --env arm`: what goes with it, what does not, and which processes are started where."""

from __future__ import annotations

import os

import pytest

from openeta_ros.cli.main import main
from openeta_ros.episodes import EvalSettings, SettingsError
from openeta_ros.nodes.graph import eval_graph, shell_environment

pytest.importorskip('rclpy')

ARM = {'env': 'arm', 'task': 'pick_cube', 'embodiment': 'franka', 'policy': '/p', 'output': '/o'}


def test_a_mock_is_started_first_and_has_the_contract_task_and_seed_of_the_evaluation() -> None:
    mock, *others = eval_graph(EvalSettings(**ARM, hardware='mock', seed=7))
    assert mock.name == 'mock' and mock.parameters == {'embodiment': 'franka', 'seed': 7}
    assert [node.name for node in others] == ['env', 'policy', 'eval']
    assert others[-1].parameters['hardware'] == 'mock'


def test_of_a_real_arm_nothing_is_started_but_the_evaluation() -> None:
    assert [node.name for node in eval_graph(EvalSettings(**ARM, hardware='real'))] == [
        'env',
        'policy',
        'eval',
    ]


def test_a_real_arm_is_on_the_graph_of_its_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('ROS_DOMAIN_ID', 'ROS_AUTOMATIC_DISCOVERY_RANGE'):
        monkeypatch.setitem(os.environ, name, '')
        del os.environ[name]
    environment = shell_environment()
    assert (environment['ROS_DOMAIN_ID'], environment['ROS_AUTOMATIC_DISCOVERY_RANGE']) == ('0', 'SUBNET')
    os.environ['ROS_DOMAIN_ID'] = '42'
    assert shell_environment()['ROS_DOMAIN_ID'] == '42'


@pytest.mark.parametrize(
    ('changes', 'sentence'),
    [
        ({'hardware': 'mock', 'transport': 'local'}, "env 'arm' is driven over ROS 2: leave out --transport"),
        ({'hardware': 'mock', 'env': 'mujoco'}, "hardware is of env 'arm'; env 'mujoco' has none"),
        ({'hardware': 'wooden'}, "hardware 'wooden' is not one of real, mock"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        EvalSettings(**{**ARM, **changes})


def test_the_command_says_so_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['eval', '--env', 'mujoco', '--hardware', 'mock']) == 2
    assert capsys.readouterr().err == "openeta eval: hardware is of env 'arm'; env 'mujoco' has none\n"


def test_what_concerns_an_arm_alone_reaches_its_env() -> None:
    settings = EvalSettings(**ARM, hardware='real')
    env = eval_graph(settings, {'enabled': True, 'speed': 0.1, 'dry_run': True})[0]
    assert env.parameters == {
        'env': 'arm',
        'embodiment': 'franka',
        'enabled': True,
        'speed': 0.1,
        'dry_run': True,
    }
    assert 'enabled' not in eval_graph(settings)[0].parameters


@pytest.mark.parametrize(
    ('arguments', 'sentence'),
    [
        (['--env', 'mujoco', '--dry-run'], '--enable, --speed and --dry-run are for --env arm'),
        (['--env', 'arm', '--embodiment', 'franka', '--speed', '3'], '--speed must be from 0.01 to 1, not 3'),
    ],
)
def test_what_concerns_an_arm_alone_is_checked(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert main(['eval', *arguments]) == 2
    assert capsys.readouterr().err == f'openeta eval: {sentence}\n'
