# SPDX-License-Identifier: Apache-2.0
"""Compressed pictures: the file decides about its colours, whatever it is called, and half a file is none."""

from __future__ import annotations

import base64
import struct
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import compressed, examples, pixels

from openeta_ros.observation import ImageError, decode_image

# 8 rows of 8 orange and 8 blue pixels, written by Pillow.
ORANGE, BLUE = [250, 120, 30], [20, 60, 200]
FILES = {
    'jpeg': '/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQ'
    'ERMUFRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU'
    'FBQUFBQUFBQUFBQUFBT/wAARCAAIABADAREAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAABgj/xAAUEAEAAAAAAAAAAAAA'
    'AAAAAAAA/8QAFQEBAQAAAAAAAAAAAAAAAAAACAn/xAAUEQEAAAAAAAAAAAAAAAAAAAAA/9oADAMBAAIRAxEAPwBwJhgIcWAT'
    'sf/Z',
    'progressive jpeg': '/9j/4AAQ'
    'SkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsLEBYQ'
    'ERMUFRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU'
    'FBQUFBQUFBQUFBQUFBT/wgARCAAIABADAREAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAABQf/xAAVAQEBAAAAAAAAAAAA'
    'AAAAAAAHCP/aAAwDAQACEAMQAAABcJWCG2BOv//EABQQAQAAAAAAAAAAAAAAAAAAABD/2gAIAQEAAQUCP//EABQRAQAAAAAA'
    'AAAAAAAAAAAAABD/2gAIAQMBAT8BP//EABQRAQAAAAAAAAAAAAAAAAAAABD/2gAIAQIBAT8BP//EABQQAQAAAAAAAAAAAAAA'
    'AAAAABD/2gAIAQEABj8CP//EABQQAQAAAAAAAAAAAAAAAAAAABD/2gAIAQEAAT8hP//aAAwDAQACAAMAAAAQX//EABQRAQAA'
    'AAAAAAAAAAAAAAAAABD/2gAIAQMBAT8QP//EABQRAQAAAAAAAAAAAAAAAAAAABD/2gAIAQIBAT8QP//EABQQAQAAAAAAAAAA'
    'AAAAAAAAABD/2gAIAQEAAT8QP//Z',
    'png': 'iVBORw0KGgoAAAANSUhEUgAAABAAAAAICAIAAAB/FOjAAAAAHElEQVR42mP8VSHHgA1IHVmFVZyJgUQwqoEYAACgIAMowHS/'
    'eAAAAABJRU5ErkJggg==',
    'webp': 'UklGRigAAABXRUJQVlA4TBsAAAAvD8ABAA9QnlOY3wp5/sOBWDCZv3RnChH9jxwA',
}
FILES = {name: base64.b64decode(text) for name, text in FILES.items()}
# What drivers, image_transport of every age, and scripts write.
FORMATS = [
    '',
    'jpeg',
    'JPG',
    'png',
    'webp',
    'rgb8',
    'bgr8; jpeg compressed bgr8',
    'rgb8; jpeg compressed bgr8',
    'rgb8; jpeg compressed rgb8',
    'rgb8; png compressed rgb8',
    'bgr8;png compressed bgr8',
    'rgba8; jpeg compressed bgr8',
    'rgb16; png compressed bgr16',
    'yuv422_yuy2; jpeg compressed mono8',
    'bayer_rggb8; jpeg compressed bgr8',
    '8UC3; png compressed ',
    'mono8; jpeg compressed ',
]


def png(values: np.ndarray, *, animation: bool = False) -> bytes:
    """A PNG of values (H, W, C), 8 or 16 bit; C is 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA."""
    height, width, channels = values.shape
    rows = values.astype(values.dtype.newbyteorder('>')).tobytes()
    size = len(rows) // height
    filtered = b''.join(b'\0' + rows[at : at + size] for at in range(0, len(rows), size))
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack('>IIBBBBB', width, height, 8 * values.itemsize, colour, 0, 0, 0)
    chunks = [(b'IHDR', header), (b'IDAT', zlib.compress(filtered)), (b'IEND', b'')]
    if animation:
        chunks.insert(1, (b'acTL', struct.pack('>II', 2, 0)))
    return b'\x89PNG\r\n\x1a\n' + b''.join(
        struct.pack('>I', len(body)) + kind + body + struct.pack('>I', zlib.crc32(kind + body))
        for kind, body in chunks
    )


def two_colours(decoded: np.ndarray) -> None:
    assert decoded.shape == (8, 16, 3) and decoded.dtype == np.uint8 and decoded.flags.c_contiguous
    np.testing.assert_allclose(decoded[:, :8], np.broadcast_to(ORANGE, (8, 8, 3)), atol=3)
    np.testing.assert_allclose(decoded[:, 8:], np.broadcast_to(BLUE, (8, 8, 3)), atol=3)


@pytest.mark.parametrize('file', FILES)
@pytest.mark.parametrize('text', FORMATS)
def test_a_file_is_decoded_by_itself_whatever_it_is_called(file: str, text: str) -> None:
    two_colours(decode_image(compressed(FILES[file], text)))


def jpeg(*options: int, size: tuple[int, int] = (96, 128)) -> bytes:
    """A JPEG of a scene with noise, and with options of OpenCV."""
    y, x = np.mgrid[0 : size[0], 0 : size[1]]
    scene = np.stack([128 + 90 * np.sin(x / 17 + k) + 30 * np.cos(y / 9 * k) for k in range(3)], axis=2)
    noise = np.random.default_rng(0).normal(0, 6, scene.shape)
    return cv2.imencode('.jpg', (scene + noise).clip(0, 255).astype(np.uint8), options)[1].tobytes()


@pytest.mark.parametrize('size', [(48, 64), (47, 63)])
@pytest.mark.parametrize('progressive', [0, 1])
@pytest.mark.parametrize('samples', [0x111111, 0x211111, 0x221111, 0x411111])
def test_a_jpeg_becomes_the_bytes_that_opencv_makes_of_it(
    size: tuple[int, int], progressive: int, samples: int
) -> None:
    how = cv2.IMWRITE_JPEG_PROGRESSIVE, progressive, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, samples
    file = jpeg(*how, size=size)
    expected = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
    np.testing.assert_array_equal(decode_image(compressed(file, 'jpeg')), expected)


RESTARTS = cv2.IMWRITE_JPEG_RST_INTERVAL, 8


@pytest.mark.parametrize('options', [(), RESTARTS, (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)])
def test_a_jpeg_that_is_cut_within_its_scan_is_refused_though_its_end_is_there(
    options: tuple[int, ...],
) -> None:
    file = jpeg(*options)
    start = file.index(b'\xff\xda') + 100
    for at in range(start, len(file) - 100, 97):  # a progressive one is cut between its scans, too
        with pytest.raises(ImageError, match=r'jpeg file is (damaged: premature end of data|truncated)'):
            decode_image(compressed(file[:at] + b'\xff\xd9', 'jpeg'))


def test_a_jpeg_with_a_hole_in_its_scan_is_refused() -> None:
    file = jpeg(*RESTARTS)
    start = file.index(b'\xff\xda') + 100
    for at in range(start, len(file) - 1000, 97):
        with pytest.raises(ImageError, match='the jpeg file is damaged: '):
            decode_image(compressed(file[:at] + file[at + 800 :], 'jpeg'))


@pytest.mark.parametrize(
    ('marker', 'junk'),
    [(b'\xff\xd3', b'\0'), (b'\xff\xd9', bytes(9)), (b'\xff\xdb', b'\0'), (b'\xff\xc4', b'\1' * 600)],
)
def test_bytes_that_webcams_leave_before_a_marker_do_no_harm(marker: bytes, junk: bytes) -> None:
    file = jpeg(*RESTARTS)
    at = file.index(marker)
    expected = decode_image(compressed(file, 'jpeg'))
    np.testing.assert_array_equal(decode_image(compressed(file[:at] + junk + file[at:], 'jpeg')), expected)


def test_so_much_before_a_marker_of_the_scan_that_it_is_picture_is_refused() -> None:
    file = jpeg(*RESTARTS)
    at = file.index(b'\xff\xd3')
    with pytest.raises(ImageError, match=r'the jpeg file is damaged: extraneous bytes before marker \('):
        decode_image(compressed(file[:at] + b'\1' * 40 + file[at:], 'jpeg'))


def test_a_grey_jpeg_of_a_yuv_camera_is_grey() -> None:
    data = cv2.imencode('.jpg', np.full((16, 16), 128, np.uint8))[1].tobytes()
    decoded = decode_image(compressed(data, 'yuv422_yuy2; jpeg compressed mono8'))
    assert decoded.shape == (16, 16, 3)
    np.testing.assert_allclose(decoded, 128, atol=1)


@pytest.mark.parametrize('dtype', [np.uint8, np.uint16])
@pytest.mark.parametrize('channels', [1, 2, 3, 4])
def test_png_of_every_kind(channels: int, dtype: type) -> None:
    scale = 257 if dtype == np.uint16 else 1
    eight = np.random.default_rng(0).integers(0, 256, (5, 6, channels))
    decoded = decode_image(compressed(png((eight * scale).astype(dtype)), 'png'))
    rgb = eight[:, :, :3] if channels > 2 else eight[:, :, :1].repeat(3, axis=2)
    np.testing.assert_array_equal(decoded, rgb)


def test_16_bit_grey_is_scaled_and_rounded() -> None:
    values = np.array([[0, 255, 256], [4096, 32768, 65535]], np.uint16)
    decoded = decode_image(compressed(png(values[:, :, None]), 'mono16; png compressed '))
    assert decoded[:, :, 1].tolist() == [[0, 1, 1], [16, 128, 255]]


@pytest.mark.parametrize('dtype', [np.uint8, np.uint16])
def test_a_mosaic_that_was_compressed_as_it_is_gets_its_colours(dtype: type) -> None:
    values = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, (6, 6, 1)).astype(dtype)
    name = f'bayer_gbrg{8 * values.itemsize}'
    decoded = decode_image(compressed(png(values), f'{name}; png compressed '))
    np.testing.assert_array_equal(decoded, decode_image(pixels(values, name)))
    grey = decode_image(compressed(png(values), f'{name}; jpeg compressed mono8'))
    np.testing.assert_array_equal(grey[:, :, 0], grey[:, :, 2])


def test_an_orientation_in_the_file_is_not_applied() -> None:
    body = b'Exif\0\0' + b'MM\0*\0\0\0\x08' + b'\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0'
    segment = b'\xff\xe1' + struct.pack('>H', len(body) + 2) + body
    turned = FILES['jpeg'][:2] + segment + FILES['jpeg'][2:]
    assert cv2.imdecode(np.frombuffer(turned, np.uint8), cv2.IMREAD_COLOR).shape == (16, 8, 3)
    two_colours(decode_image(compressed(turned, 'jpeg')))


@pytest.mark.parametrize('file', FILES)
@pytest.mark.parametrize('behind', [b'\0', bytes(1000), b'\xff\xd9', b'trailing'])
def test_bytes_behind_the_file_do_not_matter(file: str, behind: bytes) -> None:
    two_colours(decode_image(compressed(FILES[file] + behind, 'jpeg')))


@pytest.mark.parametrize('file', FILES)
def test_a_truncated_file_is_refused_wherever_it_ends(file: str) -> None:
    for size in range(len(FILES[file])):
        with pytest.raises(ImageError):
            decode_image(compressed(FILES[file][:size], file))


def test_a_large_truncated_jpeg_is_named_so() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (240, 320, 3), dtype=np.uint8)
    data = cv2.imencode('.jpg', picture)[1].tobytes()
    for size in (len(data) // 2, len(data) - 1, len(data) - 2):
        with pytest.raises(ImageError, match='jpeg file is truncated: its end is missing'):
            decode_image(compressed(data[:size], 'jpeg'))


def resized(file: bytes, at: int, sizes: bytes) -> bytes:
    return file[:at] + sizes + file[at + len(sizes) :]


JPEG_SIZES = FILES['jpeg'].index(b'\xff\xc0') + 5


@pytest.mark.parametrize(
    ('data', 'text', 'told'),
    [
        (b'', 'jpeg', "no bytes in it .format 'jpeg'"),
        (b'abcdef', 'jpeg', 'the bytes are unknown .*61626364'),
        (b'GIF89a', 'gif', 'the bytes are gif'),
        (b'II*\x00....', 'rgb8; tiff compressed ', 'the bytes are tiff'),
        (b'\0\0\0\x01\x67', 'h264', 'the bytes are h264.*needed are jpeg, png or webp'),
        (b'\xff\xd8\xff\xd9', 'jpeg', 'claims 0 rows'),
        (b'\xff\xd8\xff\xe0\x00\x02abcd', 'jpeg', 'truncated'),
        (FILES['jpeg'][:-2] + b'\xff\xe0', 'jpeg', 'truncated'),
        (resized(FILES['jpeg'], JPEG_SIZES, b'\xff\xff\xff\xff'), 'jpeg', 'claims 65535 rows and 65535'),
        (resized(FILES['jpeg'], JPEG_SIZES + 4, b'\x04'), 'jpeg', '4 values a pixel .4 is CMYK'),
        (resized(FILES['png'], 16, b'\x00\x01\x00\x00' * 2), 'png', 'claims 65536 rows and 65536'),
        (resized(FILES['png'], 50, b'\0\0\0'), 'png', 'png file is damaged'),
        (png(np.zeros((3, 3, 3), np.uint8), animation=True), 'png', 'png file is an animation'),
        (b'RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0\x0f\0\0\x07\0\0ANIM....', 'webp', 'is an animation'),
        (png(np.zeros((3, 3, 1), np.uint16)), '16UC1; png compressed ', 'is depth; needed is colour'),
        (b'x' * 12 + FILES['png'], '32FC1; compressedDepth png', 'is depth; needed is colour'),
        (png(np.zeros((3, 3, 1), np.uint8)), 'bayer_xyz8; png compressed ', "'bayer_xyz8' is unknown"),
        (png(np.zeros((2, 2, 1), np.uint8)), 'bayer_rggb8; png compressed ', 'a Bayer mosaic needs 3'),
    ],
)
def test_what_is_no_picture_in_colour_is_refused_by_name(data: bytes, text: str, told: str) -> None:
    with pytest.raises(ImageError, match=told) as caught:
        decode_image(compressed(data, text))
    assert caught.value.stamp_ns == 12_000_000_005


@examples(400)
@given(
    file=st.sampled_from(sorted(FILES)),
    places=st.lists(st.integers(0, 600), max_size=4),
    value=st.integers(0, 255),
    cut=st.integers(0, 20),
)
def test_damaged_files_give_a_picture_or_are_refused(
    file: str, places: list[int], value: int, cut: int
) -> None:
    data = bytearray(FILES[file])
    for place in places:
        data[place % len(data)] = value
    try:
        decoded = decode_image(compressed(bytes(data[: len(data) - cut]), file))
    except ImageError:
        return
    assert decoded.ndim == 3 and decoded.shape[2] == 3 and decoded.dtype == np.uint8
