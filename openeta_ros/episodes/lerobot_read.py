# SPDX-License-Identifier: Apache-2.0
"""A LeRobot v3 data set back to recordings, for everything that reads these.

Its state and actions must be wire rows of the contract: joints in rad or m, grippers 0 closed to 1 open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from openeta_ros.embodiment import Embodiment
from openeta_ros.envs import Sensors
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.frames import Array
from openeta_ros.episodes.lerobot import DATA_PATH, VIDEO_PATH
from openeta_ros.episodes.record import EpisodeRecord
from openeta_ros.observation import NS_PER_S

VERSION_START = 'v3.'
# Zero is no stamp: episodes begin at one second.
START_NS = NS_PER_S


@dataclass(frozen=True)
class _Episode:
    index: int
    instruction: str
    row: Mapping[str, Any]


class LeRobotReader:
    """A data set in `folder`.

    Raises:
        BagError: it is none, or not of the contract's robot.
    """

    def __init__(self, folder: Path, embodiment: Embodiment) -> None:
        import pyarrow.parquet as pq

        self._folder, self._embodiment = folder, embodiment
        try:
            self._info = json.loads((folder / 'meta' / 'info.json').read_text(encoding='utf-8'))
            version, self._fps = str(self._info['codebase_version']), float(self._info['fps'])
            features = self._info['features']
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BagError(f'{folder} is no LeRobot data set: {error}') from None
        if not version.startswith(VERSION_START):
            raise BagError(f'{folder} is a LeRobot data set of version {version}, and only v3 can be read')
        size = embodiment.qpos_size
        for name in ('observation.state', 'action'):
            shape = features.get(name, {}).get('shape')
            if shape != [size]:
                raise BagError(f'{folder}: {name} is {shape}, and rows of {embodiment.name} are [{size}]')
        self._cameras = {name: f'observation.images.{name}' for name in embodiment.cameras}
        lacking = [key for key in self._cameras.values() if features.get(key, {}).get('dtype') != 'video']
        if lacking:
            raise BagError(f'{folder} has no video {", ".join(lacking)}, which {embodiment.name} has')
        self.episodes: list[_Episode] = []
        for file in sorted((folder / 'meta' / 'episodes').glob('*/*.parquet')):
            try:
                names = [name for name in pq.read_schema(file).names if not name.startswith('stats/')]
                for row in pq.read_table(file, columns=names).to_pylist():
                    self.episodes.append(_Episode(row['episode_index'], ' '.join(row['tasks']), row))
            except (ValueError, KeyError, TypeError) as error:  # Arrow's are ValueErrors
                raise BagError(f'{file} cannot be read: {error}') from None

    def write(self, output: Path, progress: Callable[[float], None]) -> int:
        """Write each episode as a bag, `output`/episodes/<n>/bag; return how many moments there are.

        Raises:
            BagError: a file of the data set is damaged.
        """
        from av.error import FFmpegError

        count = 0
        for number, episode in enumerate(self.episodes):
            try:
                count += self._write(episode, output / 'episodes' / str(episode.index) / 'bag')
            except BagError:
                raise
            except (FFmpegError, ValueError, KeyError, TypeError) as error:
                raise BagError(f'{self._folder}: episode {episode.index} cannot be read: {error}') from None
            progress((number + 1) / len(self.episodes))
        return count

    def _write(self, episode: _Episode, folder: Path) -> int:
        import pyarrow.parquet as pq

        path = self._path(self._info.get('data_path', DATA_PATH), episode, 'data')
        begin, end = episode.row['dataset_from_index'], episode.row['dataset_to_index']
        table = pq.read_table(
            path,
            columns=['observation.state', 'action', 'timestamp'],
            filters=[('index', '>=', begin), ('index', '<', end)],
        )
        rows = table.to_pylist()
        folder.parent.mkdir(parents=True)
        record = EpisodeRecord(folder, self._embodiment, self._custom_data(episode))
        try:
            videos = {name: self._pictures(episode, key, len(rows)) for name, key in self._cameras.items()}
            for row in rows:
                stamp = START_NS + round(row['timestamp'] * NS_PER_S)
                pictures = {name: next(video) for name, video in videos.items()}
                record.sensors(Sensors(stamp, pictures, self._positions(row['observation.state']), {}))
                record.chunk(np.array([row['action']]), 'qpos', stamp)
        finally:
            record.close({})
        return len(rows)

    def _pictures(self, episode: _Episode, key: str, count: int) -> Iterator[Array]:
        """Yield the pictures of an episode; its first is the one at or after its time in the file."""
        import av

        path = self._path(self._info.get('video_path', VIDEO_PATH), episode, f'videos/{key}', video_key=key)
        start = float(episode.row[f'videos/{key}/from_timestamp'])
        half_s = 0.5 / self._fps
        found = 0
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            container.seek(round(max(0.0, start - half_s) / (stream.time_base or Fraction(1))), stream=stream)
            for frame in container.decode(stream):
                if frame.time is None or frame.time < start - half_s:
                    continue
                yield frame.to_ndarray(format='rgb24')
                found += 1
                if found == count:
                    return
        raise BagError(f'{path} holds {found} pictures of episode {episode.index}, which has {count}')

    def _path(self, pattern: str, episode: _Episode, place: str, **more: str) -> Path:
        chunk, file = episode.row[f'{place}/chunk_index'], episode.row[f'{place}/file_index']
        path = self._folder / pattern.format(chunk_index=chunk, file_index=file, **more)
        if not path.resolve().is_relative_to(self._folder.resolve()):
            raise BagError(f'{self._folder} names {pattern!r}, which is outside of it')
        return path

    def _positions(self, state: list[float]) -> dict[str, float]:
        positions = dict(zip(self._embodiment.wire_joints, map(float, state), strict=True))
        for arm in self._embodiment.arms.values():
            if arm.gripper is not None:
                positions[arm.gripper.joint] = arm.gripper.to_native(positions[arm.gripper.joint])
        return positions

    def _custom_data(self, episode: _Episode) -> dict[str, str]:
        env = {
            'instruction': episode.instruction,
            'embodiment': self._embodiment.name,
            'data_set': str(self._folder),
            'data_set_episode': episode.index,
        }
        return {'contract': self._embodiment.path.read_text('utf-8'), 'env': json.dumps(env)}
