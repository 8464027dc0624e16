# SPDX-License-Identifier: Apache-2.0
"""Forward and inverse kinematics on the robot description, URDF or MJCF, with Pinocchio.

Poses are (7,) float64 `x y z qw qx qy qz` of the arm's tool point in its base frame, in metres.
Everything here is deterministic: the same question always has the same answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from openeta_ros.embodiment.arm import POSE_SIZE, ROTATION_TOLERANCE_RAD, Arm
from openeta_ros.embodiment.description import add_prefix, model_of_file, model_of_urdf
from openeta_ros.embodiment.errors import KinematicsError
from openeta_ros.embodiment.schema import Embodiment

Array = npt.NDArray[np.float64]

# The solver goes on below the tolerance, where a step or two more cost nothing and rows stay smooth. But
# close to a singularity the last of it would throw the joints about: there a solution within the tolerance
# will do.
CONVERGED = 1e-9
CALM_STEP_RAD = 0.02
ITERATIONS = 60
RESTARTS, ENOUGH = 40, 4
# Without damping a singular pose throws the arm about; this much of the squared error keeps convergence fast.
DAMPING, LEAST_DAMPING = 0.1, 1e-9
LARGEST_STEP_RAD = 0.5
# A redundant arm goes back to its home posture as it moves, this much of what it moves.
HOMEWARD = 0.5
# A solution that takes more than this at once, found from elsewhere, is another posture of the arm.
SAME_POSTURE_RAD = 0.5


class Kinematics:
    """The kinematics of every arm of a contract."""

    def __init__(self, embodiment: Embodiment, description: str | None = None) -> None:
        """Read the description: the URDF that is given or that the contract was given, or the contract's
        file.

        Raises:
            EmbodimentError: there is no description file.
            KinematicsError: it does not parse, it lacks a joint or frame that the contract names, or the home
                lies outside of its limits.
        """
        given = embodiment.described_text if description is None else (description, 'the one given')
        if given is None:
            source, path = embodiment.description_source()
            name, model = str(path), model_of_file(path, source.arguments)
        else:
            source = embodiment.live_description or embodiment.description
            name = f'the robot description of {embodiment.name} ({given[1]})'
            model = model_of_urdf(given[0], name)
        if source.prefix:
            add_prefix(model, source.prefix)
        self._chains = {key: _Chain(key, arm, model, name) for key, arm in embodiment.arms.items()}

    @property
    def position_limits(self) -> Array:
        """(joints, 2) low and high of every arm joint in wire order, without grippers; in rad or m."""
        return np.concatenate([chain.limits for chain in self._chains.values()])

    @property
    def units(self) -> list[str]:
        """`rad` or `m`, for each row of `position_limits`."""
        return [unit for chain in self._chains.values() for unit in chain.units]

    def forward(self, arm: str, q: npt.ArrayLike) -> Array:
        """Return the pose (7,) of an arm's tool point in its base frame, for its joints q (J,).

        Of the quaternion's two signs it is the one nearer to that of the home pose, so that the numbers of a
        policy do not jump while a tool points down, where the scalar part is near zero.
        """
        return self._chains[arm].forward(np.asarray(q, dtype=np.float64))

    def lowest(self, arm: str, q: npt.ArrayLike) -> float:
        """Return the height in the base frame, in metres, of the lowest of an arm's joints and tool point.

        The first joint does not count: nothing moves it.
        """
        return self._chains[arm].lowest(np.asarray(q, dtype=np.float64))

    def inverse(
        self, arm: str, pose: npt.ArrayLike, seed_q: npt.ArrayLike, *, same_posture: bool = False
    ) -> Array:
        """Return joints (J,) within their limits that bring an arm's tool point to a pose (7,).

        The solution is sought from the seed on; only where that leads nowhere from elsewhere, and then the
        one nearest to the seed is taken. Of an arm with more joints than six, what the pose leaves free goes
        a little towards home.

        Args:
            arm: the arm's name.
            pose: (7,) in the base frame; the quaternion need not have length 1.
            seed_q: (J,) where the arm is.
            same_posture: refuse solutions in another posture, as between rows of a chunk, which the arm could
                not reach without leaving its path.

        Raises:
            KinematicsError: no joints within the limits reach the pose within the contract's tolerances
                (`ik`), or none without a jump.
        """
        return self._chains[arm].inverse(
            np.asarray(pose, dtype=np.float64), np.asarray(seed_q, dtype=np.float64), same_posture
        )


class _Chain:
    """The joints of one arm, from its base frame to its tool point."""

    def __init__(self, name: str, arm: Arm, model: Any, description: str) -> None:
        import pinocchio as pin

        self._pin, self._name, self._where = pin, name, f'{description}: arm {name}'
        self._joints, self._ik = arm.joints, arm.ik
        self._position_first = arm.ik.rotation_tolerance_rad > ROTATION_TOLERANCE_RAD
        joint_names = list(model.names)[1:]
        for joint in arm.joints:
            if joint not in joint_names:
                raise KinematicsError(f'{self._where} has no joint {joint!r}, only {", ".join(joint_names)}')
        # What is not this arm's stays at the description's zero: only what lies between base and tool counts.
        others = [model.getJointId(joint) for joint in joint_names if joint not in arm.joints]
        self._model = pin.buildReducedModel(model, others, pin.neutral(model))
        self._add_frames(arm)
        self._data = self._model.createData()
        self._add_joints(arm)
        low, high = self.limits.T
        home = np.array(arm.home[: len(arm.joints)], dtype=np.float64)
        for joint, value, least, most in zip(arm.joints, home, low, high, strict=True):
            if not least <= value <= most:
                limits = f'{least:g} to {most:g}'
                raise KinematicsError(
                    f'{self._where}: home of {joint} is {value:g}, outside its limits {limits}'
                )
        self._sign_reference = np.zeros(4)
        quaternion = self.forward(home)[3:]
        self._sign_reference = quaternion * np.sign(quaternion[np.argmax(np.abs(quaternion))])
        self._home = home
        low, high = np.maximum(low, home - np.pi), np.minimum(high, home + np.pi)
        random = self._random = np.random.default_rng(0).uniform(size=(RESTARTS, len(home)))
        self._restarts = [home, *(low + random * (high - low))]

    def _add_frames(self, arm: Arm) -> None:
        base, tool = (self._frame(name) for name in (arm.base_frame, arm.tool_frame))
        if base.parentJoint != 0:
            raise KinematicsError(
                f'{self._where}: its base frame {arm.base_frame!r} is moved by its own joints'
            )
        offset = _se3(self._pin, np.array([*arm.tool_offset.xyz, *arm.tool_offset.wxyz]))
        point = self._pin.Frame(
            f'{self._name} tool point',
            tool.parentJoint,
            0,
            tool.placement * offset,
            self._pin.FrameType.OP_FRAME,
        )
        # A copy: adding a frame moves the others in memory.
        self._base, self._point = base.placement.copy(), self._model.addFrame(point)

    def _frame(self, name: str) -> Any:
        # A URDF may give a joint and a link the same name: the link is meant.
        frames = [frame for frame in self._model.frames if frame.type != self._pin.FrameType.JOINT]
        for frame in frames:
            if frame.name == name:
                return frame
        known = ', '.join(sorted({frame.name for frame in frames}))
        raise KinematicsError(f'{self._where} has no frame {name!r}, only {known}')

    def _add_joints(self, arm: Arm) -> None:
        models = [self._model.joints[self._model.getJointId(joint)] for joint in arm.joints]
        for joint, model in zip(arm.joints, models, strict=True):
            if model.nv != 1:
                raise KinematicsError(
                    f'{self._where}: joint {joint!r} moves in {model.nv} ways; it must be one'
                )
        self._revolute = np.array([not model.shortname().startswith('JointModelP') for model in models])
        self.units = ['rad' if revolute else 'm' for revolute in self._revolute]
        self._columns = np.array([model.idx_v for model in models])
        self._index = np.array([model.idx_q for model in models])
        # A joint without end is two numbers to Pinocchio, its cosine and sine.
        self._endless = np.array([model.nq == 2 for model in models])
        self._any_endless = bool(self._endless.any())
        low, high = self._model.lowerPositionLimit[self._index], self._model.upperPositionLimit[self._index]
        described = np.stack(
            [np.where(self._endless, -np.inf, low), np.where(self._endless, np.inf, high)], axis=1
        )
        given = arm.limits.position
        self.limits: Array = described if given == 'from_description' else np.array(given, dtype=np.float64)

    def _configuration(self, q: Array) -> Array:
        configuration = np.empty(self._model.nq)
        if not self._any_endless:
            configuration[self._index] = q
            return configuration
        configuration[self._index] = np.where(self._endless, np.cos(q), q)
        configuration[self._index[self._endless] + 1] = np.sin(q[self._endless])
        return configuration

    def forward(self, q: Array) -> Array:
        self._pin.forwardKinematics(self._model, self._data, self._configuration(q))
        placement = self._pin.updateFramePlacement(self._model, self._data, self._point)
        pose = self._base.actInv(placement)
        quaternion = self._pin.Quaternion(pose.rotation).normalized().coeffs()[[3, 0, 1, 2]]
        if quaternion @ self._sign_reference < 0:
            quaternion = -quaternion
        return np.concatenate([pose.translation, quaternion])

    def lowest(self, q: Array) -> float:
        self._pin.forwardKinematics(self._model, self._data, self._configuration(q))
        point = self._pin.updateFramePlacement(self._model, self._data, self._point)
        moved = [placement.translation for placement in list(self._data.oMi)[2:]]
        return float(min(self._base.actInv(place)[2] for place in [*moved, point.translation]))

    def inverse(self, pose: Array, seed_q: Array, same_posture: bool) -> Array:
        largest = np.abs(pose[3:]).max() if pose.shape == (POSE_SIZE,) else 0.0
        if not np.all(np.isfinite(pose)) or largest == 0:
            expected = 'a pose is 7 finite numbers x y z qw qx qy qz with a quaternion that is not zero'
            raise KinematicsError(f'{self._name}: {expected}; found {pose}')
        target = self._base * _se3(self._pin, np.concatenate([pose[:3], pose[3:] / largest]))
        q, nearest = self._descend(target, seed_q)
        if self._reached(nearest) and (same_posture or self._turned(nearest)):
            return q
        found = [(nearest, q)] if self._reached(nearest) else []
        for start in [*self._around(seed_q), *(() if same_posture else self._restarts)]:
            q, error = self._descend(target, start)
            if np.linalg.norm(error) < np.linalg.norm(nearest):
                nearest = error
            if self._reached(error):
                found.append((error, self._unwound(q, seed_q)))
            if sum(self._turned(error) for error, _ in found) == ENOUGH:
                break
        what = f'{self._name} does not reach {" ".join(f"{value:.4g}" for value in pose)}'
        if not found:
            metres, radians = np.linalg.norm(nearest[:3]), np.linalg.norm(nearest[3:])
            raise KinematicsError(
                f'{what}: within joint limits {metres:.4g} m and {radians:.4g} rad remain; '
                'give a pose nearer to the arm'
            )
        # Where the rotation need not be met, what meets it all the same comes first.
        _, q = min(found, key=lambda one: (not self._turned(one[0]), float(np.abs(one[1] - seed_q).max())))
        moves = np.abs(q - seed_q)
        if same_posture and moves.max() > SAME_POSTURE_RAD:
            joint = self._joints[int(moves.argmax())]
            raise KinematicsError(
                f'{what} without a jump to another posture, which would move {joint} by {moves.max():.3g}; '
                'give poses that the arm can follow'
            )
        return q

    def _around(self, seed_q: Array) -> list[Array]:
        """Return a few starts near the seed, for where a limit blocks the way straight on."""
        return [seed_q + SAME_POSTURE_RAD * (2 * one - 1) for one in self._random[:8]]

    def _reached(self, error: Array) -> bool:
        return bool(
            np.linalg.norm(error[:3]) <= self._ik.position_tolerance_m
            and np.linalg.norm(error[3:]) <= self._ik.rotation_tolerance_rad
        )

    def _turned(self, error: Array) -> bool:
        """Whether the rotation is met as closely as of an arm that can meet all of them."""
        return bool(np.linalg.norm(error[3:]) <= min(self._ik.rotation_tolerance_rad, ROTATION_TOLERANCE_RAD))

    def _unwound(self, q: Array, seed_q: Array) -> Array:
        """Return q less whole turns where that brings a joint nearer to the seed, within its limits."""
        turned = q + 2 * np.pi * np.round((seed_q - q) / (2 * np.pi))
        low, high = self.limits.T
        allowed = (self._revolute) & (low <= turned) & (turned <= high)
        return np.asarray(np.where(allowed, turned, q))

    def _descend(self, target: Any, start: Array) -> tuple[Array, Array]:
        """Return where damped least squares lead from a start, and the error (6,) that is left there."""
        pin, model, data = self._pin, self._model, self._data
        q = np.clip(start, *self.limits.T)
        for iteration in range(ITERATIONS + 1):
            pin.computeJointJacobians(model, data, self._configuration(q))
            jacobian = pin.getFrameJacobian(model, data, self._point, pin.ReferenceFrame.LOCAL)
            remaining = pin.updateFramePlacement(model, data, self._point).actInv(target)
            error = np.concatenate([remaining.translation, pin.log3(remaining.rotation)])
            with np.errstate(over='ignore'):
                squared = error @ error
            if squared < CONVERGED**2 or not np.isfinite(squared) or iteration == ITERATIONS:
                break
            step = self._step(q, error, jacobian[:, self._columns])
            largest = np.abs(step).max()
            if self._reached(error) and (largest > CALM_STEP_RAD or largest < CONVERGED):
                break
            step *= min(1.0, LARGEST_STEP_RAD / max(largest, LEAST_DAMPING))
            q = np.clip(q + step, *self.limits.T)
        return q, error

    def _step(self, q: Array, error: Array, jacobian: Array) -> Array:
        """Return how q goes on; a joint that would leave its limits stands still."""
        low, high = self.limits.T
        free = np.ones(len(q), dtype=bool)
        while True:
            columns = np.where(free, jacobian, 0.0)
            step = self._solved(columns, error)
            if len(q) > 6:
                step += self._homeward(q, columns, free, HOMEWARD * np.abs(step).max())
            blocked = ((q <= low) & (step < 0)) | ((q >= high) & (step > 0))
            if not blocked.any():
                return step
            free &= ~blocked

    def _solved(self, columns: Array, error: Array) -> Array:
        """Return the damped step towards a pose; the position comes first if the rotation may differ."""
        if not self._position_first:
            return _damped(columns, error)
        step = _damped(columns[:3], error[:3])
        rest = columns[3:] @ _nullspace(columns[:3])
        return step + _nullspace(columns[:3]) @ _damped(rest, error[3:] - columns[3:] @ step)

    def _homeward(self, q: Array, columns: Array, free: npt.NDArray[np.bool_], largest: float) -> Array:
        """Return a step that moves the joints towards home and the tool point nowhere."""
        away = self._home - q
        away = np.where(self._endless, np.arctan2(np.sin(away), np.cos(away)), away)
        step = _nullspace(columns) @ np.where(free, away, 0.0)
        return np.asarray(step * min(1.0, largest / max(np.abs(step).max(), LEAST_DAMPING)))


def _damped(columns: Array, error: Array) -> Array:
    damping = DAMPING * (error @ error) + LEAST_DAMPING
    return np.asarray(
        columns.T @ np.linalg.solve(columns @ columns.T + damping * np.eye(len(columns)), error)
    )


def _nullspace(columns: Array) -> Array:
    """Return the projector onto the joint motions that the rows of a Jacobian do not see."""
    square = columns @ columns.T + LEAST_DAMPING * np.eye(len(columns))
    return np.asarray(np.eye(columns.shape[1]) - columns.T @ np.linalg.solve(square, columns))


def _se3(pin: Any, pose: Array) -> Any:
    w, x, y, z = pose[3:]
    return pin.SE3(pin.Quaternion(w, x, y, z).normalized(), pose[:3])
