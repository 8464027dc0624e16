# SPDX-License-Identifier: Apache-2.0
"""The pictures of one camera in a LeRobot data set: episodes one after the other in few video files."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from openeta_ros.episodes.frames import Array
from openeta_ros.episodes.lerobot_stats import PictureStats
from openeta_ros.episodes.video import VideoFile

# Whoever trains reads single pictures: every second one stands by itself, and none waits for a later one.
ENCODER_OPTIONS = {'crf': '23', 'preset': 'ultrafast', 'g': '2', 'bf': '0'}
MAX_FILE_BYTES = 200_000_000
FILES_PER_CHUNK = 1000
# Pictures waiting to be encoded.
MAX_WAITING = 16


class Place(NamedTuple):
    """Where an episode lies: number of the file, and its seconds in there."""

    file: int
    from_s: float
    to_s: float


class EpisodeVideo:
    """The pictures of one episode, encoded by a thread of their own."""

    def __init__(self, path: Path, rate_hz: float) -> None:
        self.path = path
        self.stats = PictureStats()
        self._video = VideoFile(path, rate_hz, ENCODER_OPTIONS)
        self._thread = ThreadPoolExecutor(1, 'encode')
        self._waiting: deque[Future[None]] = deque()

    def add(self, picture: Array) -> None:
        """Take one more picture (H, W, 3) uint8."""
        while len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._encode, picture))

    def close(self) -> None:
        """Write what is left."""
        self._thread.shutdown(wait=True)
        try:
            for one in self._waiting:
                one.result()
        finally:
            self._video.close()

    def _encode(self, picture: Array) -> None:
        self.stats.add(picture)
        self._video.add(picture)


class VideoFiles:
    """The video files of one camera in `folder`: chunk-<nnn>/file-<nnn>.mp4."""

    def __init__(self, folder: Path, rate_hz: float) -> None:
        self._folder = folder
        self._rate = Fraction(rate_hz).limit_denominator(1000)
        self._output: Any = None
        self._stream: Any = None
        self._file = -1
        self._bytes = 0
        self._pictures = 0

    def append(self, episode: Path) -> Place:
        """Put the pictures of an episode's file behind those that are there, as they are encoded."""
        import av

        with av.open(str(episode)) as source:
            stream = source.streams.video[0]
            if self._output is None or self._bytes > MAX_FILE_BYTES:
                self._begin(stream)
            first = self._pictures
            offset = round(first / self._rate / stream.time_base)
            for packet in source.demux(stream):
                if packet.dts is None:
                    continue
                packet.pts += offset
                packet.dts += offset
                packet.stream = self._stream
                self._bytes += packet.size
                self._output.mux(packet)
                self._pictures += 1
        return Place(self._file, float(first / self._rate), float(self._pictures / self._rate))

    def close(self) -> None:
        """End the file."""
        if self._output is not None:
            self._output.close()
            self._output = None

    def _begin(self, template: Any) -> None:
        import av

        self.close()
        self._file += 1
        self._bytes = self._pictures = 0
        chunk, number = divmod(self._file, FILES_PER_CHUNK)
        path = self._folder / f'chunk-{chunk:03d}' / f'file-{number:03d}.mp4'
        path.parent.mkdir(parents=True, exist_ok=True)
        self._output = av.open(str(path), 'w', format='mp4', options={'movflags': 'faststart'})
        self._stream = self._output.add_stream_from_template(template)
