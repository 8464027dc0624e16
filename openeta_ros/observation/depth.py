# SPDX-License-Identifier: Apache-2.0
"""Depth pictures to metres, after REP 118: 16UC1 in millimetres with 0 for nothing, 32FC1 in metres."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from openeta_ros.observation.compressed import MOST_PIXELS, decoded, encodings_of, is_png
from openeta_ros.observation.encodings import Octets, Values, octets, rows_of, values_of
from openeta_ros.observation.errors import ImageError

_MM_PER_M = np.float32(1000)
# What compressed_depth_image_transport writes before the file: int32 kind, float32 A, float32 B.
_HEADER = 12


def depth_of_image(message: Any) -> npt.NDArray[np.float32]:
    """Return the depth of a sensor_msgs Image: (H, W) float32, metres, NaN where nothing was measured.

    Raises:
        ImageError: the encoding is not 16UC1 or 32FC1, or the message contradicts itself.
    """
    encoding, height, width = str(message.encoding).lower(), int(message.height), int(message.width)
    if encoding == '16uc1':
        rows = rows_of(message, 2, height)[:, : 2 * width]
        return _from_millimetres(values_of(rows, 2, message.is_bigendian))
    if encoding == '32fc1':
        rows = rows_of(message, 4, height)[:, : 4 * width]
        return _measured(rows.view('>f4' if message.is_bigendian else '<f4').astype(np.float32))
    raise ImageError(f'encoding {message.encoding!r} is not depth; needed are 16UC1 or 32FC1')


def depth_of_compressed(message: Any) -> npt.NDArray[np.float32]:
    """Return the depth of a sensor_msgs CompressedImage: (H, W) float32, metres, NaN where nothing is.

    Takes what compressed_depth_image_transport writes, png or rvl, of 16UC1 and of 32FC1 (which it sends as
    quantised inverse depth); and a 16 bit PNG of millimetres.

    Raises:
        ImageError: it is something else, or not all of it is there.
    """
    data = octets(message.data)
    original, _ = encodings_of(message)
    original = original or str(message.format).lower().strip()
    if is_png(data) and original in ('png', '16uc1', ''):
        return _from_millimetres(_of_16_bit(decoded(data, message.format)))
    if original not in ('16uc1', '32fc1') or is_png(data):
        raise ImageError(
            f'format {message.format!r} is not depth; needed is compressedDepth, png or rvl, of 16UC1 or '
            '32FC1, or a 16 bit png of millimetres'
        )
    if data.size <= _HEADER:
        raise ImageError(
            f'{data.size} bytes; compressedDepth needs a header of {_HEADER} and a picture behind it'
        )
    body = data[_HEADER:]
    rvl = 'rvl' in str(message.format).lower() and not is_png(body)
    values = _of_rvl(body) if rvl else _of_16_bit(decoded(body, message.format))
    if original == '16uc1':
        return _from_millimetres(values)
    a, b = np.frombuffer(data[:_HEADER].tobytes(), '<f4')[1:]
    if not (np.isfinite(a) and np.isfinite(b)):
        raise ImageError(f'the quantisation of the compressedDepth is {a} and {b}, not finite numbers')
    with np.errstate(divide='ignore', invalid='ignore', over='ignore'):
        return _measured(np.where(values > 0, a / (values - b), np.float32(np.nan)).astype(np.float32))


def _from_millimetres(values: Values) -> npt.NDArray[np.float32]:
    depth = np.divide(values, _MM_PER_M, dtype=np.float32)
    depth[values == 0] = np.nan
    return depth


def _measured(depth: Values) -> npt.NDArray[np.float32]:
    """Return the same array with NaN for what is no distance: REP 118's infinities for too near and too far,
    and zero and below."""
    depth[~((depth > 0) & (depth < np.inf))] = np.nan
    return depth


def _of_16_bit(values: Values) -> Values:
    if values.ndim != 2 or values.dtype != np.uint16:
        raise ImageError(
            f'the picture has {8 * values.itemsize} bit and {values[0, 0].size} values a pixel; depth needs '
            'one value of 16 bit'
        )
    return values


def _of_rvl(data: Octets) -> Values:
    """Return the values (H, W) uint16 of a picture in RVL (Fast Lossless Depth Image Compression, 2017).

    Numbers are groups of nibbles, three bits each, lowest first, the fourth says that more follow. They are
    the lengths of a run of zeros and of a run of others, and then of each of the others its difference to the
    one before, zigzag coded.
    """
    width, height = (int(size) for size in np.frombuffer(data[:8].tobytes().ljust(8, b'\0'), '<u4'))
    if not 0 < width * height <= MOST_PIXELS:
        raise ImageError(
            f'the rvl picture claims {height} rows and {width} columns; needed are 1 to {MOST_PIXELS} pixels'
        )
    numbers = _rvl_numbers(data[8:])
    counts = numbers.tolist()
    runs: list[int] = []  # zeros, others, zeros, ...
    pixel = at = 0
    try:
        while pixel < width * height:
            zeros, others = counts[at], counts[at + 1]
            runs += (zeros, others)
            pixel, at = pixel + zeros + others, at + 2 + others
        whole = pixel == width * height and at <= len(counts)
    except IndexError:
        whole = False
    if not whole:
        raise ImageError(f'the rvl picture of {height} rows and {width} columns is truncated or damaged')
    is_other = np.tile([False, True], len(runs) // 2)
    # flatnonzero, because indexing by truths is several times slower where they change often.
    lengths = np.array(runs)
    pixels = np.flatnonzero(np.repeat(is_other, lengths))
    lengths[::2] = 2  # where the numbers hold the two counts of a run
    zigzag = numbers[np.flatnonzero(np.repeat(is_other, lengths))]
    values = np.zeros(width * height, np.uint16)
    values[pixels] = np.cumsum((zigzag >> 1) ^ -(zigzag & 1)).astype(np.uint16)
    return values.reshape(height, width)


def _rvl_numbers(data: Octets) -> npt.NDArray[np.int64]:
    """Return the numbers of an RVL stream, up to the last that is whole."""
    # Nibbles come from the upper end of little-endian words of 32 bit.
    octets_in_order = data[: data.size // 4 * 4].reshape(-1, 4)[:, ::-1].reshape(-1)
    nibbles = np.stack([octets_in_order >> 4, octets_in_order & 15], axis=1).reshape(-1)
    ends = np.flatnonzero(nibbles < 8) + 1
    starts = np.concatenate([[0], ends])[:-1]
    numbers: npt.NDArray[np.int64] = (nibbles[starts] & 7).astype(np.int64)
    longer: npt.NDArray[np.intp] = np.arange(ends.size)
    for digit in range(1, 11):
        longer = longer[np.flatnonzero(ends[longer] - starts[longer] > digit)]
        numbers[longer] |= (nibbles[starts[longer] + digit] & 7).astype(np.int64) << 3 * digit
    return numbers
