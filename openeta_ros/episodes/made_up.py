# SPDX-License-Identifier: Apache-2.0
"""An observation and a demonstration of a contract's shapes, of a robot at rest that nobody has looked at.

For what needs a policy to answer, and no robot: checking it, warming it up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from openeta_ros.embodiment import Camera, Embodiment, Kinematics
from openeta_ros.envs.backend import DEFAULT_SIZE
from openeta_ros.episodes.demonstration import Demonstration
from openeta_ros.observation import Observation

# Moments of the demonstration.
MOMENTS = 10
DISTANCE_M = 1.0


def made_up_observation(
    embodiment: Embodiment, kinematics: Kinematics, qpos: NDArray[np.float64] | None = None
) -> Observation:
    """Return what the robot sees with its joints at a wire row (D,), by default at home.

    Pictures are grey, rising from left to right: a policy may divide by their contrast. A camera to which the
    contract gives no size has that of the simulators.
    """
    row = embodiment.home_qpos if qpos is None else qpos
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, camera in embodiment.cameras.items():
        height, width = _size(camera)
        grey = np.linspace(0, 255, width).astype(np.uint8)
        arrays[f'frames_{name}'] = np.tile(grey[:, None], (height, 1, 3))
        if camera.depth is not None:
            arrays[f'depth_{name}'] = np.full((height, width), DISTANCE_M, np.float32)
    arrays['qpos'] = np.array(row, dtype=np.float64)
    if embodiment.endpose.source != 'none':
        places = embodiment.slices('qpos')
        poses = []
        for name, arm in embodiment.arms.items():
            joints, gripper = np.split(arrays['qpos'][places[name]], [len(arm.joints)])
            poses += [kinematics.forward(name, joints), gripper]
        arrays['endpose'] = np.concatenate(poses)
    return Observation(arrays, stamp_ns=0)


def made_up_demonstration(embodiment: Embodiment, kinematics: Kinematics) -> Demonstration:
    """Return a demonstration in which the robot stays at home."""
    seen = made_up_observation(embodiment, kinematics)
    arrays = {name: np.repeat(array[None], MOMENTS, axis=0) for name, array in seen.items()}
    arrays['actions'] = arrays['qpos'][1:]
    arrays['times'] = np.arange(MOMENTS) / embodiment.rate_hz
    arrays['frequency'] = np.array(embodiment.rate_hz, dtype=np.float64)
    info = {
        'frequency': float(embodiment.rate_hz),
        'cameras': list(embodiment.cameras),
        'embodiment': embodiment.name,
        'action_dims': {'qpos': embodiment.qpos_size, 'ee': embodiment.ee_size},
        'instruction': 'Stay where you are.',
    }
    return Demonstration(arrays, info)


def _size(camera: Camera) -> tuple[int, int]:
    """Return the height and width of a camera's pictures as they are delivered."""
    if camera.size is not None:
        return camera.size
    return camera.crop[2:] if camera.crop is not None else DEFAULT_SIZE
