# SPDX-License-Identifier: Apache-2.0
"""What the encodings of sensor_msgs mean, and their way to RGB.

The conversions are OpenCV's, by the codes that cv_bridge uses where it knows the encoding. cv_bridge itself
is not called: it knows only a part of the list, and some of its versions pass over `step` or `is_bigendian`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openeta_ros.observation.errors import ImageError

Octets = npt.NDArray[np.uint8]
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class _Layout:
    """Where the values of a picture are.

    Attributes:
        conversion: name of OpenCV's conversion to RGB; '' where it is RGB already.
        channels: values of a pixel in its row of `step` bytes.
        depth: bytes of a value.
        half_rows: rows of `step` bytes for each two rows of the picture: more than 2 where planes of chroma
            follow.
        even: what must be even: 'columns' where two pixels share their chroma, 'rows and columns' where four
            do.
    """

    conversion: str
    channels: int
    depth: int = 1
    half_rows: int = 2
    even: str = ''


_COLOURS = {
    'rgb': ('', 3),
    'bgr': ('COLOR_BGR2RGB', 3),
    'rgba': ('COLOR_RGBA2RGB', 4),
    'bgra': ('COLOR_BGRA2RGB', 4),
    'mono': ('COLOR_GRAY2RGB', 1),
    # ROS names a mosaic by its upper left pixels, OpenCV by the second and third of its second row.
    'bayer_rggb': ('COLOR_BayerBG2RGB', 1),
    'bayer_bggr': ('COLOR_BayerRG2RGB', 1),
    'bayer_gbrg': ('COLOR_BayerGR2RGB', 1),
    'bayer_grbg': ('COLOR_BayerGB2RGB', 1),
}
_LAYOUTS = {
    f'{name}{8 * depth}': _Layout(conversion, channels, depth)
    for name, (conversion, channels) in _COLOURS.items()
    for depth in (1, 2)
}
_LAYOUTS |= {
    'uyvy': _Layout('COLOR_YUV2RGB_UYVY', 2, even='columns'),
    'yuyv': _Layout('COLOR_YUV2RGB_YUY2', 2, even='columns'),
    'nv12': _Layout('COLOR_YUV2RGB_NV12', 1, half_rows=3, even='rows and columns'),
    'nv21': _Layout('COLOR_YUV2RGB_NV21', 1, half_rows=3, even='rows and columns'),
    'nv24': _Layout('', 1, half_rows=6),  # OpenCV has no conversion of it: see below
}
_LAYOUTS |= {
    # The older names of the same.
    'yuv422': _LAYOUTS['uyvy'],
    'yuv422_yuy2': _LAYOUTS['yuyv'],
    # OpenCV's types name no colours. They are read in OpenCV's own order, as cv_bridge and rviz do to display
    # them. 16UC1 is not among them: REP 118 says that it is depth.
    '8uc1': _LAYOUTS['mono8'],
    '8uc3': _LAYOUTS['bgr8'],
    '8uc4': _LAYOUTS['bgra8'],
    '16uc3': _LAYOUTS['bgr16'],
    '16uc4': _LAYOUTS['bgra16'],
}
_OPENCV_TYPE = re.compile(r'(8|16|32|64)[usf]c\d*')
# ITU-R BT.601 of limited range, as OpenCV's own conversions have it: Y starts at 16, U and V at 128.
_YUV_TO_RGB = np.array(
    [
        [1.164, 0, 1.596, -1.164 * 16 - 1.596 * 128],
        [1.164, -0.391, -0.813, -1.164 * 16 + (0.391 + 0.813) * 128],
        [1.164, 2.018, 0, -1.164 * 16 - 2.018 * 128],
    ]
)
# OpenCV leaves a mosaic of less than this black.
_LEAST_MOSAIC = 3


def rgb_of_image(message: Any) -> Octets:
    """Return the picture of a sensor_msgs Image: (H, W, 3) uint8, RGB, C-contiguous.

    A view of the message's bytes where these are RGB without padding.

    Raises:
        ImageError: the encoding has no colour or is unknown, or the message contradicts itself.
    """
    encoding = str(message.encoding).lower()
    layout = _LAYOUTS.get(encoding)
    if layout is None:
        raise ImageError(_no_colour(str(message.encoding)))
    height, width = int(message.height), int(message.width)
    if (width % 2 and layout.even) or (height % 2 and 'rows' in layout.even):
        raise ImageError(
            f'{encoding} needs an even number of {layout.even}; got {height} rows and {width} columns'
        )
    rows = rows_of(message, layout.channels * layout.depth, height * layout.half_rows // 2)
    if encoding == 'nv24':
        return _converted_nv24(rows, height, width)
    used = rows[:, : width * layout.channels * layout.depth]
    values = values_of(used, layout.depth, message.is_bigendian)
    return _converted(values.reshape(rows.shape[0], width, layout.channels), layout)


def rgb_of_values(values: Values, encoding: str) -> Octets:
    """Return the picture of values (H, W) or (H, W, C), uint8 or native uint16, in a packed encoding as RGB.

    Raises:
        ImageError: the encoding is unknown.
    """
    if encoding not in _LAYOUTS:
        raise ImageError(_no_colour(encoding))
    return _converted(values, _LAYOUTS[encoding])


def rows_of(message: Any, pixel_bytes: int, row_count: int) -> Octets:
    """Return the rows of a sensor_msgs Image with their padding: a view (row_count, step) uint8.

    A step of 0 is what some publishers write for rows without padding. Bytes behind the rows, of a buffer
    that was rounded up, are let be as long as they are fewer than a row.

    Raises:
        ImageError: there are no pixels, or step or the number of bytes does not fit.
    """
    height, width, step = int(message.height), int(message.width), int(message.step)
    if height < 1 or width < 1:
        raise ImageError(f'a picture of {height} rows and {width} columns has no pixels')
    used = width * pixel_bytes
    step = step or used
    if step < used:
        raise ImageError(
            f'step {step} is less than {used}, the bytes of a row of {width} {message.encoding} pixels'
        )
    data = octets(message.data)
    needed = step * row_count
    if not needed <= data.size < needed + step:
        raise ImageError(
            f'{message.encoding} of {height} rows with step {step} needs {needed} bytes; got {data.size}'
        )
    return data[:needed].reshape(row_count, step)


def values_of(rows: Octets, depth: int, is_bigendian: Any) -> Values:
    """Return rows of bytes as native values of 1 or 2 bytes; a view where the byte order is right."""
    if depth == 1:
        return rows
    # Rows that start at odd places are copied: OpenCV takes none of them.
    odd = rows.strides[0] % 2 == 1
    return rows.view('>u2' if is_bigendian else '<u2').astype(np.uint16, copy=odd)


def octets(data: Any) -> Octets:
    """Return a message's uint8[] field as (N,) uint8 without copying: NumPy array, array.array or bytes."""
    if isinstance(data, np.ndarray):
        return data.reshape(-1).view(np.uint8)
    return np.frombuffer(data, dtype=np.uint8) if len(data) else np.empty(0, np.uint8)


def _converted(values: Values, layout: _Layout) -> Octets:
    if not layout.conversion and values.dtype == np.uint8:
        return np.ascontiguousarray(values)
    height, width = values.shape[:2]
    if 'Bayer' in layout.conversion and min(height, width) < _LEAST_MOSAIC:
        raise ImageError(f'a Bayer mosaic needs {_LEAST_MOSAIC} rows and columns; got {height} and {width}')
    import cv2  # only where it is needed: importing it takes a tenth of a second

    # v * 255 / 65535, rounded, after the conversion: so does cv_bridge. Grey is the same before and after.
    if values.dtype == np.uint16 and layout.channels == 1 and 'Bayer' not in layout.conversion:
        values = cv2.convertScaleAbs(values, alpha=255 / 65535)
    if layout.conversion:
        values = cv2.cvtColor(values, getattr(cv2, layout.conversion))
    if values.dtype == np.uint16:
        values = cv2.convertScaleAbs(values, alpha=255 / 65535)
    return np.ascontiguousarray(values)


def _converted_nv24(rows: Octets, height: int, width: int) -> Octets:
    """Return nv24 as RGB: by the matrix of the other YUV encodings, to within one step of 255."""
    import cv2

    luma = np.maximum(rows[:height, :width], 16)  # there is no darker black; OpenCV does the same
    # Two bytes of chroma for each pixel: the rows of that plane are twice as long.
    chroma = rows[height:].reshape(height, -1)[:, : 2 * width].reshape(height, width, 2)
    return np.asarray(cv2.transform(cv2.merge([luma, chroma]), _YUV_TO_RGB))


def _no_colour(encoding: str) -> str:
    if _OPENCV_TYPE.fullmatch(encoding.lower()):
        return (
            f'encoding {encoding!r} is depth or data; needed is colour, such as rgb8 or mono16: name another '
            'topic, or name this one as the depth of the camera if it is depth'
        )
    return f'encoding {encoding!r} is unknown; known are {", ".join(_LAYOUTS)}'
