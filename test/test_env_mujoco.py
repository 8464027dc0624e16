# SPDX-License-Identifier: Apache-2.0
"""MuJoCo in particular: which robots it takes, how it draws, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from contracts import light_arm_with, refused_by

from openeta_ros.embodiment import load
from openeta_ros.envs import EnvError, EnvFacade, EnvSpec
from openeta_ros.envs.light_meshes import with_light_meshes

CONFIG = Path(__file__).parents[1] / 'config'


def test_the_same_robot_as_urdf_picks_the_cube_as_well(tmp_path: Path) -> None:
    embodiment = light_arm_with(tmp_path, ('light_arm/light_arm.xml', 'light_arm/light_arm.urdf'))
    with EnvFacade.from_spec(EnvSpec('mujoco', 'pick_cube', embodiment)) as env:
        env.reset(0)
        assert env.chunk_step(env.expert())[-1].terminated


def test_a_camera_that_the_scene_lacks_is_named(tmp_path: Path) -> None:
    error = refused_by('mujoco', light_arm_with(tmp_path, ('\n  top: {', '\n  wrist: {')))
    assert error.kind == 'embodiment'
    assert 'no camera wrist; only front, top' in error.message


def test_a_robot_without_gains_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    text = (CONFIG / 'embodiments' / 'light_arm.yaml').read_text()
    (tmp_path / 'weak.yaml').write_text(text[: text.index('  gains:')])
    error = refused_by('mujoco', load(tmp_path / 'weak.yaml'))
    assert error.kind == 'embodiment'
    assert 'simulation.gains lacks' in error.message and 'finger_right' in error.message


def test_a_model_that_does_not_load_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / 'broken.xml').write_text('<mujoco><worldbody><body></mujoco>')
    embodiment = light_arm_with(
        tmp_path, ('package://openeta_ros/config/robots/light_arm/light_arm.xml', 'broken.xml')
    )
    error = refused_by('mujoco', embodiment)
    assert error.kind == 'model'
    assert 'broken.xml' in error.message


def test_an_unknown_way_of_drawing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('MUJOCO_GL', 'crayons')
    error = refused_by('mujoco', load('light_arm'))
    assert error.kind == 'graphics'
    assert 'crayons' in error.message


def test_a_turned_camera_delivers_an_upright_picture(tmp_path: Path) -> None:
    turned = light_arm_with(
        tmp_path, ('topic: camera/top/image_raw,', 'topic: camera/top/image_raw, rotate: 90,')
    )
    with (
        EnvFacade.from_spec(EnvSpec('mujoco', 'reach', load('light_arm'))) as straight,
        EnvFacade.from_spec(EnvSpec('mujoco', 'reach', turned)) as env,
    ):
        expected = straight.reset(0)['frames_top']
        np.testing.assert_array_equal(env.reset(0)['frames_top'], expected)
        assert env.sensors.pictures['top'].shape == (320, 240, 3)


def test_a_simulation_that_diverges_is_an_error_and_does_not_begin_anew_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes MUJOCO_LOG.TXT where it is
    wild = light_arm_with(tmp_path, ('kp: 4000, kv: 250, force: 80', 'kp: 1.0e+14, kv: 1, force: 1.0e+14'))
    with EnvFacade.from_spec(EnvSpec('mujoco', 'reach', wild)) as env:
        with pytest.raises(
            EnvError, match=r'mujoco .* diverged at shoulder_yaw.*simulation section'
        ) as caught:
            env.reset(0)
            away = wild.home_qpos
            away[0] += 0.1
            env.step(away)
        assert caught.value.kind == 'physics'


def test_where_lighter_meshes_cannot_be_kept_the_full_ones_are_drawn(tmp_path: Path) -> None:
    trimesh = pytest.importorskip('trimesh')
    pytest.importorskip('fast_simplification')
    trimesh.creation.icosphere(3).export(tmp_path / 'ball.obj')
    model = tmp_path / 'model.xml'
    model.write_text("""<mujoco><asset><mesh name="ball" file="ball.obj"/></asset><worldbody><body>
        <geom type="mesh" mesh="ball" contype="0" conaffinity="0"/></body></worldbody></mujoco>""")
    in_the_way = tmp_path / 'cache'
    in_the_way.write_text('no folder')
    assert f'file="{tmp_path / "ball.obj"}"' in with_light_meshes(model, in_the_way / 'meshes')
    assert 'ball-' in with_light_meshes(model, tmp_path / 'meshes')


ENDED_WHILE_DRAWING_BEGINS = """
import mujoco
from openeta_ros.embodiment import load
from openeta_ros.envs import EnvFacade, EnvSpec

class Signalled:
    def __init__(self, *arguments):
        raise SystemExit(7)

mujoco.MjrContext = Signalled
EnvFacade.from_spec(EnvSpec(backend='mujoco', task='reach', embodiment=load('light_arm')))
"""


def test_an_end_while_the_drawing_context_is_made_is_quiet() -> None:
    ended = subprocess.run(
        [sys.executable, '-c', ENDED_WHILE_DRAWING_BEGINS], capture_output=True, text=True, timeout=240
    )
    assert ended.returncode == 7 and ended.stderr == ''
