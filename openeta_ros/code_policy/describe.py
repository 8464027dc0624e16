# SPDX-License-Identifier: Apache-2.0
"""The descriptor: all that a snippet can rely on, as JSON. It is what a model is shown, made from what is."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from openeta_ros.code_policy import preflight, tools
from openeta_ros.control.limits import UNLIMITED
from openeta_ros.control.rows import POSE_COLUMNS, labels

if TYPE_CHECKING:
    from openeta_ros.code_policy.api import CodePolicyApi

CONVENTIONS = (
    'Lengths are metres, angles radians, times seconds; frames are the base frame of the arm.',
    'Quaternions are qw qx qy qz. A tool that points straight down, turned by yaw about the vertical, is '
    '[0, cos(yaw / 2), sin(yaw / 2), 0]; its fingers open along y at yaw 0.',
    'A gripper is 1 open and 0 closed. Pictures are (height, width, 3) uint8 RGB.',
    'Actions are absolute targets; a row lasts 1 / rate_hz seconds. All rows of a call are checked before '
    'any of them moves. A call that is refused raises ActionError and moves nothing.',
    'Calls that move return steps: .observation, .reward, .terminated, .truncated, .info, .done. After a '
    'step that is done only api.reset moves again. Of chunk_step only the last step has pictures.',
)
GLOBALS = {
    'api': 'the object whose methods these are',
    'np': 'NumPy',
    'policy_context': 'what the snippet was written from',
    'ActionError': 'rows were refused; .details has action_kind, row, joint',
    'EnvError': 'the env cannot go on; .details has env_kind',
    'ToolError': 'a tool could not do it',
    'RESULT': 'set this to a value to hand it back (numbers, texts, arrays, lists, dicts)',
}


def describe(api: CodePolicyApi) -> dict[str, Any]:
    """Return the descriptor of an api, in types that JSON has."""
    return {
        'name': 'CodePolicyApi',
        'env': dict(api.env.descriptor()),
        'methods': methods(type(api)),
        'tools': {name: tools.described(tool) for name, tool in api.tools.items()},
        'globals': GLOBALS,
        'imports': [name for name in preflight.ALLOWED_IMPORTS if not name.startswith('_')],
        'conventions': list(CONVENTIONS),
        'observation': _observation(api),
        'actions': _actions(api),
        'arms': _arms(api),
        'budgets': api.meter.budgets.to_dict(),
        'used': dict(api.meter.used),
        'calls': len(api.trace.calls),
    }


def methods(api: type[CodePolicyApi]) -> dict[str, dict[str, str]]:
    """Return the signature and the words of each method that a snippet may call."""
    from openeta_ros.code_policy.api import METHODS

    told = {}
    for name in METHODS:
        method = getattr(api, name)
        signature = inspect.signature(method)
        own = signature.replace(
            parameters=[
                parameter.replace(annotation=inspect.Parameter.empty)
                for parameter in list(signature.parameters.values())[1:]
            ],
            return_annotation=inspect.Signature.empty,
        )
        told[name] = {'signature': f'api.{name}{own}', 'doc': ' '.join((method.__doc__ or '').split())}
    return told


def _observation(api: CodePolicyApi) -> dict[str, Any]:
    embodiment = api.embodiment
    told: dict[str, Any] = {
        f'frames_{name}': {
            'dtype': 'uint8',
            'shape': [*camera.size, 3] if camera.size else None,
            'meaning': f'picture of camera {name}, RGB',
        }
        for name, camera in embodiment.cameras.items()
    }
    for name, camera in embodiment.cameras.items():
        if camera.depth is not None:
            shape = list(camera.size) if camera.size else None
            meaning = f'depth of camera {name}, m'
            told[f'depth_{name}'] = {'dtype': 'float32', 'shape': shape, 'meaning': meaning}
    columns = labels(embodiment, 'qpos')
    told['qpos'] = {'dtype': 'float64', 'shape': [len(columns)], 'columns': columns}
    if embodiment.endpose.source != 'none':
        columns = labels(embodiment, 'ee')
        told['endpose'] = {'dtype': 'float64', 'shape': [len(columns)], 'columns': columns}
    return told


def _actions(api: CodePolicyApi) -> dict[str, Any]:
    limits, embodiment = api.mover.pipeline.limits, api.embodiment
    units = iter(api.kinematics.units)
    qpos: list[dict[str, Any]] = []
    for name, arm in embodiment.arms.items():
        for joint in arm.joints:
            qpos.append({'name': joint, 'arm': name, 'unit': next(units)})
        if arm.gripper is not None:
            qpos.append({'name': arm.gripper.joint, 'arm': name, 'unit': '0 closed to 1 open'})
    for column, entry in enumerate(qpos):
        entry['low'], entry['high'] = _finite(limits.low[column]), _finite(limits.high[column])
        entry['largest_step'] = _finite(limits.largest_step[column])
        entry['largest_change_of_step'] = _finite(limits.largest_change[column])
    safety = embodiment.safety
    return {
        'rate_hz': float(embodiment.rate_hz),
        'qpos': qpos,
        'ee': {
            'columns': labels(embodiment, 'ee'),
            'units': ['m', 'm', 'm', *['1'] * 4, '0 closed to 1 open'],
        },
        'on_limit': safety.on_limit,
        'workspace': (
            None
            if safety.workspace is None
            else {'min': list(safety.workspace.min), 'max': list(safety.workspace.max)}
        ),
        'table_z_m': safety.table_z_m,
    }


def _arms(api: CodePolicyApi) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, arm in api.embodiment.arms.items():
        joints = np.array(arm.home[: len(arm.joints)], dtype=np.float64)
        pose = api.kinematics.forward(name, joints)
        told[name] = {
            'base_frame': arm.base_frame,
            'tool_frame': arm.tool_frame,
            'home': list(arm.home),
            'home_pose': dict(zip(POSE_COLUMNS, np.round(pose, 6).tolist(), strict=True)),
            'gripper': arm.gripper is not None,
        }
    return told


def _finite(value: Any) -> float | None:
    """Return a limit, or None where there is none."""
    return float(value) if abs(value) < UNLIMITED else None
