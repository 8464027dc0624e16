# SPDX-License-Identifier: Apache-2.0
"""Pictures of a MuJoCo model without a screen.

Not `mujoco.Renderer`: that one fixes the way of drawing when mujoco is first imported, which another package
may have done long before, and needs one context, with all meshes in it, per picture size.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from openeta_ros.embodiment import Camera
from openeta_ros.envs.backend import Picture, picture_size
from openeta_ros.envs.errors import EnvError

if TYPE_CHECKING:
    import mujoco

LOGGER = logging.getLogger(__name__)

# Two 240x320 pictures of a Franka Panda in software: 480-640 ms with all of these and MuJoCo's own quality,
# 51-56 ms without.
COSTLY_FLAGS = (
    'mjRND_SHADOW',
    'mjRND_REFLECTION',
    'mjRND_HAZE',
)
MAX_GEOMS = 2000
# Per pixel, for smooth edges: 24 ms of processor time for a picture, and 10 ms without (0).
SAMPLES = 4


class Pictures:
    """Draws the named cameras of one model, at the sizes of the contract, on the thread that made it.

    Raises:
        EnvError: 'embodiment': the model lacks a camera of the contract; 'graphics': there is no way to draw.
    """

    def __init__(
        self, model: mujoco.MjModel, cameras: Mapping[str, Camera], prefix: str, *, samples: int = SAMPLES
    ) -> None:
        import mujoco

        known = [
            model.camera(index).name.removeprefix(prefix)
            for index in range(model.ncam)
            if model.camera(index).name.startswith(prefix)
        ]
        absent = [name for name in cameras if name not in known]
        if absent:
            raise EnvError(
                'embodiment', f'the scene has no camera {", ".join(absent)}; only {", ".join(known)}'
            )
        self._sizes = {name: picture_size(camera) for name, camera in cameras.items()}
        self._views = {name: _view(model.camera(prefix + name).id) for name in cameras}
        height = max(size[0] for size in self._sizes.values())
        width = max(size[1] for size in self._sizes.values())
        model.vis.global_.offheight, model.vis.global_.offwidth = height, width
        model.vis.quality.offsamples = samples
        self._model = model
        self._context: mujoco.MjrContext | None = None
        self._gl: Any = _gl_context(width, height)
        # A context that outlives the end of Python prints a traceback: EGL is gone by then. A signal may end
        # Python before there is anything but the first of the two.
        atexit.register(self.close)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._scene = mujoco.MjvScene(model, maxgeom=MAX_GEOMS)
        for flag in COSTLY_FLAGS:
            self._scene.flags[getattr(mujoco.mjtRndFlag, flag)] = 0
        self._option = mujoco.MjvOption()

    def draw(self, camera: str, data: mujoco.MjData) -> Picture:
        """Return (H, W, 3) uint8 RGB."""
        import mujoco

        height, width = self._sizes[camera]
        picture = np.empty((height, width, 3), dtype=np.uint8)
        self._gl.make_current()
        mujoco.mjv_updateScene(
            self._model,
            data,
            self._option,
            None,
            self._views[camera],
            mujoco.mjtCatBit.mjCAT_ALL.value,
            self._scene,
        )
        area = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(area, self._scene, self._context)
        mujoco.mjr_readPixels(picture, None, area, self._context)
        return picture[::-1].copy()  # OpenGL counts rows from below

    def close(self) -> None:
        """Free the drawing context."""
        atexit.unregister(self.close)
        if self._context is not None:
            self._gl.make_current()
            self._context.free()
        self._gl.free()


def _view(camera_id: int) -> mujoco.MjvCamera:
    import mujoco

    view = mujoco.MjvCamera()
    view.type = mujoco.mjtCamera.mjCAMERA_FIXED
    view.fixedcamid = camera_id
    return view


def drawing_way() -> str:
    """Return how to draw: what MUJOCO_GL says, else EGL, else OSMesa when there is no EGL library."""
    asked = os.environ.get('MUJOCO_GL', '').strip().lower()
    return asked or ('egl' if _has_library('libEGL.so.1') else 'osmesa')


def _gl_context(width: int, height: int) -> Any:
    way = drawing_way()
    if way == 'osmesa' and not os.environ.get('MUJOCO_GL', '').strip():
        LOGGER.warning('drawing with OSMesa, because libEGL.so.1 is not installed (apt install libegl1)')
    try:
        if way == 'egl':
            from mujoco.egl import GLContext
        elif way == 'osmesa':
            from mujoco.osmesa import GLContext
        elif way in ('glfw', 'glx'):
            from mujoco.glfw import GLContext
        else:
            raise EnvError(
                'graphics', f"MUJOCO_GL is {way!r}; set it to 'egl', 'osmesa' or 'glfw', or unset it"
            )
        return GLContext(width, height)
    except EnvError:
        raise
    except Exception as error:  # ctypes, PyOpenGL and GLFW raise all kinds when a library is absent
        other = 'osmesa' if way == 'egl' else 'egl'
        raise EnvError(
            'graphics',
            f'MuJoCo cannot draw with {way} ({error}): install its libraries (apt install '
            f'libegl1 libgl1-mesa-dri libosmesa6) or set MUJOCO_GL={other}',
        ) from error


def _has_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
