# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import importlib.util
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from openeta_ros.embodiment import load
from openeta_ros.envs import EnvError, EnvFacade, EnvSpec, registry

ADDED_ENV = registry.EnvKind('ours', 'nowhere:nothing', ('wave',), ('no_such_module',), 'pip install it')


def test_the_built_in_backends_are_listed() -> None:
    assert {'arm', 'genesis', 'mujoco'} <= set(registry.names())


def test_an_unknown_backend_is_refused_with_what_exists() -> None:
    with pytest.raises(EnvError, match=r"no env 'gazebo'; there are .*genesis.*mujoco") as caught:
        EnvFacade.from_spec(EnvSpec('gazebo', 'reach', load('light_arm')))
    assert caught.value.kind == 'backend'
    with pytest.raises(EnvError):
        registry.missing('gazebo')


def test_an_unknown_task_is_refused_with_what_exists() -> None:
    with pytest.raises(EnvError, match="no task 'juggle'; only reach, push_cube") as caught:
        EnvFacade.from_spec(EnvSpec('mujoco', 'juggle', load('light_arm')))
    assert caught.value.kind == 'task'


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(EnvError, match="no options; found 'speed'") as caught:
        EnvFacade.from_spec(EnvSpec('mujoco', 'reach', load('light_arm'), options={'speed': 2}))
    assert caught.value.kind == 'option'


def test_what_is_not_installed_is_said_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None if name == 'mujoco' else found(name))
    sentence = registry.missing('mujoco')
    assert sentence == (
        "env 'mujoco' needs the Python package mujoco, which is not installed; install: pip install mujoco"
    )
    with pytest.raises(EnvError) as caught:
        EnvFacade.from_spec(EnvSpec('mujoco', 'reach', load('light_arm')))
    assert caught.value.kind == 'missing'


def test_another_package_adds_an_env_by_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint('waver', 'test_env_registry:ADDED_ENV', registry.GROUP)
    monkeypatch.setattr(registry, 'entry_points', lambda group: [point])
    assert 'waver' in registry.names()
    assert registry.kind('waver').tasks == ('wave',)
    assert 'pip install it' in (registry.missing('waver') or '')


def test_an_env_whose_package_lacks_what_it_names_is_missing_and_not_a_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = registry.EnvKind('ours', 'json:nothing_there', ('wave',), ('no_such_module.inner',))
    monkeypatch.setitem(registry.BUILT_IN, 'waver', inner)
    assert 'no_such_module.inner, which is not installed' in (registry.missing('waver') or '')
    monkeypatch.setitem(registry.BUILT_IN, 'waver', dataclasses.replace(inner, modules=()))
    with pytest.raises(EnvError, match=r"env 'waver' \(json:nothing_there\) does not import") as caught:
        EnvFacade.from_spec(EnvSpec('waver', 'wave', load('light_arm')))
    assert caught.value.kind == 'missing'


@pytest.mark.parametrize('rows', [0, -1, 1.5, '7', True])
def test_a_budget_that_is_no_number_of_rows_is_refused_before_anything_is_made(rows: Any) -> None:
    with pytest.raises(EnvError, match=f'max_steps is {rows!r}') as caught:
        EnvSpec('mujoco', 'reach', load('light_arm'), max_steps=rows)
    assert caught.value.kind == 'option'


def test_a_broken_entry_point_is_missing_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint('broken', 'no_such_package.envs:ENV', registry.GROUP)
    monkeypatch.setattr(registry, 'entry_points', lambda group: [point])
    assert 'no_such_package' in (registry.missing('broken') or '')
