# SPDX-License-Identifier: Apache-2.0
"""Genesis on the CPU: the robot's MJCF or URDF with position servos, a table, boxes, and rasterised pictures.

Kernels are compiled once per machine, not per task: every scene uses the same solver options, and the seed of
an episode never reaches `genesis.init`, where it would be part of the key of the kernel cache.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import inspect
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from openeta_ros.embodiment import Embodiment, Kinematics, resolve_uri
from openeta_ros.envs.backend import Array, Box, Marker, Picture, Scene, physics_steps, picture_size
from openeta_ros.envs.errors import EnvError
from openeta_ros.envs.light_meshes import cache_folder, with_light_meshes
from openeta_ros.envs.simulated import SimulatedWorld
from openeta_ros.envs.spec import EnvSpec

LOGGER = logging.getLogger(__name__)

LONGEST_STEP_S = 0.005
# One light, from beside the `front` camera: in software each one more costs 12 ms a picture. No shadows: they
# cost time in Genesis 1.4.5, but are not to be seen there.
LIGHT = {'type': 'directional', 'dir': (-1.0, -0.5, -2.0), 'color': (1.0, 1.0, 1.0), 'intensity': 3.2}
AMBIENT = (0.3, 0.3, 0.3)
BACKGROUND = (0.62, 0.69, 0.76)
FLOOR_M = 10.0
LIBRARIES = {'egl': 'libEGL.so.1', 'osmesa': 'libOSMesa.so.8'}
# What Python calls the files of its import system.
IMPORT_SYSTEM = ('<frozen importlib._bootstrap>', '<frozen importlib._bootstrap_external>')
GRAPHICS_REMEDY = 'install its libraries (apt install libegl1 libgl1 libgl1-mesa-dri libgles2 libosmesa6)'


def make_world(spec: EnvSpec, kinematics: Kinematics) -> SimulatedWorld:
    """Make the world of a spec in Genesis. It takes no options."""
    if spec.options:
        raise EnvError('option', f"env 'genesis' has no options; found {', '.join(map(repr, spec.options))}")
    return SimulatedWorld(spec, kinematics, GenesisBackend)


class GenesisBackend:
    """A `Backend`. Bit-equal results on one machine: Genesis steps on one thread, `reset` clears its solver.

    Raises:
        EnvError: kinds 'model' (the file does not load), 'embodiment' (a joint is not in the model or has no
            gains, or the scene has no such camera), 'graphics'.
    """

    def __init__(
        self,
        embodiment: Embodiment,
        joints: tuple[str, ...],
        scene: Scene,
        options: Mapping[str, Any],
    ) -> None:
        del options  # make_world refuses them
        absent = [name for name in embodiment.cameras if name not in scene.cameras]
        if absent:
            raise EnvError(
                'embodiment',
                f'the scene has no camera {", ".join(absent)}; it has {", ".join(scene.cameras)}',
            )
        self.joint_names = joints
        _, self.physics_dt_s = physics_steps(embodiment.rate_hz, LONGEST_STEP_S)
        gs = _genesis()
        self.version = f'genesis {gs.__version__}'
        self._scene = gs.Scene(
            sim_options=gs.options.SimOptions(dt=self.physics_dt_s),
            # Left alone, a scene without boxes would get a dense solver, and kernels of its own.
            rigid_options=gs.options.RigidOptions(box_box_detection=True, sparse_solve=True),
            vis_options=gs.options.VisOptions(
                shadow=False,
                background_color=BACKGROUND,
                ambient_light=AMBIENT,
                lights=[LIGHT],
            ),
            renderer=gs.renderers.Rasterizer(),
            show_viewer=False,
        )
        self._robot = _add_robot(gs, self._scene, embodiment.model_file())
        _add_table(gs, self._scene, scene)
        self._boxes = {box.name: _add_box(gs, self._scene, box) for box in scene.boxes}
        self._markers = {marker.name: _add_marker(gs, self._scene, marker) for marker in scene.markers}
        self._cameras = {}
        for name, camera in embodiment.cameras.items():
            height, width = picture_size(camera)
            pose = scene.cameras[name]
            self._cameras[name] = self._scene.add_camera(
                res=(width, height),
                pos=pose.position_m,
                lookat=pose.look_at_m,
                up=pose.up,
                fov=pose.fovy_deg,
            )
        self._dofs = _dofs(self._robot, embodiment, joints)
        _build(self._scene, self.version)
        gains = [embodiment.simulation.gains[name] for name in joints]
        force = np.array([gain.force for gain in gains])
        self._robot.set_dofs_kp([gain.kp for gain in gains], self._dofs)
        self._robot.set_dofs_kv([gain.kv for gain in gains], self._dofs)
        self._robot.set_dofs_force_range(-force, force, self._dofs)

    def reset(self, scene: Scene, positions: Array) -> None:
        # Back to the state of the build, all velocities, warm starts and cached contacts with it; but not the
        # servos, which Genesis switches off.
        self._scene.reset()
        self._robot.set_dofs_position(np.array(positions), self._dofs, zero_velocity=True)
        self.set_targets(positions)
        for box in scene.boxes:
            self._boxes[box.name].set_pos(box.pose[:3])
            self._boxes[box.name].set_quat(box.pose[3:])
        for marker in scene.markers:
            self._markers[marker.name].set_pos(marker.position_m)

    def set_targets(self, targets: Array) -> None:
        self._robot.control_dofs_position(np.array(targets), self._dofs)  # torch warns of read-only ones

    def step_physics(self) -> None:
        self._scene.step(update_visualizer=False)

    def joint_positions(self) -> Array:
        return _float64(self._robot.get_dofs_position(self._dofs))

    def joint_velocities(self) -> Array:
        return _float64(self._robot.get_dofs_velocity(self._dofs))

    def object_poses(self) -> dict[str, Array]:
        return {
            name: np.concatenate([_float64(box.get_pos()), _float64(box.get_quat())])
            for name, box in self._boxes.items()
        }

    def object_velocities(self) -> dict[str, Array]:
        return {name: _float64(box.get_vel()) for name, box in self._boxes.items()}

    def picture(self, camera: str) -> Picture:
        return np.array(self._cameras[camera].render(rgb=True)[0])

    def snapshot(self) -> Any:
        """Return a copy of every array of the solver, its caches and warm starts included."""
        return self._scene.__getstate__()

    def restore(self, state: Any) -> None:
        """Go back to a snapshot: what follows is bit for bit what followed it."""
        self._scene.__setstate__(state)

    def close(self) -> None:
        self._scene.destroy()


def _genesis() -> Any:
    """Return the module, initialised once per process."""
    os.environ['PYOPENGL_PLATFORM'] = _platform()
    # Before numba is imported: its default lies beside the installed packages, which may not be writable.
    os.environ.setdefault('NUMBA_CACHE_DIR', str(cache_folder() / 'numba'))
    # Else this process, and all that it starts, print a line about what sys.stdout happens to be now.
    os.environ.setdefault('QD_ENABLE_PYBUF', '0')
    hook = sys.excepthook
    try:
        with _quick_import():
            import genesis as gs
    except ImportError as error:  # PyOpenGL's, when the library of its platform does not load
        raise EnvError('graphics', f'Genesis does not import ({error}): {GRAPHICS_REMEDY}') from error
    finally:
        sys.excepthook = hook  # Genesis' own prints every uncaught error to stdout
    if not gs._initialized:
        gs.init(backend=gs.cpu, logging_level='error')
    return gs


@contextlib.contextmanager
def _quick_import() -> Iterator[None]:
    """Have the import of Genesis take half of its processor time (10 s instead of 22, measured).

    Each of its thousand kernels asks `inspect` in which module the importing frame is: that of the import
    system, which is in none, so that all modules are looked through each time. Here the answer, none, is
    known beforehand. And what is imported is no garbage, so none is looked for.
    """
    for name in IMPORT_SYSTEM:
        inspect.modulesbyfile.setdefault(name, '')
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _platform() -> str:
    """Return how to draw: what PYOPENGL_PLATFORM says, else EGL, else OSMesa when there is no EGL library."""
    asked = os.environ.get('PYOPENGL_PLATFORM', '')
    if asked in LIBRARIES:
        return asked
    if asked:
        raise EnvError('graphics', f"PYOPENGL_PLATFORM is {asked!r}; it may be 'egl' or 'osmesa', or unset")
    for name, library in LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        if name == 'osmesa':
            LOGGER.warning('drawing with OSMesa, because libEGL.so.1 is not installed (apt install libegl1)')
        return name
    raise EnvError('graphics', f'Genesis cannot draw without libEGL.so.1: {GRAPHICS_REMEDY}')


def _add_robot(gs: Any, scene: Any, file: Path) -> Any:
    try:
        root = ElementTree.fromstring(file.read_bytes())
        if root.tag == 'robot':
            for mesh in root.iter('mesh'):
                mesh.set('filename', str(resolve_uri(mesh.get('filename', ''), file.parent)))
            text = ElementTree.tostring(root, encoding='unicode')
            morph = gs.morphs.URDF(file=text, fixed=True, merge_fixed_links=False)
        else:
            morph = gs.morphs.MJCF(file=with_light_meshes(file, cache_folder() / 'meshes'))
        return scene.add_entity(morph, material=gs.materials.Rigid(gravity_compensation=1.0))
    except (gs.GenesisException, ElementTree.ParseError, ValueError, OSError) as error:
        raise EnvError('model', f'Genesis does not load {file}: {error}') from error


def _add_table(gs: Any, scene: Any, description: Scene) -> None:
    table = description.table
    x, y = table.centre_m
    scene.add_entity(
        gs.morphs.Box(size=table.size_m, pos=(x, y, -table.size_m[2] / 2), fixed=True),
        material=gs.materials.Rigid(friction=table.friction),
        surface=gs.surfaces.Rough(color=table.rgba),
    )
    scene.add_entity(
        gs.morphs.Plane(pos=(0.0, 0.0, table.floor_z_m), plane_size=(FLOOR_M, FLOOR_M)),
        surface=gs.surfaces.Rough(color=table.floor_rgba),
    )


def _add_box(gs: Any, scene: Any, box: Box) -> Any:
    return scene.add_entity(
        gs.morphs.Box(size=box.size_m, pos=box.pose[:3], quat=box.pose[3:]),
        material=gs.materials.Rigid(rho=box.mass_kg / float(np.prod(box.size_m)), friction=box.friction),
        surface=gs.surfaces.Rough(color=box.rgba),
    )


def _add_marker(gs: Any, scene: Any, marker: Marker) -> Any:
    common = {'pos': marker.position_m, 'radius': marker.radius_m, 'fixed': True, 'collision': False}
    if marker.height_m is None:
        morph = gs.morphs.Sphere(**common)
    else:
        morph = gs.morphs.Cylinder(height=marker.height_m, **common)
    return scene.add_entity(morph, surface=gs.surfaces.Rough(color=marker.rgba))


def _dofs(robot: Any, embodiment: Embodiment, joints: tuple[str, ...]) -> list[int]:
    """Return the index of each joint in the robot's own order."""
    known = {joint.name: joint for joint in robot.joints if joint.n_dofs == 1}
    absent = [name for name in joints if embodiment.model_name(name) not in known]
    if absent:
        raise EnvError(
            'embodiment', f'{embodiment.path}: joints {absent} are not in {embodiment.model_file()}'
        )
    without = [name for name in joints if name not in embodiment.simulation.gains]
    if without:
        raise EnvError(
            'embodiment', f'{embodiment.path}: simulation.gains lacks kp, kv and force of {without}'
        )
    return [known[embodiment.model_name(name)].dofs_idx_local[0] for name in joints]


def _build(scene: Any, version: str) -> None:
    import quadrants
    from OpenGL.error import Error as OpenGLError

    config = quadrants.lang.impl.get_runtime().prog.config()
    _announce(Path(config.offline_cache_file_path) / f'openeta_ros-{version}')
    try:
        scene.build()
    except (OpenGLError, ImportError) as error:
        raise EnvError(
            'graphics',
            f'Genesis cannot draw with {os.environ["PYOPENGL_PLATFORM"]} ({" ".join(str(error).split())}): '
            f'{GRAPHICS_REMEDY} or set PYOPENGL_PLATFORM to another of {", ".join(LIBRARIES)}',
        ) from error


@functools.cache  # once per process
def _announce(compiled: Path) -> None:
    """Say that kernels will be compiled, unless the file `compiled` tells that they were."""
    if not compiled.exists():
        LOGGER.warning('Genesis compiles its kernels, once on this machine: this takes two to four minutes')
        # Genesis writes them when the process ends. No earlier: writing them frees code that is still in use.
        atexit.register(_remember, compiled)


def _remember(compiled: Path) -> None:
    with contextlib.suppress(OSError):  # nothing can be kept in a read-only home: they are compiled each time
        compiled.parent.mkdir(parents=True, exist_ok=True)
        compiled.touch()


def _float64(tensor: Any) -> Array:
    return np.array(tensor.numpy(), dtype=np.float64)
