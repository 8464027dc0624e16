# SPDX-License-Identifier: Apache-2.0
"""MJCF files as Pinocchio models.

MuJoCo reads the file: only it knows includes, defaults and compiler options as they are meant. (Pinocchio
4.1 passes over included bodies, and puts MuJoCo's own UR5e a metre from where it is.) Meshes and everything
else that moves nothing are dropped before compiling, so that this takes milliseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

UNNEEDED = (
    *(
        'geoms',
        'meshes',
        'materials',
        'textures',
        'hfields',
        'skins',
        'cameras',
        'lights',
        'actuators',
        'sensors',
    ),
    *('tendons', 'equalities', 'excludes', 'pairs', 'keys', 'numerics', 'texts', 'tuples', 'plugins'),
)


def read_mjcf(path: str) -> Any:
    """Return the pinocchio.Model of an MJCF file: its joints by name, a frame for each named body and site.

    Masses are not kept: kinematics only.

    Raises:
        ImportError: mujoco is not installed.
        ValueError: the file is no MJCF that MuJoCo takes.
    """
    import mujoco

    spec = mujoco.MjSpec.from_file(path)
    for kind in UNNEEDED:
        for element in list(getattr(spec, kind, ())):
            spec.delete(element)
    for body in spec.bodies:
        body.explicitinertial = True
        body.mass, body.inertia, body.fullinertia = 1.0, np.ones(3), np.full(6, np.nan)
        body.ipos, body.iquat = np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0])
    spec.compiler.inertiafromgeom = mujoco.mjtInertiaFromGeom.mjINERTIAFROMGEOM_FALSE
    # What could be fused away may be a frame that a contract names.
    spec.compiler.fusestatic = False
    return _convert(spec.compile())


def _convert(source: Any) -> Any:
    import pinocchio as pin

    model = pin.Model()
    # Of each body: the joint that carries it, and its place from there.
    carriers = [(0, pin.SE3.Identity())]
    for body in range(1, source.nbody):
        joint, placement = carriers[source.body_parentid[body]]
        placement = placement * _se3(pin, source.body_pos[body], source.body_quat[body])
        first = source.body_jntadr[body]
        for index in range(first, first + source.body_jntnum[body]):
            joint, placement = _add_joint(pin, model, source, index, joint, placement)
        carriers.append((joint, placement))
        _add_frame(pin, model, source.body(body).name, joint, placement)
    for site in range(source.nsite):
        joint, placement = carriers[source.site_bodyid[site]]
        placement = placement * _se3(pin, source.site_pos[site], source.site_quat[site])
        _add_frame(pin, model, source.site(site).name, joint, placement)
    return model


def _add_joint(pin: Any, model: Any, source: Any, index: int, parent: int, placement: Any) -> tuple[int, Any]:
    """Return the new joint's number, and the place of its body's frame in the joint's."""
    import mujoco

    kind, name = source.jnt_type[index], source.joint(index).name or f'joint {index}'
    axis, point = source.jnt_axis[index].copy(), source.jnt_pos[index].copy()
    limited = bool(source.jnt_limited[index])
    low, high = source.jnt_range[index] if limited else (-np.inf, np.inf)
    anchor = pin.SE3(np.eye(3), point)
    reference = float(source.qpos0[source.jnt_qposadr[index]])
    if kind == mujoco.mjtJoint.mjJNT_HINGE:
        zero = pin.SE3(pin.AngleAxis(-reference, axis).matrix(), np.zeros(3))
        joint = pin.JointModelRevoluteUnaligned(axis)
    elif kind == mujoco.mjtJoint.mjJNT_SLIDE:
        zero = pin.SE3(np.eye(3), -reference * axis)
        joint = pin.JointModelPrismaticUnaligned(axis)
    else:  # free bodies and balls are no joints of an arm; they stay where the file puts them
        return parent, placement
    number = model.addJoint(parent, joint, placement * anchor * zero, name)
    model.addJointFrame(number)
    model.lowerPositionLimit[model.joints[number].idx_q] = low
    model.upperPositionLimit[model.joints[number].idx_q] = high
    return number, anchor.inverse()


def _add_frame(pin: Any, model: Any, name: str, joint: int, placement: Any) -> None:
    if name and not model.existFrame(name, pin.FrameType.BODY):
        model.addFrame(pin.Frame(name, joint, 0, placement, pin.FrameType.BODY))


def _se3(pin: Any, position: Array, quaternion: Array) -> Any:
    w, x, y, z = quaternion
    return pin.SE3(pin.Quaternion(w, x, y, z).normalized(), position.copy())
