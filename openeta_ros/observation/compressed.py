# SPDX-License-Identifier: Apache-2.0
"""JPEG, PNG and WebP files as they come in sensor_msgs CompressedImage.

The file decides about its colours. Publishers write any text into `format`: 'jpeg', 'rgb8; jpeg compressed
bgr8' or 'rgb8; jpeg compressed rgb8' for the same right file. What the text decides is what no file can say:
that grey values are a Bayer mosaic, or depth.

Before a decoder sees a file it is walked from its first to its last marker. That finds the truncated ones,
which OpenCV's versions before 4.11 return grey from where the bytes end, and keeps a header from asking for
any amount of memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from openeta_ros.observation.encodings import Octets, Values, octets, rgb_of_values
from openeta_ros.observation.errors import ImageError

# No camera has more; files claim more when they are damaged or hostile.
MOST_PIXELS = 100_000_000

_PNG_START = b'\x89PNG\r\n\x1a\n'
# Within a JPEG scan: a marker that is neither a stuffed zero, a restart, nor a fill byte.
_SCAN_END = re.compile(rb'\xff[\x02-\xcf\xd8-\xfe]')
# What other files start with, to name them.
_OTHERS = {b'GIF8': 'gif', b'BM': 'bmp', b'II*\x00': 'tiff', b'MM\x00*': 'tiff', b'\x00\x00\x00\x01': 'h264'}


def rgb_of_compressed(message: Any) -> Octets:
    """Return the picture of a sensor_msgs CompressedImage: (H, W, 3) uint8, RGB, C-contiguous.

    An orientation in the file's metadata is not applied: the contract says how a camera is turned. Alpha is
    dropped. 16 bit becomes 8 as in raw pictures.

    Raises:
        ImageError: the bytes are no JPEG, PNG or WebP, or not all of one; or they are no picture in colour.
    """
    original, target = encodings_of(message)
    if original in ('16uc1', '32fc1') or 'compresseddepth' in str(message.format).lower():
        raise ImageError(
            f'format {message.format!r} is depth; needed is colour: name another topic, or name this one as '
            'the depth of the camera'
        )
    values = decoded(octets(message.data), message.format)
    depth = 8 * values.itemsize
    if values.ndim == 3:
        return rgb_of_values(values, f'{"rgb" if values.shape[2] == 3 else "bgra"}{depth}')
    # image_transport names no target when it compressed a mosaic as it was, and mono8 when it made it grey.
    if original.startswith('bayer_') and not target:
        return rgb_of_values(values, original.rstrip('0123456789') + str(depth))
    return rgb_of_values(values, f'mono{depth}')


def encodings_of(message: Any) -> tuple[str, str]:
    """Return what `format` says, in lower case and '' where it is silent: encoding of the camera's picture,
    and of what was compressed.

    image_transport writes 'ENCODING; CODEC compressed TARGET'; others write the codec alone.
    """
    original, _, rest = str(message.format).lower().partition(';')
    target = re.search(r'compressed\s+(\w+)', rest)
    return original.strip() if rest else '', target[1] if target else ''


def decoded(data: Octets, description: str) -> Values:
    """Return the values of a JPEG, PNG or WebP file: (H, W), (H, W, 3) RGB or (H, W, 4) BGRA, 8 or 16 bit.

    Args:
        data: (N,) uint8, the file.
        description: what its publisher calls it, for errors.

    Raises:
        ImageError: it is no such file, or not all of one, or not a single picture of three colours or grey.
    """
    view = data.data
    codec, walk = _codec(bytes(view[:16]), description)
    try:
        height, width, channels = walk(view)
    except IndexError:
        raise ImageError(
            f'the {codec} file is truncated: {len(view)} bytes, and its end is missing'
        ) from None
    if not 0 < height * width <= MOST_PIXELS:
        raise ImageError(
            f'the {codec} file claims {height} rows and {width} columns; needed are 1 to {MOST_PIXELS} pixels'
        )
    import cv2

    # OpenCV 4.11 and later read colours in the order that is wanted. Where malloc keeps no blocks, a second
    # picture costs its page faults: as much as reading the file.
    in_order = channels == 3 and hasattr(cv2, 'IMREAD_COLOR_RGB')
    how = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION if in_order else cv2.IMREAD_UNCHANGED
    try:
        values = cv2.imdecode(data, how)
    except cv2.error:
        values = None
    if values is None:
        raise ImageError(
            f'the {codec} file is damaged, or of a kind that OpenCV does not read: {len(view)} bytes'
        )
    if values.ndim == 3 and values.shape[2] == 3 and not in_order:
        values = cv2.cvtColor(values, cv2.COLOR_BGR2RGB)
    return np.asarray(values)


def is_png(data: Octets) -> bool:
    """Whether a file starts as PNG does."""
    return data[: len(_PNG_START)].tobytes() == _PNG_START


def _codec(start: bytes, description: str) -> tuple[str, Callable[[memoryview], tuple[int, int, int]]]:
    if start[:3] == b'\xff\xd8\xff':
        return 'jpeg', _walk_jpeg
    if start[:8] == _PNG_START:
        return 'png', _walk_png
    if start[:4] == b'RIFF' and start[8:12] == b'WEBP':
        return 'webp', _walk_webp
    if not start:
        raise ImageError(f'there are no bytes in it (format {description!r})')
    name = next((name for magic, name in _OTHERS.items() if start.startswith(magic)), 'unknown')
    raise ImageError(
        f'the bytes are {name} (first of them {start[:4].hex()}, format {description!r}); '
        'needed are jpeg, png or webp'
    )


def _walk_jpeg(data: memoryview) -> tuple[int, int, int]:
    """Return height, width and values a pixel; IndexError when there is no end of the picture."""
    height = width = channels = 0
    at = 2
    while True:
        if data[at] != 0xFF:
            raise ImageError(f'the jpeg file is damaged: there is no marker at byte {at}')
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0xD9:
            return height, width, channels
        body = at + 4
        at += 2 + _number(data, at + 2, 2)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = _number(data, body + 1, 2), _number(data, body + 3, 2)
            channels = data[body + 5]
            if channels not in (1, 3):
                raise ImageError(
                    f'the jpeg file has {channels} values a pixel (4 is CMYK); needed are 1 or 3'
                )
        elif marker == 0xDA:
            end = _SCAN_END.search(data, at)
            if end is None:
                raise IndexError
            at = end.start()


def _walk_png(data: memoryview) -> tuple[int, int, int]:
    """Return height, width and 0, since OpenCV tells the channels; IndexError when there is no last chunk."""
    at = len(_PNG_START)
    while (kind := bytes(data[at + 4 : at + 8])) != b'IEND':
        if kind == b'acTL':
            raise ImageError('the png file is an animation; needed is one picture')
        at += 12 + _number(data, at, 4)
    data[at + 11]  # the chunk's check sum is the last of the file
    return _number(data, 20, 4), _number(data, 16, 4), 0


def _walk_webp(data: memoryview) -> tuple[int, int, int]:
    """Return height, width and 0, as of PNG; IndexError when there are fewer bytes than it says."""
    data[_number(data, 4, 4, 'little') + 7]
    kind = bytes(data[12:16])
    if kind == b'VP8X':
        if data[20] & 2:
            raise ImageError('the webp file is an animation; needed is one picture')
        return _number(data, 27, 3, 'little') + 1, _number(data, 24, 3, 'little') + 1, 0
    if kind == b'VP8L':
        sizes = _number(data, 21, 4, 'little')
        return (sizes >> 14 & 0x3FFF) + 1, (sizes & 0x3FFF) + 1, 0
    return _number(data, 28, 2, 'little') & 0x3FFF, _number(data, 26, 2, 'little') & 0x3FFF, 0


def _number(data: memoryview, at: int, size: int, order: Any = 'big') -> int:
    data[at + size - 1]  # IndexError where a slice would be short in silence
    return int.from_bytes(data[at : at + size], order)
