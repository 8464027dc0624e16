# SPDX-License-Identifier: Apache-2.0
"""Depth comes in metres, with NaN where nothing was measured, however it was sent."""

from __future__ import annotations

import struct

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pictures import compressed, examples, image, pixels

from openeta_ros.observation import ImageError, decode_depth

NAN = np.nan
MILLIMETRES = np.array([[0, 1, 999], [1500, 40000, 65535]], np.uint16)
METRES = np.array([[NAN, 0.001, 0.999], [1.5, 40.0, 65.535]], np.float32)


def file(values: np.ndarray, kind: str = '.png') -> bytes:
    return cv2.imencode(kind, values)[1].tobytes()


def header(a: float = 0.0, b: float = 0.0) -> bytes:
    return struct.pack('<iff', 0, a, b)


def rvl(values: np.ndarray) -> bytes:
    """RVL as its paper has it: runs of zeros and of others; differences, zigzag, in nibbles of three bits."""
    nibbles: list[int] = []

    def put(number: int) -> None:
        while True:
            number, low = number >> 3, number & 7
            nibbles.append(low | (8 if number else 0))
            if not number:
                return

    flat, at, before = values.reshape(-1).tolist(), 0, 0
    while at < len(flat):
        start = at
        while at < len(flat) and flat[at] == 0:
            at += 1
        put(at - start)
        start = at
        while at < len(flat) and flat[at] != 0:
            at += 1
        put(at - start)
        for value in flat[start:at]:
            difference, before = value - before, value
            put(2 * difference if difference >= 0 else -2 * difference - 1)
    nibbles += [0] * (-len(nibbles) % 8)
    words = [int(''.join(f'{n:x}' for n in nibbles[k : k + 8]), 16) for k in range(0, len(nibbles), 8)]
    height, width = values.shape
    return struct.pack(f'<II{len(words)}I', width, height, *words)


@pytest.mark.parametrize('padding', [0, 3, 4])
@pytest.mark.parametrize('bigendian', [False, True])
def test_millimetres_become_metres(bigendian: bool, padding: int) -> None:
    depth = decode_depth(pixels(MILLIMETRES[:, :, None], '16UC1', bigendian=bigendian, padding=padding))
    assert depth.dtype == np.float32 and depth.flags.c_contiguous
    np.testing.assert_array_equal(depth, METRES)


@pytest.mark.parametrize('padding', [0, 3, 4])
@pytest.mark.parametrize('bigendian', [False, True])
def test_metres_stay_and_what_is_no_distance_is_nan(bigendian: bool, padding: int) -> None:
    values = np.array([[0.0, 1.25, -np.inf], [np.inf, NAN, -1.0]], np.float32)
    depth = decode_depth(pixels(values[:, :, None], '32FC1', bigendian=bigendian, padding=padding))
    np.testing.assert_array_equal(depth, np.array([[NAN, 1.25, NAN], [NAN, NAN, NAN]], np.float32))
    assert depth.dtype == np.float32 and depth.dtype.isnative


@pytest.mark.parametrize(
    ('data', 'text'),
    [
        (header() + file(MILLIMETRES), '16UC1; compressedDepth'),
        (header() + file(MILLIMETRES), '16UC1; compressedDepth png'),
        (header() + rvl(MILLIMETRES), '16UC1; compressedDepth rvl'),
        (file(MILLIMETRES), '16UC1; png compressed '),
        (file(MILLIMETRES), 'png'),
    ],
)
def test_compressed_millimetres(data: bytes, text: str) -> None:
    np.testing.assert_array_equal(decode_depth(compressed(data, text)), METRES)


@pytest.mark.parametrize(('name', 'write'), [('png', file), ('rvl', rvl)])
def test_quantised_inverse_depth(name: str, write: object) -> None:
    # depth_quantization 100, depth_max 10, as compressed_depth_image_transport computes them.
    a, b = 100.0 * 101.0, 1.0 - 100.0 * 101.0 / 10.0
    values = np.array([[0, 4041], [1, 65535]], np.uint16)  # 10100 / (4041 + 1009) = 2
    depth = decode_depth(compressed(header(a, b) + write(values), f'32FC1; compressedDepth {name}'))
    np.testing.assert_allclose(depth, [[NAN, 2.0], [10.0, 10100 / 66544]], rtol=1e-6)


def test_rvl_of_a_worked_example() -> None:
    # 0 0 5 7 0: two zeros, two others: 5 (10 = octal 12, low digit first) and +2 (4); one zero, no other.
    data = header() + struct.pack('<II', 5, 1) + bytes.fromhex('22a14100')[::-1]
    depth = decode_depth(compressed(data, '16UC1; compressedDepth rvl'))
    np.testing.assert_array_equal(depth, np.array([[NAN, NAN, 0.005, 0.007, NAN]], np.float32))


@examples(100)
@given(
    values=hnp.arrays(
        np.uint16,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=12),
        elements=st.one_of(st.just(0), st.integers(0, 65535)),
    )
)
def test_rvl_keeps_every_value(values: np.ndarray) -> None:
    depth = decode_depth(compressed(header() + rvl(values), '16UC1; compressedDepth rvl'))
    np.testing.assert_array_equal(np.nan_to_num(depth * 1000).round(), values)


@examples(200)
@given(data=st.binary(max_size=60), kind=st.sampled_from(['16UC1', '32FC1']), sizes=st.booleans())
def test_any_rvl_gives_its_picture_or_is_refused(data: bytes, kind: str, sizes: bool) -> None:
    data = header(1.0, 0.0) + (struct.pack('<II', 3, 4) if sizes else b'') + data
    try:
        depth = decode_depth(compressed(data, f'{kind}; compressedDepth rvl'))
    except ImageError:
        return
    assert depth.dtype == np.float32 and not (depth <= 0).any()


GREY = np.zeros((2, 3), np.uint8)


@pytest.mark.parametrize(
    ('message', 'told'),
    [
        (pixels(np.zeros((2, 3, 3), np.uint8), 'rgb8'), "'rgb8' is not depth; needed are 16UC1 or 32FC1"),
        (pixels(MILLIMETRES[:, :, None], 'mono16'), "'mono16' is not depth"),
        (pixels(MILLIMETRES[:, :, None], '64FC1'), "'64FC1' is not depth"),
        (image([[1, 2, 3]], '16UC1', 2), 'step 3 is less than 4'),
        (image([[1, 2, 3, 4]], '16UC1', 2, data=b'123'), 'needs 4 bytes; got 3'),
        (image([[1, 2, 3, 4]], '32FC1', 1, height=2**31), 'got 4'),
        (compressed(b'', '16UC1; compressedDepth'), '0 bytes; compressedDepth needs a header of 12'),
        (compressed(header(), '16UC1; compressedDepth'), '12 bytes; compressedDepth needs'),
        (compressed(header() + file(MILLIMETRES)[:-9], '16UC1; compressedDepth'), 'png file is truncated'),
        (compressed(header() + file(GREY), '16UC1; compressedDepth'), '8 bit and 1 values a pixel'),
        (compressed(file(GREY), 'png'), '8 bit and 1 values a pixel'),
        (compressed(file(np.zeros((2, 3, 3), np.uint16)), 'png'), '16 bit and 3 values a pixel'),
        (compressed(file(GREY, '.jpg'), 'jpeg'), "format 'jpeg' is not depth"),
        (compressed(file(MILLIMETRES), 'mono16; png compressed '), 'is not depth'),
        (compressed(file(MILLIMETRES), '32FC1; png compressed '), 'is not depth'),
        (compressed(header(NAN) + file(MILLIMETRES), '32FC1; compressedDepth png'), 'the quantisation'),
        (compressed(header() + rvl(MILLIMETRES)[:-4], '16UC1; compressedDepth rvl'), 'truncated or damaged'),
        (compressed(header() + rvl(MILLIMETRES)[:3], '16UC1; compressedDepth rvl'), 'rvl picture claims 0'),
        (compressed(header() + b'\xff' * 90, '16UC1; compressedDepth rvl'), 'rvl picture claims 4294967295'),
    ],
)
def test_what_is_no_depth_is_refused_by_name(message: object, told: str) -> None:
    with pytest.raises(ImageError, match=told) as caught:
        decode_depth(message)
    assert caught.value.stamp_ns == 12_000_000_005
