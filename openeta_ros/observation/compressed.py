# SPDX-License-Identifier: Apache-2.0
"""JPEG, PNG and WebP files as they come in sensor_msgs CompressedImage.

The file decides about its colours. Publishers write any text into `format`: 'jpeg', 'rgb8; jpeg compressed
bgr8' or 'rgb8; jpeg compressed rgb8' for the same right file. What the text decides is what no file can say:
that grey values are a Bayer mosaic, or depth.

Before a decoder sees a file it is walked from its first to its last marker. That finds the truncated ones,
which OpenCV's versions before 4.11 return grey from where the bytes end, and keeps a header from asking for
any amount of memory. JPEG is decoded by simplejpeg, to the same bytes as by OpenCV and a little faster: it
tells what libjpeg says of a damaged scan, which OpenCV prints and then returns the picture.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from openeta_ros.observation.encodings import Octets, Values, octets, rgb_of_values
from openeta_ros.observation.errors import DamagedImage, ImageError

# No camera has more; files claim more when they are damaged or hostile.
MOST_PIXELS = 100_000_000

_PNG_START = b'\x89PNG\r\n\x1a\n'
# Within a JPEG scan: a marker that is neither a stuffed zero, a restart, nor a fill byte.
_SCAN_END = re.compile(rb'\xff[\x02-\xcf\xd8-\xfe]')
_MARKER = re.compile(rb'\xff[^\x00]', re.DOTALL)
# What libjpeg says of a picture that is not all there. It only warns of it, and of what does no harm.
_DAMAGE = re.compile(r'Corrupt JPEG data|Premature end of JPEG file|Unsupported marker type')
_EXTRANEOUS = re.compile(r'Corrupt JPEG data: (\d+) extraneous bytes before marker')
# Webcams leave some bytes before the markers of a right picture (Logitech's up to nine); what a damaged scan
# leaves over is nearly always more.
_MOST_EXTRANEOUS = 16
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
        DamagedImage: it is not all there, or wrong.
        ImageError: it is no such file, or not a single picture of three colours or grey.
    """
    view = data.data
    codec, walk = _codec(bytes(view[:16]), description)
    try:
        found = walk(view)
    except IndexError:
        raise DamagedImage(f'the {codec} file is truncated: its end is missing') from None
    if not 0 < found.height * found.width <= MOST_PIXELS:
        raise ImageError(
            f'the {codec} file claims {found.height} rows and {found.width} columns; needed are 1 to '
            f'{MOST_PIXELS} pixels'
        )
    values = _decoded_jpeg(data, found) if codec == 'jpeg' else None
    return _decoded_by_opencv(data, codec) if values is None else values


def _decoded_jpeg(data: Octets, found: _Found) -> Octets | None:
    """Return the picture of a JPEG file; None when only OpenCV may read it.

    Raises:
        DamagedImage: it is.
    """
    import simplejpeg

    picture = np.empty((found.height, found.width, found.channels), np.uint8)
    try:
        simplejpeg.decode_jpeg(data, 'RGB' if found.channels == 3 else 'GRAY', buffer=picture)
    except ValueError as error:
        told = str(error)
        extraneous = _EXTRANEOUS.search(told)
        if extraneous and found.junk:  # it is in the header, where the decoder stopped
            return None
        if not (extraneous and int(extraneous[1]) <= _MOST_EXTRANEOUS):
            if not _DAMAGE.search(told):
                return None
            # Without numbers, so that what is damaged alike is counted as one kind.
            kind = re.sub(r' 0x[0-9a-f]+|\d+ ?', '', told.removeprefix('Corrupt JPEG data: '))
            raise DamagedImage(f'the jpeg file is damaged: {kind}') from None
    return picture if found.channels == 3 else picture[:, :, 0]


def _decoded_by_opencv(data: Octets, codec: str) -> Values:
    import cv2

    try:
        values = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
    except cv2.error:
        values = None
    if values is None:
        raise DamagedImage(f'the {codec} file is damaged, or of a kind that OpenCV does not read')
    if values.ndim == 3 and values.shape[2] == 3:
        values = cv2.cvtColor(values, cv2.COLOR_BGR2RGB)
    return np.asarray(values)


def is_png(data: Octets) -> bool:
    """Whether a file starts as PNG does."""
    return data[: len(_PNG_START)].tobytes() == _PNG_START


class _Found(NamedTuple):
    """What a walk through a file found: `channels` are values a pixel, 0 where OpenCV tells them; `junk` is
    between the parts of the header, where webcams leave some bytes, too."""

    height: int
    width: int
    channels: int = 0
    junk: bool = False


def _codec(start: bytes, description: str) -> tuple[str, Callable[[memoryview], _Found]]:
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


def _walk_jpeg(data: memoryview) -> _Found:
    """Return what there is; IndexError when there is no end of the picture."""
    height = width = channels = 0
    junk = False
    at = 2
    while True:
        if data[at] != 0xFF or data[at + 1] == 0:  # decoders look for the next marker
            marker_at = _MARKER.search(data, at)
            if marker_at is None:
                raise IndexError
            at, junk = marker_at.start(), True
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if 0xD0 <= marker <= 0xD8 or marker == 1:  # these stand alone, and have no place here
            at, junk = at + 2, True
            continue
        if marker == 0xD9:
            return _Found(height, width, channels, junk)
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


def _walk_png(data: memoryview) -> _Found:
    """Return what there is; IndexError when there is no last chunk."""
    at = len(_PNG_START)
    while (kind := bytes(data[at + 4 : at + 8])) != b'IEND':
        if kind == b'acTL':
            raise ImageError('the png file is an animation; needed is one picture')
        at += 12 + _number(data, at, 4)
    data[at + 11]  # the chunk's check sum is the last of the file
    return _Found(_number(data, 20, 4), _number(data, 16, 4))


def _walk_webp(data: memoryview) -> _Found:
    """Return what there is; IndexError when there are fewer bytes than it says."""
    data[_number(data, 4, 4, 'little') + 7]
    kind = bytes(data[12:16])
    if kind == b'VP8X':
        if data[20] & 2:
            raise ImageError('the webp file is an animation; needed is one picture')
        return _Found(_number(data, 27, 3, 'little') + 1, _number(data, 24, 3, 'little') + 1)
    if kind == b'VP8L':
        sizes = _number(data, 21, 4, 'little')
        return _Found((sizes >> 14 & 0x3FFF) + 1, (sizes & 0x3FFF) + 1)
    return _Found(_number(data, 28, 2, 'little') & 0x3FFF, _number(data, 26, 2, 'little') & 0x3FFF)


def _number(data: memoryview, at: int, size: int, order: Any = 'big') -> int:
    data[at + size - 1]  # IndexError where a slice would be short in silence
    return int.from_bytes(data[at : at + size], order)
