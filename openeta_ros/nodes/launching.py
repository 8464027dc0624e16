# SPDX-License-Identifier: Apache-2.0
"""The launch files, made of the same tables as the nodes. `launch` itself is imported when a description is
made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from openeta_ros.nodes.graph import process_environment
from openeta_ros.nodes.parameters import ENABLED, ENV, HARDWARE, Parameter, Value, launch_arguments

NAMESPACE = Parameter('namespace', '', 'Namespace of all nodes: several graphs side by side need one each.')


def arguments(nodes: Sequence[str]) -> tuple[Parameter, ...]:
    """Return the arguments of a launch file of these nodes."""
    return (*launch_arguments(nodes), NAMESPACE)


def default_text(value: Value) -> str:
    """Return a default as launch writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def real_arguments(nodes: Sequence[str]) -> tuple[Parameter, ...]:
    """Return the arguments of a launch file of these nodes that drive an arm."""
    return tuple(argument for argument in arguments(nodes) if argument != ENV)


def description(nodes: Sequence[str], *, arm: bool = False) -> Any:
    """Return the LaunchDescription of these nodes. When eval is one of them, all end with it.

    With `arm`, the env is an arm, on the graph where its drivers are, and `mock` runs with `hardware:=mock`
    only.

    A launch whose evaluation was not carried out ends with a non-zero exit code.
    """
    from launch.actions import DeclareLaunchArgument, SetEnvironmentVariable

    from launch import LaunchDescription

    wanted = process_environment() | ({'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'} if arm else {})
    variables = {name: value for name, value in wanted.items() if name not in os.environ}
    return LaunchDescription(
        [
            *(
                DeclareLaunchArgument(
                    argument.name,
                    default_value=default_text(argument.default),
                    description=argument.description,
                    choices=list(argument.choices) if argument == HARDWARE else None,
                )
                for argument in (real_arguments if arm else arguments)(nodes)
            ),
            *(SetEnvironmentVariable(name, value) for name, value in variables.items()),
            *(_node(name, arm=arm) for name in nodes),
        ]
    )


def _node(name: str, *, arm: bool) -> Any:
    from launch.actions import OpaqueFunction
    from launch.conditions import IfCondition
    from launch.substitutions import EqualsSubstitution, LaunchConfiguration, OrSubstitution, TextSubstitution
    from launch_ros.actions import Node
    from launch_ros.parameter_descriptions import ParameterValue

    mock = EqualsSubstitution(LaunchConfiguration(HARDWARE.name), 'mock')
    special = {}
    if arm:  # a person enables a real arm
        enabled = OrSubstitution(LaunchConfiguration(ENABLED.name), mock)
        special = {ENV.name: TextSubstitution(text='arm'), ENABLED.name: enabled}
    return Node(
        package='openeta_ros',
        executable=f'{name}_node',
        name=name,
        namespace=LaunchConfiguration('namespace'),
        output='screen',
        parameters=[
            {
                parameter.name: ParameterValue(
                    special.get(parameter.name, LaunchConfiguration(parameter.name)),
                    value_type=type(parameter.default),
                )
                for parameter in launch_arguments([name])
            }
        ],
        condition=IfCondition(mock) if name == 'mock' else None,
        on_exit=[OpaqueFunction(function=_end)] if name == 'eval' else None,
    )


def _end(context: Any) -> list[Any]:
    """End the launch with eval; an error in here is what makes its exit code non-zero."""
    from launch.actions import Shutdown

    code = context.locals.event.returncode
    if code:
        raise RuntimeError(f'the evaluation was not carried out (exit code {code})')
    return [Shutdown(reason='the evaluation is done')]
