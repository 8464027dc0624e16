# SPDX-License-Identifier: Apache-2.0
"""Picture messages to arrays, and arrays to the size that the contract delivers.

One decoder serves live messages and bags: it reads fields by name and asks nothing about their class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from openeta_ros.observation.compressed import rgb_of_compressed
from openeta_ros.observation.depth import depth_of_compressed, depth_of_image
from openeta_ros.observation.encodings import Octets, Values, rgb_of_image
from openeta_ros.observation.errors import ImageError
from openeta_ros.observation.messages import stamp_ns

if TYPE_CHECKING:
    from openeta_ros.embodiment import Camera


def decode_image(message: Any) -> Octets:
    """Return the picture of a sensor_msgs Image or CompressedImage as RGB.

    Args:
        message: any object with the message's fields (rclpy's, or a bag reader's); `data` may be bytes,
            array.array, memoryview or a NumPy array.

    Returns:
        (H, W, 3) uint8, RGB, C-contiguous. A view of the message's bytes when its encoding is rgb8 without
        padding.

    Raises:
        ImageError: the encoding is unknown or has no colour, or the message is damaged: with the stamp, what
            was needed and what was there.

    16 bit scales by 255/65535 and rounds, as cv_bridge does. docs/reference/observation.md lists every
    encoding and what becomes of it.
    """
    return _decoded(message, rgb_of_image, rgb_of_compressed)


def decode_depth(message: Any) -> npt.NDArray[np.float32]:
    """Return the depth of a sensor_msgs Image (16UC1, 32FC1) or CompressedImage (compressedDepth, PNG).

    Returns:
        (H, W) float32, metres along the camera's axis; NaN where nothing was measured, never 0.

    Raises:
        ImageError: it is not depth, or the message is damaged.
    """
    return _decoded(message, depth_of_image, depth_of_compressed)


def fit_picture(picture: Octets, camera: Camera) -> Octets:
    """Return a camera's RGB picture as the contract delivers it: turned, cropped, resized, in this order.

    `rotate` is in degrees counter-clockwise; `crop` is (top, left, height, width) in pixels of the turned
    picture. With `resize: pad` the picture keeps its proportions in the middle of black. The picture itself
    is returned when nothing has to change.

    Raises:
        ImageError: the crop reaches beyond the picture.
    """
    return _fitted(picture, camera, _resized_smoothly, 0)


def fit_depth(depth: npt.NDArray[np.float32], camera: Camera) -> npt.NDArray[np.float32]:
    """Return a camera's depth (H, W) as `fit_picture` does its picture: with values of the nearest pixels,
    never between those of two things, and NaN for padding.

    Raises:
        ImageError: the crop reaches beyond the picture.
    """
    return _fitted(depth, camera, _resized_to_nearest, math.nan)


def _decoded(message: Any, raw: Callable[[Any], Values], compressed: Callable[[Any], Values]) -> Values:
    try:
        return raw(message) if hasattr(message, 'encoding') else compressed(message)
    except ImageError as error:
        stamp = stamp_ns(message) if hasattr(message, 'header') else None
        raise type(error)(error.reason, stamp) from None


def _fitted(
    picture: Values, camera: Camera, resized: Callable[[Values, int, int], Values], padding: float
) -> Values:
    if camera.rotate:
        picture = _turned(picture, camera.rotate)
    if camera.crop is not None:
        top, left, height, width = camera.crop
        if top + height > picture.shape[0] or left + width > picture.shape[1]:
            raise ImageError(
                f'crop {list(camera.crop)} reaches beyond a picture of {picture.shape[0]} rows and '
                f'{picture.shape[1]} columns'
            )
        picture = picture[top : top + height, left : left + width]
    if camera.size is None or picture.shape[:2] == camera.size:
        return np.ascontiguousarray(picture)
    height, width = camera.size
    if camera.resize == 'stretch':
        return resized(picture, height, width)
    scale = min(height / picture.shape[0], width / picture.shape[1])
    inner_height, inner_width = (
        min(most, max(1, round(size * scale)))
        for size, most in zip(picture.shape[:2], camera.size, strict=True)
    )
    top, left = (height - inner_height) // 2, (width - inner_width) // 2
    padded = np.full((height, width, *picture.shape[2:]), padding, picture.dtype)
    padded[top : top + inner_height, left : left + inner_width] = resized(picture, inner_height, inner_width)
    return padded


def _turned(picture: Values, degrees: int) -> Values:
    import cv2  # only where a picture must change: importing it takes a tenth of a second

    rules = {90: cv2.ROTATE_90_COUNTERCLOCKWISE, 180: cv2.ROTATE_180, 270: cv2.ROTATE_90_CLOCKWISE}
    return np.asarray(cv2.rotate(picture, rules[degrees]))


def _resized_smoothly(picture: Values, height: int, width: int) -> Values:
    import cv2

    shrinks = height * width < picture.shape[0] * picture.shape[1]
    # Area averaging when shrinking (no aliasing), linear when enlarging: OpenCV's own advice.
    rule = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(picture, (width, height), interpolation=rule))


def _resized_to_nearest(depth: Values, height: int, width: int) -> Values:
    import cv2

    # EXACT takes the pixel whose middle is nearest; INTER_NEAREST is half a pixel aside.
    return np.asarray(cv2.resize(depth, (width, height), interpolation=cv2.INTER_NEAREST_EXACT))
