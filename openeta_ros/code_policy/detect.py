# SPDX-License-Identifier: Apache-2.0
"""The tool that ships as the example: where coloured boxes and balls are, from pictures alone.

It uses what a real robot has: pictures, and where its cameras are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from openeta_ros.code_policy.tools import Pinhole, ToolError, View

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.uint8]

# OpenCV's hues (0 to 179) of a colour; both ends belong to it. Red goes around the end of the circle.
HUES: dict[str, tuple[tuple[int, int], ...]] = {
    'red': ((0, 8), (172, 179)),
    'yellow': ((18, 34),),
    'green': ((42, 85),),
    'blue': ((95, 130),),
}
LEAST_SATURATION, LEAST_VALUE = 110, 50
# Fewer pixels are noise.
LEAST_PIXELS = 12
# A fit that covers less of what is seen (intersection over union) is of something else, or hidden by half.
LEAST_OVERLAP = 0.5
# Of a pixel, to compare outlines with what is seen; and how far an outline may reach beyond that.
FINER, MARGIN = 4, 8
CORNERS = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])


def detect(view: View, colour: str, shape: str = 'box', size_m: float = 0.04) -> list[dict[str, Any]]:
    """Find objects of a colour ('red', 'green', 'blue', 'yellow') in the newest pictures of all cameras.

    shape 'box': cubes with edges of size_m that stand on the table (z = 0 of the base frame). Each is
    {'position_m': [x, y, z] of its centre, 'yaw_rad': turn about z, within a quarter turn, 'overlap': 0..1
    how well it fits what is seen, 'pixels': how many show it}. shape 'ball': one ball in the air, seen by two
    cameras or more: {'position_m', 'spread_m': how far the cameras disagree, 'pixels'}.
    The best comes first; the list is empty when nothing of that colour is seen.
    """
    if colour not in HUES:
        raise ToolError(f'there is no colour {colour!r}; there are {", ".join(HUES)}')
    if isinstance(size_m, bool) or not isinstance(size_m, int | float) or not 0.005 <= size_m <= 0.5:
        raise ToolError(f'size_m is {size_m!r}; it is the length of an edge in metres, 0.005 to 0.5')
    cameras = view.pinholes()
    blobs = {name: _blobs(view.observation[f'frames_{name}'], colour) for name in cameras}
    if shape == 'ball':
        return _ball(cameras, blobs)
    if shape == 'box':
        return _boxes(cameras, blobs, float(size_m))
    raise ToolError(f'there is no shape {shape!r}; there are box, ball')


def _blobs(picture: npt.NDArray[Any], colour: str) -> list[Mask]:
    """Return a mask (H, W) of 0 and 1 for each patch of a colour, the largest first."""
    import cv2

    hsv = cv2.cvtColor(picture, cv2.COLOR_RGB2HSV)
    mask: Mask = np.zeros(picture.shape[:2], dtype=np.uint8)
    for low, high in HUES[colour]:
        mask |= np.asarray(cv2.inRange(hsv, (low, LEAST_SATURATION, LEAST_VALUE), (high, 255, 255)), np.uint8)
    count, labels, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    sizes = stats[:, cv2.CC_STAT_AREA]
    kept = [label for label in range(1, count) if sizes[label] >= LEAST_PIXELS]
    return [(labels == label).astype(np.uint8) for label in sorted(kept, key=lambda label: -sizes[label])]


def _centre(mask: Mask) -> Array:
    rows, columns = np.nonzero(mask)
    return np.array([columns.mean(), rows.mean()])


def _ball(cameras: dict[str, Pinhole], blobs: dict[str, list[Mask]]) -> list[dict[str, Any]]:
    seen = {name: masks[0] for name, masks in blobs.items() if masks}
    if len(seen) < 2:
        return []
    # The point nearest to all rays: the sum of what is across each of them is least.
    across: Array = np.zeros((3, 3))
    towards: Array = np.zeros(3)
    lines = [(cameras[name].position_m, cameras[name].ray(_centre(mask))) for name, mask in seen.items()]
    for origin, way in lines:
        plane = np.eye(3) - np.outer(way, way)
        across, towards = across + plane, towards + plane @ origin
    point = np.linalg.solve(across, towards)
    spread = max(float(np.linalg.norm(np.cross(point - origin, way))) for origin, way in lines)
    pixels = sum(int(mask.sum()) for mask in seen.values())
    return [{'position_m': point.tolist(), 'spread_m': spread, 'pixels': pixels}]


def _boxes(cameras: dict[str, Pinhole], blobs: dict[str, list[Mask]], size_m: float) -> list[dict[str, Any]]:
    # The camera that shows most of them shows them apart; the others help to place each.
    main = max(blobs, key=lambda name: (len(blobs[name]), sum(int(mask.sum()) for mask in blobs[name])))
    found = []
    for mask in blobs[main]:
        camera = cameras[main]
        way = camera.ray(_centre(mask))
        if way[2] >= 0:
            continue  # above the horizon, where no table is
        distance = (size_m / 2 - camera.position_m[2]) / way[2]
        start = camera.position_m + distance * way
        masks = {main: mask}
        for name, others in blobs.items():
            if name != main and others:
                pixel = cameras[name].project(start[None])[0]
                masks[name] = min(others, key=lambda other: float(np.linalg.norm(_centre(other) - pixel)))
        pose, overlap = _fitted(cameras, masks, np.array([start[0], start[1], 0.0]), size_m)
        if overlap >= LEAST_OVERLAP:
            found.append(
                {
                    'position_m': [float(pose[0]), float(pose[1]), size_m / 2],
                    'yaw_rad': float((pose[2] + math.pi / 4) % (math.pi / 2) - math.pi / 4),
                    'overlap': overlap,
                    'pixels': sum(int(mask.sum()) for mask in masks.values()),
                }
            )
    return sorted(found, key=lambda one: -one['overlap'])


def _fitted(
    cameras: dict[str, Pinhole], masks: dict[str, Mask], start: Array, size_m: float
) -> tuple[Array, float]:
    """Return x, y, yaw of the box whose outlines cover the masks best, and how well they do."""

    patches = {name: _Patch(mask) for name, mask in masks.items()}

    def score(pose: Array) -> float:
        c, s = math.cos(pose[2]), math.sin(pose[2])
        turned = CORNERS @ np.array([[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]]) * size_m
        corners = turned + np.array([pose[0], pose[1], size_m / 2])
        overlaps = [patch.overlap(cameras[name].project(corners)) for name, patch in patches.items()]
        return sum(overlaps) / len(overlaps)

    turns = [np.array([*start[:2], yaw]) for yaw in np.linspace(0.0, math.pi / 2, 9)[:-1]]
    best = max(turns, key=score)
    value = score(best)
    step = np.array([size_m / 4, size_m / 4, 0.1])
    while step[0] > 2e-4:
        around = [best + step * np.array(way) for way in np.ndindex(3, 3, 3)]
        nearest = max((pose - step for pose in around), key=score)
        reached = score(nearest)
        if reached > value:
            best, value = nearest, reached
        else:
            step = step / 2
    return best, float(value)


class _Patch:
    """What is seen of an object in one picture, cut out and enlarged: its edges lie between pixels."""

    def __init__(self, mask: Mask) -> None:
        rows, columns = np.nonzero(mask)
        top, left = max(rows.min() - MARGIN, 0), max(columns.min() - MARGIN, 0)
        cut = mask[top : rows.max() + MARGIN + 1, left : columns.max() + MARGIN + 1]
        self._mask = np.kron(cut, np.ones((FINER, FINER), dtype=np.uint8))
        self._corner = np.array([left, top]) - 0.5

    def overlap(self, pixels: Array) -> float:
        """Return the intersection over union of what is seen and the outline around pixels (N, 2)."""
        import cv2

        finer = (pixels - self._corner) * FINER - 0.5
        outline = cv2.convexHull(finer.astype(np.float32))[:, 0]
        drawn = np.zeros_like(self._mask)
        cv2.fillConvexPoly(drawn, np.round(outline * 16).astype(np.int32), 1, shift=4)
        union = int(np.count_nonzero(drawn | self._mask))
        return int(np.count_nonzero(drawn & self._mask)) / union
