# SPDX-License-Identifier: Apache-2.0
"""A LeRobot v3 data set: Parquet for numbers, MP4 for pictures, JSON for what they are.

`observation.state` is qpos, `observation.endpose` endpose, `observation.images.<camera>` the pictures,
`action` the wire row that was commanded at the frame. A frame's time is its number divided by the rate: so a
recording with a gap in it becomes two episodes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from openeta_ros.embodiment import Embodiment
from openeta_ros.episodes import lerobot_stats
from openeta_ros.episodes.arrays import ArraysError
from openeta_ros.episodes.frames import Array
from openeta_ros.episodes.lerobot_video import FILES_PER_CHUNK, EpisodeVideo, VideoFiles

VERSION = 'v3.0'
MAX_DATA_BYTES = 100_000_000
POSE = ('x', 'y', 'z', 'qw', 'qx', 'qy', 'qz')
DATA_PATH = 'data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet'
VIDEO_PATH = 'videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4'


class LeRobotWriter:
    """Writes a data set into `folder`, frame by frame; in memory are the numbers of one episode.

    Pictures of depth are left out: the format has no place for them.
    """

    def __init__(self, folder: Path, embodiment: Embodiment) -> None:
        self._folder, self._embodiment = folder, embodiment
        self._fps = float(embodiment.rate_hz)
        self._features: dict[str, dict[str, Any]] = {}
        self._tasks: dict[str, int] = {}
        self._episodes: list[dict[str, Any]] = []
        self._stats: dict[str, list[lerobot_stats.Stats]] = {}
        self._frames = 0
        self._data: Any = None
        self._data_file = -1
        self._data_path = folder
        self._files: dict[str, VideoFiles] = {}
        self._scratch = folder / 'scratch'
        self._scratch.mkdir(parents=True)
        self._begin('')

    @property
    def episodes(self) -> int:
        """How many episodes there are."""
        return len(self._episodes)

    @property
    def frames(self) -> int:
        """How many frames there are, in the episodes that ended."""
        return self._frames

    def begin(self, instruction: str) -> None:
        """Begin the episodes of a recording in which `instruction` was followed."""
        self._begin(instruction)

    def frame(self, observation: Mapping[str, Array], action: Array, time_s: float) -> None:
        """Take a frame.

        Raises:
            ArraysError: its arrays are others than those of the first frame.
        """
        rows = {_key(name): array for name, array in observation.items() if not name.startswith('depth_')}
        rows['action'] = action
        self._check(rows)
        self._count += 1
        for key, array in rows.items():
            if array.ndim == 3:
                if key not in self._videos:
                    self._videos[key] = EpisodeVideo(self._scratch / f'{key}.mp4', self._fps)
                self._videos[key].add(array)
            else:
                self._numbers.setdefault(key, []).append(array.astype(np.float32))

    def gap(self) -> None:
        """Begin another episode."""
        self.end()

    def end(self) -> None:
        """End the episode that was begun, when it has frames, and begin the next of the same instruction."""
        if self._count:
            self._write_episode()
        self._begin(self._instruction)

    def abandon(self) -> None:
        """Throw away what was begun."""
        for video in self._videos.values():
            video.close()
        self._begin(self._instruction)

    def complete(self, source: Mapping[str, Any]) -> None:
        """Write what the data set is; `source` (JSON-safe) says where it comes from."""
        for files in self._files.values():
            files.close()
        if self._data is not None:
            self._data.close()
        shutil.rmtree(self._scratch)
        meta = self._folder / 'meta'
        (meta / 'episodes' / 'chunk-000').mkdir(parents=True)
        _write_table(meta / 'episodes' / 'chunk-000' / 'file-000.parquet', self._episodes)
        _write_tasks(meta / 'tasks.parquet', list(self._tasks))
        stats = {key: lerobot_stats.together(parts) for key, parts in self._stats.items()}
        _write_json(meta / 'stats.json', {key: _plain(one) for key, one in stats.items()})
        _write_json(meta / 'info.json', self._info())
        _write_json(meta / 'openeta_ros.json', dict(source))

    def _begin(self, instruction: str) -> None:
        self._instruction = instruction
        self._count = 0
        self._numbers: dict[str, list[Array]] = {}
        self._videos: dict[str, EpisodeVideo] = {}

    def _check(self, rows: Mapping[str, Array]) -> None:
        if not self._features:
            self._features = {key: self._feature(key, array) for key, array in rows.items()}
        for key, feature in self._features.items():
            shape = rows[key].shape if key in rows else None
            if shape is None or _even(shape) != tuple(feature['shape']):
                raise ArraysError(f'{key} is {shape}, and {tuple(feature["shape"])} in the data set so far')

    def _feature(self, key: str, array: Array) -> dict[str, Any]:
        if array.ndim == 3:
            height, width, _ = shape = _even(array.shape)
            video = {
                'video.height': height,
                'video.width': width,
                'video.codec': 'h264',
                'video.pix_fmt': 'yuv420p',
                'video.is_depth_map': False,
                'video.fps': _number(self._fps),
                'video.channels': 3,
                'has_audio': False,
            }
            return {
                'dtype': 'video',
                'shape': list(shape),
                'names': ['height', 'width', 'channels'],
                'info': video,
            }
        names = self._embodiment.wire_joints
        if key == 'observation.endpose':
            names = []
            for name, arm in self._embodiment.arms.items():
                names += [f'{name}.{column}' for column in (*POSE, *(['gripper'] if arm.gripper else []))]
        return {'dtype': 'float32', 'shape': list(array.shape), 'names': names}

    def _write_episode(self) -> None:
        count, index = self._count, len(self._episodes)
        task = self._tasks.setdefault(self._instruction, len(self._tasks))
        numbers = np.arange(count)
        columns: dict[str, Array] = {
            **{key: np.stack(rows) for key, rows in self._numbers.items()},
            'timestamp': (numbers / self._fps).astype(np.float32),
            'frame_index': numbers,
            'episode_index': np.full(count, index),
            'index': numbers + self._frames,
            'task_index': np.full(count, task),
        }
        stats: dict[str, lerobot_stats.Stats] = {}
        places: dict[str, Any] = {}
        for key, video in self._videos.items():
            video.close()
            stats[key] = video.stats.figures()
            files = self._files.setdefault(key, VideoFiles(self._folder / 'videos' / key, self._fps))
            place = files.append(video.path)
            places[f'videos/{key}/chunk_index'], places[f'videos/{key}/file_index'] = divmod(
                place.file, FILES_PER_CHUNK
            )
            places[f'videos/{key}/from_timestamp'] = place.from_s
            places[f'videos/{key}/to_timestamp'] = place.to_s
        for key, column in columns.items():
            stats[key] = lerobot_stats.of_columns(column.reshape(count, -1))
        for key, one in stats.items():
            self._stats.setdefault(key, []).append(one)
        self._write_data(columns)
        chunk, number = divmod(self._data_file, FILES_PER_CHUNK)
        self._episodes.append(
            {
                'episode_index': index,
                'tasks': [self._instruction],
                'length': count,
                'data/chunk_index': chunk,
                'data/file_index': number,
                'dataset_from_index': self._frames,
                'dataset_to_index': self._frames + count,
                **places,
                **{f'stats/{key}/{name}': one.tolist() for key, all_ in stats.items()
                   for name, one in all_.items()},
                'meta/episodes/chunk_index': 0,
                'meta/episodes/file_index': 0,
            }
        )  # fmt: skip
        self._frames += count

    def _write_data(self, columns: Mapping[str, Array]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({key: _column(array) for key, array in columns.items()})
        if self._data is not None and self._data_path.stat().st_size > MAX_DATA_BYTES:
            self._data.close()
            self._data = None
        if self._data is None:
            self._data_file += 1
            chunk, number = divmod(self._data_file, FILES_PER_CHUNK)
            path = self._folder / DATA_PATH.format(chunk_index=chunk, file_index=number)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._data, self._data_path = pq.ParquetWriter(path, table.schema), path
        self._data.write_table(table)

    def _info(self) -> dict[str, Any]:
        single = {'shape': [1], 'names': None}
        return {
            'codebase_version': VERSION,
            'robot_type': self._embodiment.name,
            'total_episodes': len(self._episodes),
            'total_frames': self._frames,
            'total_tasks': len(self._tasks),
            'chunks_size': FILES_PER_CHUNK,
            'data_files_size_in_mb': MAX_DATA_BYTES // 10**6,
            'video_files_size_in_mb': 200,
            'fps': _number(self._fps),
            'splits': {'train': f'0:{len(self._episodes)}'},
            'data_path': DATA_PATH,
            'video_path': VIDEO_PATH,
            'features': {
                **self._features,
                'timestamp': {'dtype': 'float32', **single},
                **{
                    key: {'dtype': 'int64', **single}
                    for key in ('frame_index', 'episode_index', 'index', 'task_index')
                },
            },
        }


def _key(name: str) -> str:
    if name.startswith('frames_'):
        return f'observation.images.{name.removeprefix("frames_")}'
    return 'observation.state' if name == 'qpos' else f'observation.{name}'


def _even(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a picture in its video, which has no odd sizes; others as they are."""
    return (shape[0] + shape[0] % 2, shape[1] + shape[1] % 2, 3) if len(shape) == 3 else shape


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _column(array: Array) -> Any:
    import pyarrow as pa

    if array.ndim == 1:
        return pa.array(array)
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)


def _write_tasks(path: Path, tasks: list[str]) -> None:
    """Write the tasks as pandas does it, whose index they are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    index = '__index_level_0__'
    text, whole = (
        {'pandas_type': 'unicode', 'numpy_type': 'object'},
        {'pandas_type': 'int64', 'numpy_type': 'int64'},
    )
    described = {
        'index_columns': [index],
        'column_indexes': [{'name': None, 'field_name': None, **text, 'metadata': {'encoding': 'UTF-8'}}],
        'columns': [
            {'name': 'task_index', 'field_name': 'task_index', **whole, 'metadata': None},
            {'name': None, 'field_name': index, **text, 'metadata': None},
        ],
        'creator': {'library': 'pyarrow', 'version': pa.__version__},
        'pandas_version': '2.0.0',
    }
    table = pa.table(
        {'task_index': pa.array(range(len(tasks)), pa.int64()), index: pa.array(tasks, pa.string())}
    )
    pq.write_table(table.replace_schema_metadata({'pandas': json.dumps(described)}), path)


def _plain(stats: lerobot_stats.Stats) -> dict[str, Any]:
    return {name: one.tolist() for name, one in stats.items()}


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=4) + '\n', encoding='utf-8')
