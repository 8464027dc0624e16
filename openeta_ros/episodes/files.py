# SPDX-License-Identifier: Apache-2.0
"""The folder of an episode: its bag and its videos, written by a thread of their own.

While an episode runs its folder is called `<n>.partial`; it gets its own name when everything in it is
complete, so that a folder `<n>` never holds half an episode. An interrupted episode keeps the partial name:
its files are closed in good order, and hold what was seen until then.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from openeta_ros.control import Execution
from openeta_ros.embodiment import Embodiment
from openeta_ros.embodiment.schema import ActionType
from openeta_ros.envs import Sensors, StepResult
from openeta_ros.episodes.record import WHOLE, EpisodeRecord
from openeta_ros.episodes.results import EpisodeFiles
from openeta_ros.episodes.rosbag2_folder import PARTIAL
from openeta_ros.episodes.video import VideoFile

# Rows waiting to be written: bounds the memory (0.5 MB a row of two 240x320 cameras) when the disk is slow.
MAX_WAITING = 64

BAG = 'bag'
# How long the thread waits for work before it looks whether what it has should be on disk.
IDLE_S = 1.0


class EpisodeWriter:
    """Writes `<root>/episodes/<index>/`: an observer of an episode (see `runner.EpisodeObserver`).

    The runner's thread only hands over; its cost is a queue's. A failure of the thread (disk full) is raised
    as OSError by the next call. `execution` says how much of each chunk is executed.
    """

    def __init__(
        self,
        root: Path,
        index: int,
        embodiment: Embodiment,
        custom_data: Mapping[str, str],
        *,
        execution: Execution | None = None,
    ) -> None:
        self._name = f'episodes/{index}'
        self._final = root / self._name
        self._partial = self._final.with_name(f'{index}{PARTIAL}')
        if self._partial.exists():
            shutil.rmtree(self._partial)
        self._partial.mkdir(parents=True)
        self._execution = execution or WHOLE
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(MAX_WAITING)
        self._failure: Exception | None = None
        self._latencies_ms: list[float] = []
        self._finished = False
        self._record = EpisodeRecord(self._partial / BAG, embodiment, custom_data)
        try:
            self._videos = {
                name: VideoFile(self._partial / f'{name}.mp4', embodiment.rate_hz)
                for name in embodiment.cameras
            }
        except Exception as error:  # a PyAV without H.264, say
            self._record.close({})
            raise OSError(f'cannot write videos into {self._partial}: {error}') from error
        self._thread = threading.Thread(target=self._run, name=f'episode-{index}-writer', daemon=True)
        self._thread.start()

    def started(self, sensors: Sensors) -> None:
        """Take the first moment."""
        self._put(lambda: self._record.sensors(sensors))
        self._put(lambda: self._film(sensors))

    def chunk(self, actions: NDArray[Any], action_type: ActionType, stamp_ns: int, latency_ms: float) -> None:
        """Take the rows that the policy answered."""
        self._latencies_ms.append(round(latency_ms, 3))
        self._put(lambda: self._record.chunk(actions, action_type, stamp_ns, self._execution))

    def row(self, result: StepResult, sensors: Sensors) -> None:
        """Take what a row led to."""
        self._put(lambda: self._record.row(result, sensors))
        self._put(lambda: self._film(sensors))

    def complete(self, custom_data: Mapping[str, str]) -> EpisodeFiles:
        """Finish the files, name the folder, return where they are; `custom_data` joins the bag's."""
        self._finish({**custom_data, 'latencies_ms': json.dumps(self._latencies_ms)})
        if self._final.exists():
            shutil.rmtree(self._final)
        os.replace(self._partial, self._final)
        videos = {name: f'{self._name}/{name}.mp4' for name, video in self._videos.items() if video.pictures}
        return EpisodeFiles(bag=f'{self._name}/{BAG}', videos=videos)

    def abandon(self) -> None:
        """Finish the files of half an episode; the folder keeps its partial name. Raises nothing."""
        with contextlib.suppress(OSError):
            self._finish({})

    def _finish(self, custom_data: Mapping[str, str]) -> None:
        if self._finished:
            return
        self._finished = True
        self._work.put(None)
        self._thread.join()
        try:
            with contextlib.ExitStack() as stack:  # each is closed even when another cannot be
                stack.callback(self._record.close, custom_data)
                for video in self._videos.values():
                    stack.callback(video.close)
        except Exception as failure:
            self._failure = self._failure or failure
        self._check()

    def _film(self, sensors: Sensors) -> None:
        for name, video in self._videos.items():
            video.add(sensors.pictures[name])

    def _put(self, work: Callable[[], None]) -> None:
        self._check()
        self._work.put(work)

    def _check(self) -> None:
        if self._failure is not None:
            raise OSError(f'cannot write {self._partial}: {self._failure}') from self._failure

    def _run(self) -> None:
        """Do the work in order; after a failure only drain, so that nobody waits for a full queue."""
        while (work := self._next()) is not None:
            if self._failure is None:
                try:
                    work()
                except Exception as failure:
                    self._failure = failure

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._work.get(timeout=IDLE_S)
        except queue.Empty:
            return self._record.flush
