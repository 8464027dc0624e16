# SPDX-License-Identifier: Apache-2.0
"""One camera's pictures as an MP4 that every browser plays (H.264, yuv420p)."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Near-transparent at a few kB a picture; 'veryfast' costs about 2 ms for 240x320 on one core.
ENCODER_OPTIONS = {'crf': '20', 'preset': 'veryfast'}


class VideoFile:
    """Writes pictures (H, W, 3) uint8 RGB, all of one size, at `rate_hz` pictures per second.

    yuv420p halves colour in both directions: a picture of odd height or width is repeated by one pixel there.
    Without a picture there is no file. Errors are PyAV's: those of the file system are OSErrors, others are
    not.

    Attributes:
        pictures: how many were added.
    """

    def __init__(self, path: Path, rate_hz: float, options: Mapping[str, str] = ENCODER_OPTIONS) -> None:
        import av

        self._container = av.open(str(path), 'w', format='mp4', options={'movflags': 'faststart'})
        rate = Fraction(rate_hz).limit_denominator(1000)
        self._stream = self._container.add_stream('libx264', rate=rate, options=dict(options))
        self._stream.pix_fmt = 'yuv420p'
        # Two cores or more are busy with drawing; more threads would only delay the pictures.
        self._stream.codec_context.thread_count = 1
        self.pictures = 0

    def add(self, picture: NDArray[Any]) -> None:
        """Encode one more picture."""
        import av

        height, width = picture.shape[:2]
        if height % 2 or width % 2:
            picture = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode='edge')
        if self.pictures == 0:
            self._stream.height, self._stream.width = picture.shape[:2]
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format='rgb24')
        frame.pts = self.pictures
        self.pictures += 1
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        """Write what is still in the encoder, and the index."""
        if self.pictures:
            self._container.mux(self._stream.encode(None))
        self._container.close()
