# SPDX-License-Identifier: Apache-2.0
"""Tools that a host lends to snippets: functions of what is seen, called by name.

A tool runs in the host's process and gets a `View` and the snippet's keywords, which may be anything that a
message holds; it returns what a message holds (`values`). It moves nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openeta_ros.embodiment import Embodiment
from openeta_ros.envs.backend import CameraPose, picture_size
from openeta_ros.observation import Observation


class ToolError(Exception):
    """A tool cannot do what it was asked; the text says why, and is shown to the snippet."""


@dataclass(frozen=True)
class Pinhole:
    """A camera's picture as it is delivered: where it is, how it is turned, and what a pixel sees.

    `position_m` (3,) and `axes` (3, 3), whose columns are right, down and forward, are in the base frame;
    `focal_px` (2,) and `centre_px` (2,) are along u (right) and v (down).
    """

    position_m: npt.NDArray[np.float64]
    axes: npt.NDArray[np.float64]
    focal_px: npt.NDArray[np.float64]
    centre_px: npt.NDArray[np.float64]

    def project(self, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the pixels (N, 2) u, v of points (N, 3) before the camera."""
        seen = (points - self.position_m) @ self.axes
        return np.asarray(seen[:, :2] / seen[:, 2:] * self.focal_px + self.centre_px)

    def ray(self, pixel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the direction (3,), of length 1, that a pixel u, v looks into."""
        way = self.axes @ np.append((pixel - self.centre_px) / self.focal_px, 1.0)
        return np.asarray(way / np.linalg.norm(way))


@dataclass(frozen=True)
class View:
    """What a tool may know: the newest observation, the contract, and where cameras are (if known)."""

    observation: Observation
    embodiment: Embodiment
    camera_poses: Mapping[str, CameraPose]

    def pinholes(self) -> dict[str, Pinhole]:
        """Return the cameras whose place is known, by name.

        Raises:
            ToolError: it is known of none.
        """
        known = {name: self._pinhole(name) for name in self.embodiment.cameras if name in self.camera_poses}
        if not known:
            raise ToolError('where the cameras are is not known here, so that pictures give no positions')
        return known

    def _pinhole(self, name: str) -> Pinhole:
        camera, pose = self.embodiment.cameras[name], self.camera_poses[name]
        height, width = picture_size(camera)
        shown = np.array(self.observation[f'frames_{name}'].shape[1::-1], dtype=np.float64)
        corner: npt.NDArray[np.float64] = np.zeros(2)
        taken: npt.NDArray[np.float64] = np.array([width, height], dtype=np.float64)
        if camera.crop is not None:
            top, left, cut_height, cut_width = camera.crop
            corner, taken = np.array([left, top], dtype=np.float64), np.array([cut_width, cut_height])
        focal = height / 2 / np.tan(np.radians(pose.fovy_deg) / 2)
        scale = shown / taken
        # Pixels are counted from the middle of the first one.
        centre = (np.array([width, height]) / 2 - corner) * scale - 0.5
        forward = np.subtract(pose.look_at_m, pose.position_m)
        right = np.cross(forward, pose.up)
        axes = np.stack([right, np.cross(forward, right), forward], axis=1)
        axes /= np.linalg.norm(axes, axis=0)
        return Pinhole(np.array(pose.position_m), axes, focal * scale, centre)


def mounted(embodiment: Embodiment) -> dict[str, CameraPose]:
    """Return where cameras stand as far as the contract says so."""
    return {
        name: CameraPose(**camera.mount.model_dump())
        for name, camera in embodiment.cameras.items()
        if camera.mount is not None
    }


Tool = Callable[..., Any]


def described(tool: Tool) -> dict[str, str]:
    """Return a tool's signature as a snippet calls it, and what it says of itself."""
    signature = inspect.signature(tool)
    keywords = list(signature.parameters.values())[1:]
    text = signature.replace(
        parameters=[keyword.replace(kind=inspect.Parameter.KEYWORD_ONLY) for keyword in keywords]
    )
    return {'signature': str(text).replace('(*, ', '('), 'doc': inspect.cleandoc(tool.__doc__ or '')}


def call(tool: Tool, name: str, view: View, keywords: Mapping[str, Any]) -> Any:
    """Call a tool.

    Raises:
        ToolError: the keywords do not fit, or the tool failed in any way.
    """
    try:
        inspect.signature(tool).bind(view, **keywords)
    except TypeError as error:
        raise ToolError(f'{name}{described(tool)["signature"]}: {error}') from None
    try:
        return tool(view, **keywords)
    except ToolError:
        raise
    except Exception as error:
        raise ToolError(f'the tool {name} failed: {type(error).__name__}: {error}') from error
