# SPDX-License-Identifier: Apache-2.0
"""`openeta envs`, `doctor` and `report`: what they list, and what they say where something is missing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from openeta_ros.cli import doctor
from openeta_ros.cli.main import VERBS, main
from openeta_ros.embodiment import available
from openeta_ros.envs import mujoco_pictures, registry

Usage = namedtuple('Usage', 'total used free')


def test_every_verb_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    for name in VERBS:
        with pytest.raises(SystemExit) as caught:
            main([name, '--help'])
        text = capsys.readouterr().out
        assert caught.value.code == 0 and 'example' in text and f'  openeta {name}' in text


def test_an_unknown_verb_is_refused_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(['dance'])
    text = capsys.readouterr().err
    assert caught.value.code == 2 and "'dance'" in text and len(text.splitlines()) == 1


def test_envs_lists_every_backend_with_its_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['envs']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.startswith('mujoco: ') and 'pick_cube' in line and line.endswith('; ready') for line in lines
    )
    assert lines[-1] == f'embodiments: {", ".join(available())}'


def test_envs_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = registry.EnvKind(
        'made up', 'nowhere:make', ('dance',), ('no_such_module',), 'pip install nowhere'
    )
    monkeypatch.setitem(registry.BUILT_IN, 'made_up', absent)
    assert main(['envs', '--json']) == 0
    rows = {row['env']: row for row in json.loads(capsys.readouterr().out)['envs']}
    assert rows['mujoco']['missing'] is None
    assert rows['made_up']['tasks'] == ['dance']
    assert (
        'no_such_module' in rows['made_up']['missing'] and 'pip install nowhere' in rows['made_up']['missing']
    )


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = [sys.executable, '-m', 'openeta_ros.cli', 'envs', '--json']
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[1]
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.wait(300) == 0
    assert process.stderr.read() == b''


def test_doctor_finds_nothing_missing_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['doctor', '--json']) == 0
    checks = {check['name']: check for check in json.loads(capsys.readouterr().out)}
    assert len(checks) == len(doctor.CHECKS)
    assert checks['Python']['status'] == checks['drawing']['status'] == 'ok'
    assert 'a picture was drawn' in checks['drawing']['found']
    assert all(check['remedy'] for check in checks.values() if check['status'] != 'ok')


def test_doctor_prints_one_line_per_check_and_fails_when_something_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, 'CHECKS', (doctor.python, doctor.drawing))
    monkeypatch.setattr(doctor, 'DRAW', 'raise RuntimeError("no display")')
    assert main(['doctor']) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith('ok      Python: 3.')
    assert lines[1].startswith('missing drawing: RuntimeError: no display (install libegl1')


def test_doctor_without_ros_leaves_the_local_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, 'ROS', 'import no_rclpy_here')
    check = doctor.ros()
    assert (
        check.status == 'warning' and 'no_rclpy_here' in check.found and '--transport local' in check.remedy
    )


def test_doctor_warns_of_a_small_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: Usage(64 * 2**20, 0, 2**20))
    assert (doctor.shared_memory().status, doctor.disk().status) == ('warning', 'warning')
    assert '--shm-size' in doctor.shared_memory().remedy


def test_doctor_warns_when_genesis_has_not_compiled_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    assert doctor.kernels().status == 'warning'
    (tmp_path / 'quadrants' / 'qdcache' / 'openeta_ros-genesis 1.4.5').mkdir(parents=True)
    assert doctor.kernels().status == 'ok'


def test_doctor_says_when_no_simulator_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, 'missing', lambda name: f'{name} needs everything')
    check = doctor.simulators()
    assert check.status == 'missing' and 'mujoco needs everything' in check.remedy
    # An arm that could be driven is no simulator.
    monkeypatch.setattr(registry, 'missing', lambda name: None if name == 'arm' else f'{name} needs a lot')
    assert doctor.simulators().status == 'missing'


def test_doctor_draws_as_the_simulator_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('MUJOCO_GL', 'osmosis')
    assert doctor.drawing().status == 'missing'
    monkeypatch.delenv('MUJOCO_GL')
    assert mujoco_pictures.drawing_way() == 'egl'
    monkeypatch.setattr(mujoco_pictures, '_has_library', lambda name: False)
    assert mujoco_pictures.drawing_way() == 'osmesa'


@pytest.mark.parametrize(
    ('text', 'words'),
    [('{bad', 'cannot be read: Invalid JSON'), ('{}', 'cannot be read: status: Field required')],
)
def test_a_report_of_what_is_no_result_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    (tmp_path / 'results.json').write_text(text)
    assert main(['report', str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1 and words in told
