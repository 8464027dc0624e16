# SPDX-License-Identifier: Apache-2.0
"""Looks for a coloured cube on the table, and picks it up: pictures in, tool poses out, no demonstration.

Try it: openeta eval --policy examples/visual_pick_policy --demonstration none --env mujoco

Where the cameras stand is given (in policy.yaml), as after a calibration. The middle of the colour in each
picture gives a line of sight, which meets the height of the cube's middle where the cube stands; how it is
turned is tried out, by drawing the outlines of turned cubes over the colour.
"""

from __future__ import annotations

import cv2
import numpy as np

#: Rows that are answered at a time.
CHUNK = 10
#: Smaller spots of the colour are no cube: pixels.
SMALLEST = 30
#: Metres a row, and of the gripper's way of 1.
STEP_M, STEP_GRIPPER = 0.02, 0.25
ABOVE_M = 0.08
#: Turns of a cube that look different, 3 degrees apart.
TURNS = np.radians(np.arange(-45, 45, 3))
#: Corners of a cube with edges of 1, around its middle.
CORNERS = np.array([(x, y, z) for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])


class Camera:
    """A pinhole at a place: from pixels to lines of sight, and from points to pixels."""

    def __init__(self, position_m, look_at_m, fovy_deg):
        self.position = np.array(position_m, dtype=float)
        forward = np.array(look_at_m) - self.position
        right = np.cross(forward, (0.0, 0.0, 1.0))
        axes = np.array([right, np.cross(forward, right), forward])
        self._axes = axes / np.linalg.norm(axes, axis=1, keepdims=True)
        self._tangent = np.tan(np.radians(fovy_deg) / 2)

    def at_height(self, pixel, shape, z):
        """The point at this height that is seen at a pixel (column, row)."""
        height, width = shape
        focal = height / 2 / self._tangent
        sight = np.array([pixel[0] - (width - 1) / 2, pixel[1] - (height - 1) / 2, focal]) @ self._axes
        return self.position + sight * (z - self.position[2]) / sight[2]

    def pixels(self, points, shape):
        height, width = shape
        seen = (points - self.position) @ self._axes.T
        focal = height / 2 / self._tangent
        return seen[:, :2] / seen[:, 2:] * focal + ((width - 1) / 2, (height - 1) / 2)


class VisualPickPolicy:
    action_type = 'ee'

    def __init__(self, cameras, hue_deg=0, cube_m=0.04, lift_m=0.16):
        self._cameras = {name: Camera(**where) for name, where in cameras.items()}
        self._hue, self._cube_m, self._lift_m = hue_deg / 2, cube_m, lift_m  # OpenCV counts 2 degrees
        self._rows = None

    def set_demonstration(self, arrays, info):
        pass  # the pictures tell

    def reset(self, seed):
        self._rows = None

    def act(self, observation):
        now = observation['endpose']
        if self._rows is None:
            cube = self._find(observation)
            if cube is None:
                return {'action': now}  # stay, and look again
            self._rows = self._plan(now, *cube)
        rows, self._rows = self._rows[:CHUNK], self._rows[CHUNK:]
        if not len(self._rows):
            self._rows = rows[-1:]  # hold it
        return {'action': rows}

    def _find(self, observation):
        """The middle (3,) of the cube and its turn about the vertical, or None when no camera sees it."""
        masks = {name: self._mask(observation[f'frames_{name}']) for name in self._cameras}
        masks = {name: mask for name, mask in masks.items() if mask is not None}
        if not masks:
            return None
        middles = []
        for name, mask in masks.items():
            rows, columns = np.nonzero(mask)
            pixel = columns.mean(), rows.mean()
            middles.append(self._cameras[name].at_height(pixel, mask.shape, self._cube_m / 2))
        middle = np.mean(middles, axis=0)
        return middle, max(TURNS, key=lambda turn: self._overlap(masks, middle, turn))

    def _mask(self, frame):
        """The largest spot of the colour, None when there is none."""
        hue, saturation, value = cv2.split(cv2.cvtColor(frame, cv2.COLOR_RGB2HSV))
        away = np.abs((hue.astype(int) - self._hue + 90) % 180 - 90)
        coloured = ((away < 8) & (saturation > 120) & (value > 40)).astype(np.uint8)
        _, spots, figures, _ = cv2.connectedComponentsWithStats(coloured)
        sizes = figures[1:, cv2.CC_STAT_AREA]
        return spots == 1 + sizes.argmax() if len(sizes) and sizes.max() >= SMALLEST else None

    def _overlap(self, masks, middle, turn):
        """How well a cube there, turned so, covers the colour: 1 is exactly."""
        x, y, z = self._cube_m * CORNERS.T
        turned = np.stack(
            [x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn), z], axis=1
        )
        share = 0.0
        for name, mask in masks.items():
            outline = cv2.convexHull(
                self._cameras[name].pixels(middle + turned, mask.shape).astype(np.float32)
            )
            drawn = np.zeros(mask.shape, np.uint8)
            cv2.fillConvexPoly(drawn, np.round(outline * 16).astype(int), 1, shift=4)
            share += np.sum(mask & (drawn > 0)) / np.sum(mask | (drawn > 0))
        return share

    def _plan(self, now, middle, turn):
        """Rows of tool poses: above the cube, down, close, up. The tool points down, as it does at home."""
        quaternion = turned_about_z(now[3:7], turn)
        path, place = [], np.concatenate([now[:7], [1.0]])
        up = np.array([0.0, 0.0, 1.0])
        above, lifted = middle + ABOVE_M * up, middle + self._lift_m * up
        for position, openness in ((above, 1.0), (middle, 1.0), (middle, 0.0), (lifted, 0.0)):
            goal = np.concatenate([position, quaternion, [openness]])
            way = np.linalg.norm(goal[:3] - place[:3])
            count = max(2, int(np.ceil(1.875 * way / STEP_M)), int(abs(openness - place[7]) / STEP_GRIPPER))
            path += list(place + profile(count)[:, None] * (goal - place))
            path += [goal] * (4 if openness == 0.0 and way == 0.0 else 0)  # until the fingers hold it
            place = goal
        return np.array(path + [place] * CHUNK)


def turned_about_z(quaternion, angle):
    """A quaternion w x y z after a turn about the vertical."""
    c, s = np.cos(angle / 2), np.sin(angle / 2)
    w, x, y, z = quaternion
    return np.array([c * w - s * z, c * x - s * y, c * y + s * x, c * z + s * w])


def profile(count):
    """Shares of a way, from just after 0 to 1, that begin and end without a jerk."""
    s = np.arange(1, count + 1) / count
    return s**3 * (10 - 15 * s + 6 * s**2)
