# SPDX-License-Identifier: Apache-2.0
"""Every encoding of a picture message becomes the right RGB, and what cannot is refused by name."""

from __future__ import annotations

import array
import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import examples, image, pixels

from openeta_ros.observation import ImageError, decode_image, image_message

RGB = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
WIDE = np.array([[0, 255, 256], [4096, 32768, 65535]], np.uint16)
WIDE_AS_8_BIT = np.array([[0, 1, 1], [16, 128, 255]])
# Channels of each order of colours, as indices into RGBA.
ORDERS = {'rgb': [0, 1, 2], 'bgr': [2, 1, 0], 'rgba': [0, 1, 2, 3], 'bgra': [2, 1, 0, 3]}


def with_alpha(rgb: np.ndarray) -> np.ndarray:
    return np.concatenate([rgb, np.full_like(rgb[:, :, :1], 7)], axis=2)


@pytest.mark.parametrize('padding', [0, 5])
@pytest.mark.parametrize(('name', 'order'), ORDERS.items())
def test_every_order_of_channels_becomes_the_same_rgb(name: str, order: list[int], padding: int) -> None:
    decoded = decode_image(pixels(with_alpha(RGB)[:, :, order], f'{name}8', padding=padding))
    assert decoded.dtype == np.uint8 and decoded.flags.c_contiguous
    np.testing.assert_array_equal(decoded, RGB)


@pytest.mark.parametrize('padding', [0, 5, 6])
@pytest.mark.parametrize('bigendian', [False, True])
@pytest.mark.parametrize(('name', 'order'), ORDERS.items())
def test_16_bit_becomes_8_bit_in_either_byte_order(
    name: str, order: list[int], bigendian: bool, padding: int
) -> None:
    rgb = np.stack([WIDE, WIDE[::-1], WIDE.T.reshape(2, 3)], axis=2)
    values = with_alpha(rgb)[:, :, order]
    decoded = decode_image(pixels(values, f'{name}16', bigendian=bigendian, padding=padding))
    np.testing.assert_array_equal(decoded, np.rint(rgb / 257))


def test_every_16_bit_value_is_scaled_and_rounded() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256, 1)
    expected = (values.astype(int) + 128) // 257
    np.testing.assert_array_equal(decode_image(pixels(values, 'mono16')), expected.repeat(3, axis=2))


@pytest.mark.parametrize(
    ('data', 'bigendian'), [('000000ff010010008000ffff', 1), ('0000ff00000100100080ffff', 0)]
)
def test_the_byte_order_of_grey_is_honoured(data: str, bigendian: int) -> None:
    message = image(np.zeros((2, 6)), 'mono16', 3, is_bigendian=bigendian, data=bytes.fromhex(data))
    np.testing.assert_array_equal(decode_image(message), WIDE_AS_8_BIT[:, :, None].repeat(3, axis=2))


def test_grey_has_three_equal_channels() -> None:
    grey = RGB[:, :, :1]
    np.testing.assert_array_equal(decode_image(pixels(grey, 'mono8')), grey.repeat(3, axis=2))


def test_padding_of_rows_is_cut() -> None:
    r, c = np.mgrid[0:4, 0:5]
    bgr = np.stack([10 * r + c, 100 + 10 * r + c, 200 + 5 * r + c], axis=2).astype(np.uint8)
    decoded = decode_image(pixels(bgr, 'bgr8', padding=17))
    assert decoded[0].tolist() == [[200 + c, 100 + c, c] for c in range(5)]
    digest = hashlib.sha256(decoded.tobytes()).hexdigest()
    assert digest == '73a376d3274d489f13e33f6f9f09f854cbc45e7ac544622fdbd60553901b35a4'


@pytest.mark.parametrize(
    ('opencv', 'named', 'channels', 'dtype'),
    [
        ('8UC1', 'mono8', 1, np.uint8),
        ('8UC3', 'bgr8', 3, np.uint8),
        ('8UC4', 'bgra8', 4, np.uint8),
        ('16UC3', 'bgr16', 3, np.uint16),
        ('16UC4', 'bgra16', 4, np.uint16),
    ],
)
def test_types_of_opencv_are_read_in_its_order(opencv: str, named: str, channels: int, dtype: type) -> None:
    values = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (4, 5, channels)).astype(dtype)
    np.testing.assert_array_equal(decode_image(pixels(values, opencv)), decode_image(pixels(values, named)))


# -- YUV


def from_yuv(y: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """BT.601, limited range, from its definition: Kr 0.299, Kb 0.114."""
    luma = (np.maximum(y.astype(float), 16) - 16) * 255 / 219
    cb, cr = ((chroma.astype(float) - 128) * 255 / 224 for chroma in (u, v))
    red, blue = luma + 1.402 * cr, luma + 1.772 * cb
    green = (luma - 0.299 * red - 0.114 * blue) / 0.587
    return np.clip(np.rint(np.stack([red, green, blue], axis=2)), 0, 255)


def scene(height: int = 6, width: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random y (H, W), u and v (H / 2, W / 2)."""
    random = np.random.default_rng(1)
    quarter = (height // 2, width // 2)
    return (
        random.integers(0, 256, (height, width), dtype=np.uint8),
        random.integers(0, 256, quarter, dtype=np.uint8),
        random.integers(0, 256, quarter, dtype=np.uint8),
    )


def doubled(chroma: np.ndarray) -> np.ndarray:
    return chroma.repeat(2, axis=0).repeat(2, axis=1)


def packed(encoding: str, y: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Rows of bytes of y (H, W) and chroma (H, W / 2)."""
    first, second = y[:, ::2], y[:, 1::2]
    order = (u, first, v, second) if encoding in ('uyvy', 'yuv422') else (first, u, second, v)
    return np.stack(order, axis=2).reshape(y.shape[0], -1)


def interleaved(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.stack([a, b], axis=2).reshape(a.shape[0], -1)


@pytest.mark.parametrize('padding', [0, 3])
@pytest.mark.parametrize('encoding', ['uyvy', 'yuv422', 'yuyv', 'yuv422_yuy2', 'YUYV'])
def test_packed_yuv(encoding: str, padding: int) -> None:
    y, u, v = scene()
    u, v = u.repeat(2, axis=0), v.repeat(2, axis=0)
    rows = np.pad(packed(encoding.lower(), y, u, v), ((0, 0), (0, padding)))
    expected = from_yuv(y, u.repeat(2, axis=1), v.repeat(2, axis=1))
    np.testing.assert_allclose(decode_image(image(rows, encoding, 8)), expected, atol=1)


@pytest.mark.parametrize('padding', [0, 4])
@pytest.mark.parametrize('encoding', ['nv12', 'nv21'])
def test_yuv_with_a_plane_of_chroma(encoding: str, padding: int) -> None:
    y, u, v = scene()
    chroma = interleaved(u, v) if encoding == 'nv12' else interleaved(v, u)
    rows = np.pad(np.concatenate([y, chroma]), ((0, 0), (0, padding)))
    decoded = decode_image(image(rows, encoding, 8, height=6))
    np.testing.assert_allclose(decoded, from_yuv(y, doubled(u), doubled(v)), atol=1)


@pytest.mark.parametrize('padding', [0, 4])
def test_yuv_with_chroma_for_every_pixel(padding: int) -> None:
    y, u, v = (np.random.default_rng(seed).integers(0, 256, (5, 7), dtype=np.uint8) for seed in range(3))
    luma = np.pad(y, ((0, 0), (0, padding)))
    chroma = np.pad(interleaved(u, v), ((0, 0), (0, 2 * padding)))
    data = luma.tobytes() + chroma.tobytes()
    decoded = decode_image(image(luma, 'nv24', 7, data=data))
    np.testing.assert_allclose(decoded, from_yuv(y, u, v), atol=1)


@pytest.mark.parametrize(
    ('encodings', 'data'),
    [(('yuv422_yuy2', 'yuyv'), '515a51f091369122'), (('yuv422', 'uyvy'), '5a51f05136912291')],
)
def test_old_and_new_names_of_packed_yuv(encodings: tuple[str, ...], data: str) -> None:
    for encoding in encodings:
        decoded = decode_image(image([list(bytes.fromhex(data))], encoding, 4))
        assert decoded.tolist() == [[[254, 0, 0], [254, 0, 0], [0, 255, 1], [0, 255, 1]]]


# -- Bayer

PATTERNS = ('rggb', 'bggr', 'gbrg', 'grbg')


def mosaic(rgb: np.ndarray, pattern: str) -> np.ndarray:
    """What a sensor behind a mosaic sees of a scene (H, W, 3): one colour of each pixel."""
    values = np.zeros(rgb.shape[:2], rgb.dtype)
    for place, colour in enumerate(pattern):
        rows, columns = slice(place // 2, None, 2), slice(place % 2, None, 2)
        values[rows, columns] = rgb[rows, columns, 'rgb'.index(colour)]
    return values


@pytest.mark.parametrize('dtype', [np.uint8, np.uint16])
@pytest.mark.parametrize('pattern', PATTERNS)
def test_a_flat_scene_behind_a_mosaic(pattern: str, dtype: type) -> None:
    scale = 257 if dtype == np.uint16 else 1
    rgb = np.broadcast_to(np.array([250, 120, 30]) * scale, (6, 6, 3)).astype(dtype)
    values = mosaic(rgb, pattern)[:, :, None]
    for bigendian in (False, True):
        message = pixels(values, f'bayer_{pattern}{8 * values.itemsize}', bigendian=bigendian, padding=2)
        np.testing.assert_array_equal(decode_image(message), np.broadcast_to([250, 120, 30], (6, 6, 3)))


@pytest.mark.parametrize('dtype', [np.uint8, np.uint16])
@pytest.mark.parametrize('pattern', PATTERNS)
def test_a_mosaic_is_filled_from_its_neighbours(pattern: str, dtype: type) -> None:
    values = np.random.default_rng(2).integers(0, np.iinfo(dtype).max, (8, 9)).astype(dtype)
    expected = np.zeros((8, 9, 3))
    for y in range(1, 7):
        for x in range(1, 8):
            for colour in range(3):
                near = [
                    (abs(dy) + abs(dx), float(values[y + dy, x + dx]))
                    for dy in (-1, 0, 1)
                    for dx in (-1, 0, 1)
                    if pattern[(y + dy) % 2 * 2 + (x + dx) % 2] == 'rgb'[colour]
                ]
                least = min(distance for distance, _ in near)
                expected[y, x, colour] = np.mean([value for distance, value in near if distance == least])
    scale = 257 if dtype == np.uint16 else 1
    decoded = decode_image(pixels(values[:, :, None], f'bayer_{pattern}{8 * values.itemsize}'))
    np.testing.assert_allclose(decoded[1:-1, 1:-1], expected[1:-1, 1:-1] / scale, atol=0.76)
    # The border is filled from inside: never black.
    assert decoded[0].any() and decoded[-1].any() and decoded[:, 0].any() and decoded[:, -1].any()


# -- The message's fields


@pytest.mark.parametrize('kind', [bytes, bytearray, memoryview, lambda data: array.array('B', data)])
def test_data_of_any_kind_of_bytes(kind: type) -> None:
    message = pixels(RGB, 'rgb8')
    message.data = kind(message.data)
    np.testing.assert_array_equal(decode_image(message), RGB)


def test_rgb_without_padding_is_not_copied() -> None:
    octets = np.arange(18, dtype=np.uint8)
    given = SimpleNamespace(height=2, width=3, encoding='rgb8', is_bigendian=0, step=9, data=octets)
    assert np.shares_memory(decode_image(given), octets)


def test_a_picture_survives_its_own_message() -> None:
    np.testing.assert_array_equal(decode_image(image_message(RGB, 7, frame_id='front')), RGB)


def test_a_step_of_zero_means_no_padding() -> None:
    message = pixels(RGB, 'rgb8')
    message.step = 0
    np.testing.assert_array_equal(decode_image(message), RGB)


def test_a_rounded_up_buffer_is_cut() -> None:
    message = pixels(RGB, 'rgb8')
    message.data += b'\xee' * 8
    np.testing.assert_array_equal(decode_image(message), RGB)


@pytest.mark.parametrize(
    ('change', 'text'),
    [
        ({'encoding': '16UC1'}, "'16UC1' is depth or data; needed is colour.* depth of the camera"),
        ({'encoding': '32FC1'}, "'32FC1' is depth or data"),
        ({'encoding': '8UC2'}, "'8UC2' is depth or data"),
        ({'encoding': 'fancy'}, "'fancy' is unknown; known are rgb8, "),
        ({'encoding': ''}, "'' is unknown"),
        ({'data': b'123'}, 'needs 18 bytes; got 3'),
        ({'data': b''}, 'needs 18 bytes; got 0'),
        ({'data': bytes(17)}, 'needs 18 bytes; got 17'),
        ({'data': bytes(27)}, 'needs 18 bytes; got 27'),
        ({'step': 8}, 'step 8 is less than 9'),
        ({'width': 0}, 'no pixels'),
        ({'height': 0, 'data': b''}, 'no pixels'),
        ({'height': 2**32 - 1}, 'needs 38654705655 bytes; got 18'),
        ({'width': 2**32 - 1, 'step': 0}, 'needs 25769803770 bytes; got 18'),
        (
            {'width': 3, 'step': 6, 'encoding': 'yuyv'},
            'yuyv needs an even number of columns; got .* 3 columns',
        ),
        ({'width': 3, 'encoding': 'yuv422'}, 'yuv422 needs an even number of columns'),
        ({'height': 3, 'width': 2, 'step': 2, 'encoding': 'nv12'}, 'nv12 needs an even number of rows and'),
        ({'height': 2, 'width': 3, 'step': 3, 'encoding': 'nv21'}, 'nv21 needs an even number of rows and'),
        ({'height': 4, 'width': 4, 'step': 4, 'encoding': 'nv12'}, 'needs 24 bytes; got 18'),
        ({'height': 3, 'width': 2, 'step': 2, 'encoding': 'nv24'}, None),
        ({'height': 9, 'width': 2, 'step': 2, 'encoding': 'bayer_rggb8'}, 'a Bayer mosaic needs 3 rows and'),
    ],
)
def test_what_cannot_become_rgb_is_refused_by_name(change: dict[str, object], text: str | None) -> None:
    message = pixels(RGB, 'rgb8')
    vars(message).update(change)
    if text is None:
        assert decode_image(message).shape == (3, 2, 3)
        return
    with pytest.raises(ImageError, match=text) as caught:
        decode_image(message)
    assert str(caught.value).endswith(' (stamp 12.000000005)')
    assert caught.value.stamp_ns == 12_000_000_005 and 'stamp' not in caught.value.reason


PACKED = {
    **{f'{name}{8 * size}': len(order) * size for name, order in ORDERS.items() for size in (1, 2)},
    **{f'bayer_{pattern}{8 * size}': size for pattern in PATTERNS for size in (1, 2)},
    **{'mono8': 1, 'mono16': 2, '8UC1': 1, '8UC3': 3, '8UC4': 4, '16UC3': 6, '16UC4': 8},
    **{'uyvy': 2, 'yuyv': 2},
}


@examples(200)
@given(data=st.data())
def test_padding_and_byte_order_never_show(data: st.DataObject) -> None:
    encoding = data.draw(st.sampled_from(sorted(PACKED)))
    height, width = data.draw(st.integers(3, 6)), 2 * data.draw(st.integers(2, 4))
    size, padding = PACKED[encoding], data.draw(st.integers(0, 9))
    dtype = np.uint16 if '16' in encoding else np.uint8
    seed = data.draw(st.integers(0, 99))
    shape = (height, width, size // np.dtype(dtype).itemsize)
    values = np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape).astype(dtype)
    plain = decode_image(pixels(values, encoding))
    other = decode_image(pixels(values, encoding, bigendian=data.draw(st.booleans()), padding=padding))
    np.testing.assert_array_equal(plain, other)


@examples(300)
@given(
    encoding=st.sampled_from([*PACKED, 'nv12', 'nv21', 'nv24', '16UC1', 'jpeg']),
    height=st.integers(0, 5),
    width=st.integers(0, 5),
    step=st.integers(0, 40),
    size=st.integers(0, 200),
    bigendian=st.integers(0, 1),
)
def test_any_message_gives_its_picture_or_is_refused(
    encoding: str, height: int, width: int, step: int, size: int, bigendian: int
) -> None:
    fields = {'height': height, 'step': step, 'data': bytes(range(size)), 'is_bigendian': bigendian}
    try:
        decoded = decode_image(image([[0]], encoding, width, **fields))
    except ImageError:
        return
    assert decoded.shape == (height, width, 3) and decoded.dtype == np.uint8 and decoded.flags.c_contiguous
