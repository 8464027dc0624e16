# SPDX-License-Identifier: Apache-2.0
"""What crosses the graph arrives bit for bit: arrays, results, and errors as if they were local."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip('rclpy')

from rclpy.serialization import deserialize_message, serialize_message

from openeta_msgs.msg import Array, Failure
from openeta_ros.control import ActionError
from openeta_ros.envs import EnvError, StepResult
from openeta_ros.nodes import messages
from openeta_ros.observation import Observation, ObservationError, decode_image, image_message
from openeta_ros.vector_policy import ManifestError, PolicyUnavailable

DTYPES = ['?', 'i1', 'u1', '<i2', '>i2', '<i4', '<i8', '<u2', '<u4', '<u8', '<f2', '<f4', '<f8', '>f8']


@pytest.mark.parametrize('shape', [(), (0,), (3, 0, 2), (2, 3)])
@pytest.mark.parametrize('dtype', DTYPES)
def test_an_array_arrives_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    sent = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    wire = serialize_message(messages.array_message(sent, 'name'))
    received = messages.array_of(deserialize_message(wire, Array))
    assert received is not None and received.shape == shape
    assert received.dtype == np.dtype(dtype).newbyteorder('<')
    np.testing.assert_array_equal(received, sent)


def test_what_is_not_a_number_stays_what_it_is() -> None:
    sent = np.array([np.nan, -0.0, np.inf, 5e-324])
    received = messages.array_of(messages.array_message(sent))
    assert received is not None and received.tobytes() == sent.tobytes()


def test_strided_arrays_are_compacted_and_no_array_is_none() -> None:
    sent = np.arange(12).reshape(3, 4)[::-1, ::2]
    np.testing.assert_array_equal(messages.array_of(messages.array_message(sent)), sent)
    assert messages.array_of(Array()) is None
    assert messages.arrays_of([Array(name='none'), messages.array_message(sent, 'some')]).keys() == {'some'}


@pytest.mark.parametrize('dtype', ['O', 'U3', 'c16', 'M8[s]', 'g'])
def test_rows_that_are_no_numbers_are_refused(dtype: str) -> None:
    with pytest.raises(ActionError) as refused:
        messages.chunk_message(np.zeros((1, 2), dtype), 'qpos', embodiment='arm')
    assert refused.value.kind == 'dtype'


def test_a_picture_is_the_same_through_ros() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    message = image_message(picture, 1_500_000_000, frame_id='front', types=messages.ros_types())
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (1, 500_000_000)
    np.testing.assert_array_equal(decode_image(message), picture)


def test_a_row_result_is_the_same_through_ros() -> None:
    seen = Observation({'qpos': np.zeros(1)}, 1_050_000_000)
    info = {'success': True, 'step': 7, 'clamped': ('joint1', 'arm.workspace')}
    info |= {'events': ('a chunk was late',), 'executed': (0.1, 1.0)}
    sent = StepResult(seen, 1.0, True, False, info)
    message = messages.step_message(sent)
    assert messages.time_ns(message.stamp) == seen.stamp_ns
    assert messages.step_result(message, seen) == sent


@pytest.mark.parametrize(
    'error',
    [
        ActionError('limit', 'row 3: joint1 would be 9 rad', row=3, joint='joint1'),
        ActionError('shape', 'not (H, A)', row=None, joint=None),
        EnvError('done', 'the episode ended'),
        PolicyUnavailable(
            'act: ValueError: no', op='act', remote_type='ValueError', log_tail='line 1\nline 2'
        ),
        PolicyUnavailable('act: the policy went away', op='act', log_tail='last words'),
    ],
)
def test_an_error_comes_back_as_it_was(error: Exception) -> None:
    wire = serialize_message(messages.failure_message(error))
    back = messages.error_of(deserialize_message(wire, Failure))
    assert type(back) is type(error) and str(back) == str(error)
    for name in ('kind', 'row', 'joint', 'remote_type', 'log_tail'):
        assert getattr(back, name, None) == getattr(error, name, None)


def test_errors_of_files_streams_and_faults_keep_their_sentence() -> None:
    manifest = messages.error_of(messages.failure_message(ManifestError('p.yaml', ['api: required'])))
    assert isinstance(manifest, PolicyUnavailable) and 'api: required' in str(manifest)
    stream = messages.error_of(messages.failure_message(ObservationError('joint elbow is missing')))
    assert isinstance(stream, EnvError) and (stream.kind, str(stream)) == (
        'observation',
        'joint elbow is missing',
    )
    fault = messages.error_of(messages.failure_message(ZeroDivisionError('by zero')))
    assert isinstance(fault, EnvError) and fault.kind == 'internal' and 'ZeroDivisionError' in str(fault)
    assert messages.error_of(Failure()) is None
