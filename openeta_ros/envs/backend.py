# SPDX-License-Identifier: Apache-2.0
"""What a simulator must be able to do, and the scene that every simulator builds alike.

World frame: metres, z up, the robot's base at the origin, the table's surface at z = 0. Poses are
(7,) float64 `x y z qw qx qy qz`. Nothing here knows a simulator: `envs/simulated.py` holds the row loop
that all of them share, so that one file per simulator is all that a new backend needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from openeta_ros.embodiment import Camera

Array = npt.NDArray[np.float64]
Picture = npt.NDArray[np.uint8]
Triple = tuple[float, float, float]
Colour = tuple[float, float, float, float]


@dataclass(frozen=True)
class Box:
    """A movable box.

    `size_m` holds full edge lengths, `pose` is that of its centre, `rgba` is 0..1.
    """

    name: str
    size_m: Triple
    pose: tuple[float, ...]
    rgba: Colour
    mass_kg: float = 0.05
    friction: float = 0.5


@dataclass(frozen=True)
class Marker:
    """Something to look at, without mass or collision: a sphere, or a flat disc when `height_m` is given.

    `position_m` is the centre of the sphere, or of the disc (`height_m` is its full thickness along z).
    """

    name: str
    position_m: Triple
    radius_m: float
    rgba: Colour
    height_m: float | None = None


@dataclass(frozen=True)
class CameraPose:
    """A fixed pinhole camera: where it is, what it looks at, which way is up, its vertical opening angle."""

    position_m: Triple
    look_at_m: Triple
    up: Triple
    fovy_deg: float


@dataclass(frozen=True)
class Table:
    """A fixed box whose upper surface is z = 0; the floor (drawn, and solid) is at `floor_z_m`."""

    centre_m: tuple[float, float] = (0.3, 0.0)
    size_m: Triple = (1.1, 1.2, 0.05)
    rgba: Colour = (0.78, 0.72, 0.63, 1.0)
    floor_z_m: float = -0.6
    floor_rgba: Colour = (0.32, 0.36, 0.40, 1.0)
    friction: float = 0.5


# Height and width of a camera whose contract names no size.
DEFAULT_SIZE = (240, 320)

# Both look at the workspace from across the table: front from its corner and low, so that the height of a
# lifted cube shows, top steeply, but not so steeply that the hand hides what it grasps.
CAMERAS: Mapping[str, CameraPose] = {
    'front': CameraPose((1.15, 0.70, 0.55), (0.32, -0.02, 0.22), (0.0, 0.0, 1.0), 42.0),
    'top': CameraPose((1.0, 0.0, 0.92), (0.37, 0.0, 0.09), (0.0, 0.0, 1.0), 40.0),
}


@dataclass(frozen=True)
class Scene:
    """Everything around the robot. Poses change with the seed; names, sizes and colours are the task's."""

    boxes: tuple[Box, ...] = ()
    markers: tuple[Marker, ...] = ()
    cameras: Mapping[str, CameraPose] = field(default_factory=lambda: dict(CAMERAS))
    table: Table = Table()

    def with_box_poses(self, poses: Mapping[str, Array]) -> Scene:
        """Return the same scene with its boxes where `poses` (7,) say; every box must be named."""
        boxes = tuple(replace(box, pose=tuple(float(v) for v in poses[box.name])) for box in self.boxes)
        return replace(self, boxes=boxes)


class Backend(Protocol):
    """A physics simulator holding one robot and one scene.

    A factory makes it: `factory(embodiment, joints, scene, options)`, where `joints` are the names of all
    commanded joints (fingers and mimics included, each driven by a position servo of its own with the
    gains of `embodiment.simulation`), and `scene` fixes what exists; `reset` moves it. Every (J,) array
    below is in the order of `joints`, in the joint's own unit (rad or m).

    Gravity does not act on the robot (a real arm's controller compensates for it), so that a servo settles
    at its target. Everything is called from the thread that made the backend.

    After `reset` with equal arguments equal calls give bit-equal results, in this process and in another:
    whatever a solver keeps between steps (warm start, contact cache, time) starts anew.
    """

    joint_names: tuple[str, ...]
    physics_dt_s: float
    """Seconds that `step_physics` advances; divides the contract's row, see `physics_steps`."""

    version: str
    """The simulator and its version, as in `mujoco 3.3.0`."""

    def reset(self, scene: Scene, positions: Array) -> None:
        """Put boxes and markers where `scene` has them and the joints at `positions` (J,), all at rest.

        The servo targets become `positions` too. No physics step is made here.
        """

    def set_targets(self, targets: Array) -> None:
        """Give every servo its target (J,) float64; holds until the next call."""

    def step_physics(self) -> None:
        """Advance the simulation by `physics_dt_s`."""

    def joint_positions(self) -> Array:
        """Return the measured positions (J,) float64, a copy."""

    def joint_velocities(self) -> Array:
        """Return the measured velocities (J,) float64, a copy."""

    def object_poses(self) -> dict[str, Array]:
        """Return the pose (7,) float64 of every box, by name."""

    def object_velocities(self) -> dict[str, Array]:
        """Return the linear velocity (3,) float64 m/s of every box's centre, by name."""

    def picture(self, camera: str) -> Picture:
        """Draw the scene as it is: (H, W, 3) uint8 RGB, a new array of the camera's `picture_size`."""

    def close(self) -> None:
        """Free the simulator and its windows. Called once."""


def picture_size(camera: Camera) -> tuple[int, int]:
    """Return the (H, W) to draw for a camera of the contract: upright, before its crop and its resizing."""
    if camera.crop is not None:
        top, left, height, width = camera.crop
        return top + height, left + width
    return camera.size or DEFAULT_SIZE


def physics_steps(rate_hz: float, longest_s: float) -> tuple[int, float]:
    """Return how many equal physics steps make one row of the contract, and the seconds of each.

    The fewest steps not longer than `longest_s`: a row then lasts exactly 1 / rate_hz.
    """
    count = max(1, int(np.ceil(1.0 / (rate_hz * longest_s) - 1e-9)))
    return count, 1.0 / (rate_hz * count)
