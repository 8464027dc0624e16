# SPDX-License-Identifier: Apache-2.0
"""Genesis in particular: one set of kernels for all tasks, silence, its light meshes, and what it refuses."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import mujoco
import numpy as np
import pytest
from contracts import QUICK_ARM, contract, light_arm_with, refused_by, small_pictures, written
from test_env_conformance import episode_digest

from openeta_ros.embodiment import load
from openeta_ros.envs import EnvFacade, EnvSpec, registry
from openeta_ros.envs.light_meshes import with_light_meshes

pytestmark = [
    pytest.mark.skipif(registry.missing('genesis') is not None, reason='Genesis is not installed'),
    pytest.mark.usefixtures('genesis_kernels'),
    pytest.mark.timeout(1800),
]

CONFIG = Path(__file__).parents[1] / 'config'


def points(model: mujoco.MjModel, geom: int) -> np.ndarray:
    """Return the vertices (N, 3) of a geom's mesh, in the frame of its body."""
    mesh = model.mesh(model.geom_dataid[geom])
    start, count = mesh.vertadr[0], mesh.vertnum[0]
    rotation = np.empty(9)
    mujoco.mju_quat2Mat(rotation, model.geom_quat[geom])
    return model.mesh_vert[start : start + count] @ rotation.reshape(3, 3).T + model.geom_pos[geom]


# Prints what was seen of the first task, and how many kernels were stored after each: the first may compile,
# the others must not. Its stdout is exchanged, as in a notebook: Genesis would print a line about that.
TASKS_ON_A_THREAD = """
import io, sys, threading
from contextlib import redirect_stdout
from pathlib import Path
from openeta_ros.embodiment import load
from openeta_ros.envs import EnvFacade, EnvSpec
from test_env_conformance import episode_digest

def work():
    panda, light = sys.argv[1:]
    for robot, task in ((panda, 'pick_cube'), (panda, 'reach'), (light, 'stack_cubes')):
        with EnvFacade.from_spec(EnvSpec('genesis', task, load(robot))) as env:
            if not lines:
                lines.append(episode_digest(env))
            env.reset(0)
            solved = env.chunk_step(env.expert())[-1].terminated
            import quadrants
            folder = quadrants.lang.impl.get_runtime().prog.config().offline_cache_file_path
            lines.append(f'{solved} {len(list(Path(folder).rglob("*.qdc")))}')

lines = []
hook = sys.excepthook
with redirect_stdout(io.StringIO()) as said:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
assert said.getvalue() == ''
assert sys.excepthook is hook
print(*lines, sep='\\n')
"""


@pytest.mark.slow
def test_another_process_sees_the_same_and_runs_all_tasks_and_robots_silently_with_one_set_of_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv('QD_ENABLE_PYBUF', raising=False)  # a test before this one may have set it
    panda = written(small_pictures(contract('franka_genesis')), tmp_path)
    command = [sys.executable, '-c', TASKS_ON_A_THREAD, str(panda.path), QUICK_ARM]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)

    there = run()
    if there.stderr:  # the first on this machine: it compiled, and said so
        there = run()
    assert there.stderr == ''
    digest, *lines = there.stdout.splitlines()
    with EnvFacade.from_spec(EnvSpec('genesis', 'pick_cube', panda)) as env:
        assert episode_digest(env) == digest  # bit for bit
    solved, kernels = zip(*(line.split() for line in lines), strict=True)
    assert solved == ('True',) * 3
    assert len(set(kernels)) == 1 and int(kernels[0]) > 0


@pytest.mark.slow
def test_the_same_robot_as_urdf_picks_the_cube_as_well(tmp_path: Path) -> None:
    urdf = ('light_arm/light_arm.xml', 'light_arm/light_arm.urdf')
    embodiment = light_arm_with(tmp_path, urdf, ('size: [240, 320]', 'size: [60, 80]'))
    with EnvFacade.from_spec(EnvSpec('genesis', 'pick_cube', embodiment)) as env:
        env.reset(0)
        assert env.chunk_step(env.expert())[-1].terminated


@pytest.mark.slow
def test_two_envs_at_once_do_not_disturb_each_other() -> None:
    with (
        EnvFacade.from_spec(EnvSpec('genesis', 'pick_cube', load(QUICK_ARM))) as one,
        EnvFacade.from_spec(EnvSpec('genesis', 'reach', load(QUICK_ARM))) as other,
    ):
        before = one.reset(0)['frames_front']
        assert (other.reset(0)['frames_front'] != before).any()
        np.testing.assert_array_equal(one.reset(0)['frames_front'], before)


@pytest.mark.slow
def test_a_robot_without_gains_or_an_unreadable_model_is_refused(tmp_path: Path) -> None:
    text = (CONFIG / 'embodiments' / 'light_arm.yaml').read_text()
    (tmp_path / 'weak.yaml').write_text(text[: text.index('  gains:')])
    error = refused_by('genesis', load(tmp_path / 'weak.yaml'))
    assert error.kind == 'embodiment'
    assert 'simulation.gains lacks' in error.message and 'finger_right' in error.message

    (tmp_path / 'broken.xml').write_text('<mujoco><worldbody><body></mujoco>')
    model = 'package://openeta_ros/config/robots/light_arm/light_arm.xml'
    error = refused_by('genesis', light_arm_with(tmp_path, (model, 'broken.xml')))
    assert error.kind == 'model'
    assert 'broken.xml' in error.message


def test_a_camera_that_the_scene_lacks_is_named(tmp_path: Path) -> None:
    error = refused_by('genesis', light_arm_with(tmp_path, ('\n  top: {', '\n  wrist: {')))
    assert error.kind == 'embodiment'
    assert 'no camera wrist; it has front, top' in error.message


def test_no_way_to_draw_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f'{name}: cannot open shared object file')

    monkeypatch.delenv('PYOPENGL_PLATFORM', raising=False)
    monkeypatch.setattr(ctypes, 'CDLL', absent)
    error = refused_by('genesis', load('light_arm'))
    assert error.kind == 'graphics'
    assert 'apt install libegl1' in error.message

    monkeypatch.setenv('PYOPENGL_PLATFORM', 'directx')
    assert (
        "PYOPENGL_PLATFORM is 'directx'; it may be 'egl' or 'osmesa'"
        in refused_by('genesis', load('light_arm')).message
    )


def test_light_meshes_look_the_same_with_a_fifth_of_the_faces_and_collide_as_before(tmp_path: Path) -> None:
    file = load('franka_genesis').model_file()
    full = mujoco.MjModel.from_xml_path(str(file))
    light = mujoco.MjModel.from_xml_string(with_light_meshes(file, tmp_path))
    stored = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    visual = (full.geom_contype == 0) & (full.geom_conaffinity == 0)
    for index in np.flatnonzero(full.geom_type == mujoco.mjtGeom.mjGEOM_MESH):
        ours, theirs = points(light, index), points(full, index)
        if visual[index]:
            np.testing.assert_allclose(ours.min(axis=0), theirs.min(axis=0), atol=2e-3)
            np.testing.assert_allclose(ours.max(axis=0), theirs.max(axis=0), atol=2e-3)
        else:
            np.testing.assert_array_equal(ours, theirs)
    assert light.mesh_facenum.sum() < 0.2 * full.mesh_facenum.sum()

    with_light_meshes(file, tmp_path)
    assert stored == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}, 'made only once'


@pytest.mark.slow
def test_an_env_goes_back_to_a_snapshot_bit_for_bit_also_amid_a_grasp_and_after_another_scene() -> None:
    with EnvFacade.from_spec(EnvSpec('genesis', 'pick_cube', load(QUICK_ARM))) as env:
        env.reset(1)
        rows = env.expert()
        rows = rows[: len(env.chunk_step(rows))]
        env.reset(1)
        env.chunk_step(rows[:-12])
        kept = env.snapshot()
        assert kept is not None
        runs = []
        for _ in range(3):
            env.restore(kept)
            runs.append(env.chunk_step(rows[-12:]))
            env.reset(2)
            env.chunk_step(env.expert()[:10])
        assert runs[0][-1].reward == 1.0
        for other in runs[1:]:
            for one, same in zip(runs[0], other, strict=True):
                assert one.reward == same.reward and one.info == same.info
                for name in one.observation:
                    np.testing.assert_array_equal(one.observation[name], same.observation[name])
