# SPDX-License-Identifier: Apache-2.0
"""docs/reference/graph.md says what there is: it is compared with the code and with running nodes."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from openeta_ros.nodes.launching import default_text
from openeta_ros.nodes.parameters import NODES, Parameter

ROOT = Path(__file__).parents[1]
PAGE = ROOT / 'docs/reference/graph.md'
EMBODIMENT = 'light_arm'

# What rclpy itself gives every node and every lifecycle node; the page names them once.
STANDARD = re.compile(
    r'/rosout|/parameter_events|.*/_action/.*|.*/transition_event|.*/get_type_description|.*/change_state|'
    r'.*/(get_state|get_available_states|get_available_transitions|get_transition_graph)|'
    r'.*/(set_parameters|set_parameters_atomically|list_parameters|describe_parameters|get_parameters|'
    r'get_parameter_types)'
)

Offer = tuple[str, str, str]  # kind, resolved name, type


@cache
def tables(section: str) -> list[list[tuple[str, ...]]]:
    """Return the tables below a heading: their rows (without head) as cells without backquotes."""
    text = re.split(r'^## ', PAGE.read_text(), flags=re.MULTILINE)
    body = next(part for part in text if part.startswith(f'{section}\n'))
    found = []
    for block in re.findall(r'(?:^\|.*\n)+', body, flags=re.MULTILINE):
        lines = block.splitlines()[2:]
        found.append([tuple(cell.strip() for cell in line.strip('|').split(' |')) for line in lines])
    return found


def parameter_row(parameter: Parameter) -> tuple[str, ...]:
    bounded = parameter.minimum is not None and parameter.maximum is not None
    bounds = (
        [
            int(bound) if float(bound).is_integer() else bound
            for bound in (parameter.minimum, parameter.maximum)
        ]
        if bounded
        else []
    )
    default = default_text(parameter.default)
    return (
        f'`{parameter.name}`',
        f'`{default}`' if default else '(empty)',
        ', '.join(parameter.choices) or ' to '.join(map(str, bounds)),
        parameter.description,
    )


@pytest.mark.parametrize('node', NODES)
def test_the_parameters_are_those_of_the_node(node: str) -> None:
    assert tables(node)[1] == [parameter_row(parameter) for parameter in NODES[node]]


def test_every_launch_file_is_listed_with_its_nodes() -> None:
    listed = {row[0].strip('`'): tuple(row[1].split(', ')) for row in tables('Launch files')[0]}
    files = {file.name: runpy.run_path(str(file))['NODES'] for file in (ROOT / 'launch').glob('*.launch.py')}
    assert listed == files


def test_the_environment_is_what_every_process_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    from openeta_ros.nodes.graph import graph_environment

    listed = {row[0].strip('`'): row[1].strip('`') for row in tables('Environment')[0]}
    for name in listed:
        monkeypatch.delenv(name, raising=False)

    before = set(os.environ)
    with graph_environment() as environment:
        added = set(environment) - before - {'AMENT_PREFIX_PATH', 'LD_LIBRARY_PATH', 'PYTHONUNBUFFERED'}
        assert added == set(listed)
        for name in ('MALLOC_MMAP_THRESHOLD_', 'MALLOC_TRIM_THRESHOLD_', 'ROS_AUTOMATIC_DISCOVERY_RANGE'):
            assert environment[name] == listed[name]


def listed_offers(node: str) -> set[Offer]:
    """Return what the page says of a node, with the names of the contract filled in."""
    from openeta_ros.embodiment import load

    embodiment = load(EMBODIMENT)
    commanded = (('<controller>', ['arm_controller']), ('<gripper>', ['gripper']))
    offers = set()
    for kind, name, message_type, _ in tables(node)[0]:
        pattern = name.strip('`').replace('~', f'/{node}')
        pattern = pattern if pattern.startswith('/') else f'/{pattern}'
        names = [pattern]
        named = (('<camera>', embodiment.cameras), ('<arm>', embodiment.arms), *commanded)
        for placeholder, values in named:
            names = [name.replace(placeholder, value) for name in names for value in values]
        offers |= {(kind, name, message_type) for name in names}
    return offers


@pytest.fixture(scope='module')
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Run every node, and an evaluation; yield a node that looks at them."""
    pytest.importorskip('rclpy')
    from contracts import QUICK_ARM
    from ros_graph import environment, node_process, spinning, wait_until

    from openeta_msgs.action import Evaluate
    from openeta_ros.nodes.remote import PatientActionClient

    logs = tmp_path_factory.mktemp('graph')
    robot = {'env': 'mujoco', 'task': 'reach', 'embodiment': QUICK_ARM}  # with the names of EMBODIMENT
    waiting = {**robot, 'autostart': False, 'output': str(logs / 'out')}
    with (
        environment(),
        node_process('env', logs / 'env.log', **robot),
        node_process('policy', logs / 'policy.log', embodiment=QUICK_ARM),
        node_process('eval', logs / 'eval.log', **waiting),
        node_process('recorder', logs / 'recorder.log', embodiment=QUICK_ARM),
        node_process('replay', logs / 'replay.log'),
        node_process('bridge', logs / 'bridge.log', embodiment=QUICK_ARM),
        node_process('code_policy', logs / 'code_policy.log', embodiment=QUICK_ARM),
        node_process('watch', logs / 'watch.log', json=True),
        spinning('tester') as (node, _),
    ):
        client = PatientActionClient(node, Evaluate, 'eval/evaluate')
        assert client.wait_for_server(120.0)
        begun: list[object] = []  # what it has of env and policy then it keeps
        client.send_goal_async(Evaluate.Goal(episodes=1), begun.append)
        wait_until(lambda: begun, 240.0)
        yield node


@pytest.mark.parametrize('name', [name for name in NODES if name != 'mock'])
def test_the_names_are_those_of_the_running_node(running: object, name: str) -> None:
    assert_offers(running, name)


def test_the_names_are_those_of_the_mock(tmp_path: Path) -> None:
    from contracts import commanded_arm
    from ros_graph import environment, node_process, spinning

    robot = str(commanded_arm(tmp_path).path)
    with (
        environment(),  # of its own: it publishes what the env publishes
        node_process('mock', tmp_path / 'log', embodiment=robot),
        spinning('tester') as (node, _),
    ):
        assert_offers(node, 'mock')


def assert_offers(node: object, name: str) -> None:
    """Assert that a running node offers what the page says, as soon as all of it is there and known."""
    from rclpy.node import Node
    from ros_graph import wait_until

    assert isinstance(node, Node)
    wait_until(lambda: name in node.get_node_names(), 120.0)
    with contextlib.suppress(AssertionError):
        wait_until(lambda: offers(node, name) == listed_offers(name), 120.0)
    assert offers(node, name) == listed_offers(name)


def offers(node: object, name: str) -> set[Offer]:
    """Return what a running node offers."""
    from rclpy.action import get_action_server_names_and_types_by_node
    from rclpy.node import Node

    assert isinstance(node, Node)
    found = {
        'publishes': node.get_publisher_names_and_types_by_node(name, '/'),
        'listens': node.get_subscriber_names_and_types_by_node(name, '/'),
        'service': node.get_service_names_and_types_by_node(name, '/'),
        'action': get_action_server_names_and_types_by_node(node, name, '/'),
    }
    return {
        (kind, topic, message_type)
        for kind, entries in found.items()
        for topic, types in entries
        for message_type in types
        if not STANDARD.fullmatch(topic)
    }
