# SPDX-License-Identifier: Apache-2.0
"""Contracts for tests: a shipped one with changes, and one of two arms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from openeta_ros.embodiment import Embodiment, EmbodimentError, load
from openeta_ros.envs import EnvError, EnvFacade, EnvSpec

# The light arm with small pictures, for commands.
QUICK_ARM = str(Path(__file__).parent / 'data/quick_arm.yaml')


def contract(name: str) -> dict[str, Any]:
    """Return a shipped contract as plain data, to be changed."""
    data = yaml.safe_load(load(name).path.read_text(encoding='utf-8'))
    assert isinstance(data, dict)
    return data


def small_pictures(data: dict[str, Any]) -> dict[str, Any]:
    """Return a contract whose pictures take a third of the time to draw: for tests that only need some."""
    for camera in data['cameras'].values():
        camera['size'] = [60, 80]
    return data


def described(embodiment: Embodiment) -> None:
    """Skip the test when the robot's description comes with a package that is not installed."""
    try:
        embodiment.description_file()
    except EmbodimentError as error:
        pytest.skip(str(error))


def written(data: dict[str, Any], folder: Path) -> Embodiment:
    """Return the contract of plain data, by way of a file."""
    path = folder / 'contract.yaml'
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding='utf-8')
    return load(path)


def light_arm_with(folder: Path, *changes: tuple[str, str]) -> Embodiment:
    """Return the light arm's contract, changed as a text: each first by its second."""
    text = load('light_arm').path.read_text(encoding='utf-8')
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / 'changed.yaml'
    path.write_text(text, encoding='utf-8')
    return load(path)


def refused_by(env: str, embodiment: Embodiment) -> EnvError:
    """Return why an env refuses a contract."""
    with pytest.raises(EnvError) as caught:
        EnvFacade.from_spec(EnvSpec(env, 'pick_cube', embodiment))
    return caught.value


def two_arms(folder: Path) -> Embodiment:
    """Return the contract of two light arms, `left` and `right`, side by side on one frame."""
    data = contract('light_arm')
    arm = data['arms'].pop('arm')
    urdf = load('light_arm').description_file().read_text(encoding='utf-8')
    first, start, end = urdf.index('<material'), urdf.index('<link name="base">'), urdf.index('</robot>')
    links = [urdf[first:start], '<link name="stand"/>']
    for side, y in (('left', 0.4), ('right', -0.4)):
        body = urdf[start:end]
        for tag in ('link name', 'joint name', 'parent link', 'child link', 'mimic joint'):
            body = body.replace(f'{tag}="', f'{tag}="{side}_')
        links.append(
            f'<joint name="{side}_mount" type="fixed"><parent link="stand"/><child link="{side}_base"/>'
            f'<origin xyz="0 {y} 0" rpy="0 0 0"/></joint>{body}'
        )
        data['arms'][side] = {
            **arm,
            'joints': [f'{side}_{joint}' for joint in arm['joints']],
            'gripper': {
                **arm['gripper'],
                'joint': f'{side}_finger_left',
                'mimics': {f'{side}_finger_right': 1.0},
            },
            'base_frame': f'{side}_base',
            'tool_frame': f'{side}_hand',
        }
    (folder / 'pair.urdf').write_text(f'<robot name="pair">{"".join(links)}</robot>', encoding='utf-8')
    data['description'] = {'file': 'pair.urdf'}
    del data['simulation']
    return written(data, folder)


def commanded_arm(folder: Path, **changes: Any) -> Embodiment:
    """Return the light arm as a real one would be: a trajectory controller, and a gripper of its own."""
    data = small_pictures(contract('light_arm'))
    arm = data['arms']['arm']
    arm['limits']['acceleration'] = [8.0] * 6
    arm['command'] = {'interface': 'joint_trajectory', 'topic': 'arm_controller/joint_trajectory'}
    arm['gripper']['command'] = {'interface': 'forward_position', 'topic': 'gripper/commands'}
    return written({**data, **changes}, folder)
