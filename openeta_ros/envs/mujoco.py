# SPDX-License-Identifier: Apache-2.0
"""MuJoCo: the robot's MJCF or URDF with position servos, a table, boxes; drawn without a screen."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from openeta_ros.embodiment import Embodiment, Kinematics, resolve_uri
from openeta_ros.envs.backend import Array, Box, CameraPose, Marker, Picture, Scene, physics_steps
from openeta_ros.envs.errors import EnvError
from openeta_ros.envs.light_meshes import cache_folder, lighten
from openeta_ros.envs.mujoco_pictures import SAMPLES, Pictures
from openeta_ros.envs.simulated import SimulatedWorld
from openeta_ros.envs.spec import EnvSpec

if TYPE_CHECKING:
    import mujoco

LOGGER = logging.getLogger(__name__)

LONGEST_STEP_S = 0.002
# kg m^2, or kg for a sliding joint, as in the MJCF of the Panda. A URDF knows none; a finger of 30 g without
# it sinks 5 mm into what it grasps, because MuJoCo's contacts soften with the inertia behind them.
ROTOR_INERTIA = 0.1
# Before the names of everything that the scene adds, so that a robot's own names never clash.
PREFIX = 'scene/'


def make_world(spec: EnvSpec, kinematics: Kinematics) -> SimulatedWorld:
    """Make the world of a spec in MuJoCo. It takes no options."""
    if spec.options:
        raise EnvError('option', f"env 'mujoco' has no options; found {', '.join(map(repr, spec.options))}")
    return SimulatedWorld(spec, kinematics, MujocoBackend)


@dataclass(frozen=True)
class Look:
    """Where everything was at one moment."""

    qpos: Array
    mocap_pos: Array


class MujocoBackend:
    """A `Backend`. Bit-equal results on one machine: MuJoCo steps on one thread, and `reset` clears its data.

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
        import mujoco

        samples = options.get('samples', SAMPLES)  # the mock's; make_world refuses all options
        self.version = f'mujoco {version("mujoco")}'
        self.joint_names = joints
        _, self.physics_dt_s = physics_steps(embodiment.rate_hz, LONGEST_STEP_S)
        spec = _load(embodiment.model_file())
        _drive(spec, embodiment, joints)
        _furnish(spec, scene)
        spec.option.timestep = self.physics_dt_s
        # Else a simulation that diverges begins anew by itself, not at home, and nobody is told.
        spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self._mujoco = mujoco
        self._model = spec.compile()
        self._data = mujoco.MjData(self._model)
        self._drawn: mujoco.MjData | None = None  # for `picture_of`
        joint_ids = [self._model.joint(embodiment.model_name(name)).id for name in joints]
        self._qpos = self._model.jnt_qposadr[joint_ids]
        self._qvel = self._model.jnt_dofadr[joint_ids]
        self._actuators = [self._model.actuator(PREFIX + name).id for name in joints]
        self._boxes = {box.name: self._model.body(PREFIX + box.name) for box in scene.boxes}
        self._pictures = Pictures(self._model, embodiment.cameras, PREFIX, samples=samples)

    def reset(self, scene: Scene, positions: Array) -> None:
        model, data = self._model, self._data
        self._mujoco.mj_resetData(model, data)
        data.qpos[self._qpos] = positions
        data.ctrl[self._actuators] = positions
        for box in scene.boxes:
            start = model.jnt_qposadr[self._boxes[box.name].jntadr[0]]
            data.qpos[start : start + 7] = box.pose
        for marker in scene.markers:
            data.mocap_pos[model.body(PREFIX + marker.name).mocapid[0]] = marker.position_m
        self._mujoco.mj_forward(model, data)

    def set_targets(self, targets: Array) -> None:
        self._data.ctrl[self._actuators] = targets

    def step_physics(self) -> None:
        self._mujoco.mj_step(self._model, self._data)

    def joint_positions(self) -> Array:
        return np.array(self._data.qpos[self._qpos])

    def joint_velocities(self) -> Array:
        return np.array(self._data.qvel[self._qvel])

    def object_poses(self) -> dict[str, Array]:
        starts = {name: self._model.jnt_qposadr[body.jntadr[0]] for name, body in self._boxes.items()}
        return {name: np.array(self._data.qpos[start : start + 7]) for name, start in starts.items()}

    def object_velocities(self) -> dict[str, Array]:
        starts = {name: self._model.jnt_dofadr[body.jntadr[0]] for name, body in self._boxes.items()}
        return {name: np.array(self._data.qvel[start : start + 3]) for name, start in starts.items()}

    def picture(self, camera: str) -> Picture:
        # mj_step leaves the poses of bodies one step behind the joints.
        self._mujoco.mj_kinematics(self._model, self._data)
        self._mujoco.mj_camlight(self._model, self._data)
        return self._pictures.draw(camera, self._data)

    def look(self) -> Look:
        """Return what there is to see, to be drawn by `picture_of` while another thread steps."""
        return Look(np.array(self._data.qpos), np.array(self._data.mocap_pos))

    def picture_of(self, camera: str, look: Look) -> Picture:
        """Draw the scene as it was, on the thread that made this."""
        if self._drawn is None:
            self._drawn = self._mujoco.MjData(self._model)
        self._drawn.qpos[:], self._drawn.mocap_pos[:] = look.qpos, look.mocap_pos
        self._mujoco.mj_kinematics(self._model, self._drawn)
        self._mujoco.mj_camlight(self._model, self._drawn)
        return self._pictures.draw(camera, self._drawn)

    def snapshot(self) -> Array:
        """Return the whole state of the simulation: what is integrated, commanded and kept between steps."""
        what = self._mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(self._mujoco.mj_stateSize(self._model, what))
        self._mujoco.mj_getState(self._model, self._data, state, what)
        return state

    def restore(self, state: Array) -> None:
        """Go back to a snapshot: what follows is bit for bit what followed it."""
        what = self._mujoco.mjtState.mjSTATE_INTEGRATION
        self._mujoco.mj_setState(self._model, self._data, state, what)

    def close(self) -> None:
        self._pictures.close()


def _load(file: Path) -> mujoco.MjSpec:
    import mujoco

    try:
        spec = _load_urdf(file) if file.suffix == '.urdf' else mujoco.MjSpec.from_file(str(file))
        if importlib.util.find_spec('fast_simplification') is None:
            LOGGER.info('drawing full meshes: pip install fast_simplification trimesh scipy makes it quicker')
        else:
            lighten(spec, cache_folder() / 'meshes')
        spec.copy().compile()
    except (ValueError, OSError, ElementTree.ParseError) as error:
        raise EnvError('model', f'MuJoCo does not load {file}: {error}') from error
    return spec


def _load_urdf(file: Path) -> mujoco.MjSpec:
    import mujoco

    robot = ElementTree.fromstring(file.read_bytes())
    for mesh in robot.iter('mesh'):
        mesh.set('filename', str(resolve_uri(mesh.get('filename', ''), file.parent)))
    # Without this MuJoCo drops what is only drawn, and looks for meshes by their last name.
    extension = ElementTree.SubElement(robot, 'mujoco')
    ElementTree.SubElement(extension, 'compiler', discardvisual='false', strippath='false')
    spec = mujoco.MjSpec.from_string(ElementTree.tostring(robot, encoding='unicode'))
    # A URDF does not say which of its links may overlap: they meet the scene, but not one another. Its
    # collision shapes are not drawn, as is the custom (group 3) in MJCF.
    for geom in spec.geoms:
        if geom.contype:
            geom.contype, geom.conaffinity, geom.group = 2, 1, 3
    for joint in spec.joints:
        joint.armature = ROTOR_INERTIA
    return spec


def _drive(spec: mujoco.MjSpec, embodiment: Embodiment, joints: tuple[str, ...]) -> None:
    """Replace the model's own actuators by one position servo per commanded joint."""
    import mujoco

    for element in [*spec.actuators, *spec.keys, *spec.lights]:
        spec.delete(element)
    known = {joint.name for joint in spec.joints}
    gains = embodiment.simulation.gains
    absent = [name for name in joints if embodiment.model_name(name) not in known]
    if absent:
        raise EnvError('embodiment', f'{embodiment.path}: {embodiment.model_file()} lacks joints {absent}')
    without = [name for name in joints if name not in gains]
    if without:
        raise EnvError('embodiment', f'{embodiment.path}: simulation.gains lacks {without} (kp, kv, force)')
    for name in joints:
        servo = spec.add_actuator(
            name=PREFIX + name, target=embodiment.model_name(name), trntype=mujoco.mjtTrn.mjTRN_JOINT
        )
        gain = gains[name]
        servo.set_to_position(kp=gain.kp, kv=gain.kv)
        servo.forcelimited = True
        servo.forcerange = (-gain.force, gain.force)
    for body in spec.bodies:
        body.gravcomp = 1.0


def _furnish(spec: mujoco.MjSpec, scene: Scene) -> None:
    import mujoco

    world, table = spec.worldbody, scene.table
    width, depth, height = table.size_m
    world.add_geom(
        name=f'{PREFIX}table',
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=(width / 2, depth / 2, height / 2),
        pos=(*table.centre_m, -height / 2),
        rgba=table.rgba,
        friction=(table.friction, 0.005, 0.0001),
    )
    world.add_geom(
        name=f'{PREFIX}floor',
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=(5, 5, 0.1),
        pos=(0, 0, table.floor_z_m),
        rgba=table.floor_rgba,
    )
    for box in scene.boxes:
        _add_box(world, box)
    for marker in scene.markers:
        _add_marker(world, marker)
    for name, camera in scene.cameras.items():
        _add_camera(world, PREFIX + name, camera)
    spec.add_texture(
        name=f'{PREFIX}sky',
        type=mujoco.mjtTexture.mjTEXTURE_SKYBOX,
        builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=(0.75, 0.82, 0.88),
        rgb2=(0.45, 0.50, 0.55),
        width=64,
        height=384,
    )
    # Two lights from either side of `front` and a headlight: without shadows, shading alone shows the shapes.
    for x, y, strength in ((0.8, 1.6, 0.55), (0.8, -1.6, 0.2)):
        world.add_light(
            type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
            pos=(x, y, 2.0),
            dir=(-x, -y, -2.0),
            diffuse=(strength,) * 3,
            specular=(0.2,) * 3,
            ambient=(0.0,) * 3,
            castshadow=False,
        )
    spec.visual.headlight.ambient = (0.3,) * 3
    spec.visual.headlight.diffuse = (0.15,) * 3
    spec.visual.headlight.specular = (0.0,) * 3
    # What lies outside of a span made of this is not drawn; the robot's own size must not decide that.
    spec.stat.center, spec.stat.extent = (0.4, 0.0, 0.2), 1.5
    # Boxes in a grasp creep out of it under the default pyramidal cone with impedance ratio 1.
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST


def _add_box(world: Any, box: Box) -> None:
    import mujoco

    body = world.add_body(name=PREFIX + box.name, pos=box.pose[:3], quat=box.pose[3:])
    body.add_freejoint()
    body.add_geom(
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=tuple(edge / 2 for edge in box.size_m),
        rgba=box.rgba,
        mass=box.mass_kg,
        friction=(box.friction, 0.005, 0.0001),
        condim=4,
    )


def _add_marker(world: Any, marker: Marker) -> None:
    import mujoco

    body = world.add_body(name=PREFIX + marker.name, pos=marker.position_m, mocap=True)
    flat = marker.height_m is not None
    body.add_geom(
        type=mujoco.mjtGeom.mjGEOM_CYLINDER if flat else mujoco.mjtGeom.mjGEOM_SPHERE,
        size=(marker.radius_m, (marker.height_m or 0.0) / 2, 0.0),
        rgba=marker.rgba,
        contype=0,
        conaffinity=0,
    )


def _add_camera(world: Any, name: str, camera: CameraPose) -> None:
    import mujoco

    backward = np.subtract(camera.position_m, camera.look_at_m)
    right = np.cross(camera.up, backward)
    axes = np.stack([right, np.cross(backward, right), backward], axis=1)
    axes /= np.linalg.norm(axes, axis=0)
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, axes.ravel())
    world.add_camera(name=name, pos=camera.position_m, quat=quat, fovy=camera.fovy_deg)
