# SPDX-License-Identifier: Apache-2.0
"""Our objects to messages of the graph and back, bit for bit; errors too, so that a caller sees them as if
local."""

from __future__ import annotations

import array
from collections.abc import Mapping
from functools import cache

import numpy as np
from builtin_interfaces.msg import Time
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header

from openeta_msgs.msg import ActionChunk, Array, Failure
from openeta_msgs.msg import Observation as ObservationMessage
from openeta_msgs.msg import StepResult as StepResultMessage
from openeta_ros.control import ActionError
from openeta_ros.embodiment import EmbodimentError
from openeta_ros.envs import EnvError, StepResult
from openeta_ros.episodes import DemonstrationError
from openeta_ros.observation import NS_PER_S, MessageTypes, Observation, ObservationError
from openeta_ros.vector_policy import ManifestError, PolicyUnavailable


@cache
def ros_types() -> MessageTypes:
    """Return rclpy's message classes, for `image_message` and `joint_state_message`."""
    return MessageTypes(
        time=Time,
        header=Header,
        image=Image,
        joint_state=JointState,
        octets=octets,
        doubles=lambda values: array.array('d', values),
    )


def octets(values: np.ndarray) -> array.array[int]:
    """Return an array's bytes as a message takes them: one copy, where an ndarray would be checked byte by
    byte."""
    result = array.array('B')
    result.frombytes(memoryview(np.ascontiguousarray(values).reshape(-1)).cast('B'))
    return result


def time_message(ns: int) -> Time:
    """Return nanoseconds of ROS time as a message."""
    sec, nanosec = divmod(ns, NS_PER_S)
    return Time(sec=sec, nanosec=nanosec)


def time_ns(message: Time) -> int:
    """Return a time message as nanoseconds."""
    return int(message.sec) * NS_PER_S + int(message.nanosec)


def array_message(values: np.ndarray, name: str = '') -> Array:
    """Return an array as a message.

    Raises:
        ValueError: its dtype is none of the twelve that the message carries.
    """
    dtype = values.dtype.newbyteorder('<')
    if dtype.kind not in 'biuf' or dtype.itemsize > 8:
        raise ValueError(f'array {name!r}: dtype {values.dtype} cannot be sent')
    data = octets(values.astype(dtype, copy=False)) if values.size else array.array('B')
    return Array(name=name, dtype=dtype.str, shape=array.array('Q', values.shape), data=data)


def array_of(message: Array) -> np.ndarray | None:
    """Return the array of a message, a view of its bytes; None when it holds none."""
    if not message.dtype:
        return None
    return np.frombuffer(message.data, dtype=np.dtype(message.dtype)).reshape(tuple(message.shape))


def arrays_of(messages: list[Array]) -> dict[str, np.ndarray]:
    """Return the arrays of messages by name."""
    arrays = {message.name: array_of(message) for message in messages}
    return {name: values for name, values in arrays.items() if values is not None}


def observation_arrays(observation: Mapping[str, np.ndarray]) -> list[Array]:
    """Return an observation's (or a demonstration's) arrays as messages."""
    return [array_message(values, name) for name, values in observation.items()]


def observation_message(observation: Observation, embodiment: str) -> ObservationMessage:
    """Return an observation as a message."""
    header = Header(stamp=time_message(observation.stamp_ns), frame_id=embodiment)
    return ObservationMessage(header=header, arrays=observation_arrays(observation))


def chunk_message(
    actions: np.ndarray, action_type: str, *, embodiment: str, observation_ns: int = 0
) -> ActionChunk:
    """Return rows (H, A) or (A,) as a message.

    Raises:
        ActionError: their dtype is no number's.
    """
    try:
        rows = array_message(np.asarray(actions))
    except ValueError as error:
        raise ActionError('dtype', f'actions: {error}') from None
    return ActionChunk(
        header=Header(frame_id=embodiment),
        observation_stamp=time_message(observation_ns),
        action_type=action_type,
        actions=rows,
    )


def rows_of(chunk: ActionChunk) -> np.ndarray:
    """Return a chunk's rows.

    Raises:
        ActionError: it holds no array.
    """
    rows = array_of(chunk.actions)
    if rows is None:
        raise ActionError('shape', 'the chunk holds no rows; expected an array (H, A)')
    return rows


def step_message(result: StepResult) -> StepResultMessage:
    """Return a row's result as a message; its observation is on the topics, under the same stamp."""
    return StepResultMessage(
        stamp=time_message(result.observation.stamp_ns),
        reward=float(result.reward),
        terminated=bool(result.terminated),
        truncated=bool(result.truncated),
        success=bool(result.info['success']),
        step=int(result.info['step']),
        clamped=list(result.info['clamped']),
        executed=list(result.info.get('executed', ())),
        events=list(result.info.get('events', ())),
    )


def step_result(message: StepResultMessage, observation: Observation) -> StepResult:
    """Return a row's result, given the observation of its stamp."""
    return StepResult(
        observation=observation,
        reward=message.reward,
        terminated=message.terminated,
        truncated=message.truncated,
        info={
            'success': message.success,
            'step': int(message.step),
            'clamped': tuple(message.clamped),
            'events': tuple(message.events),
            'executed': tuple(message.executed),
        },
    )


# Errors that have no kind of their own, by the source that names them on the wire.
_PLAIN: dict[str, type[Exception]] = {
    'observation': ObservationError,
    'demonstration': DemonstrationError,
    'embodiment': EmbodimentError,
    'manifest': ManifestError,
}


def failure_message(error: BaseException) -> Failure:
    """Return an error as a message."""
    if isinstance(error, ActionError):
        row = -1 if error.row is None else error.row
        return Failure(source='action', kind=error.kind, message=str(error), row=row, joint=error.joint or '')
    if isinstance(error, EnvError):
        return Failure(source='env', kind=error.kind, message=str(error))
    if isinstance(error, PolicyUnavailable):
        source = 'policy' if error.remote_type is not None else 'policy_server'
        kind = error.remote_type if error.remote_type is not None else error.op
        return Failure(source=source, kind=kind or 'Error', message=error.message, log_tail=error.log_tail)
    for source, kind_of_error in _PLAIN.items():
        if isinstance(error, kind_of_error):
            return Failure(source=source, kind=type(error).__name__, message=str(error))
    name = type(error).__name__
    return Failure(source='internal', kind=name, message=f'{name}: {error}')


def error_of(failure: Failure) -> Exception | None:
    """Return the error that a message tells of, of the class that it had; None when it tells of none.

    Files that the other process could not use, its streams and its own faults come back as `EnvError` (kinds
    'observation', 'embodiment', 'internal', ...): to who asked, the env cannot go on.
    """
    if not failure.kind:
        return None
    if failure.source == 'action':
        row = None if failure.row < 0 else int(failure.row)
        return ActionError(failure.kind, failure.message, row=row, joint=failure.joint or None)
    if failure.source == 'policy':
        return PolicyUnavailable(failure.message, remote_type=failure.kind, log_tail=failure.log_tail)
    if failure.source in ('policy_server', 'manifest'):
        return PolicyUnavailable(failure.message, op=failure.kind, log_tail=failure.log_tail)
    return EnvError(failure.kind if failure.source == 'env' else failure.source, failure.message)
