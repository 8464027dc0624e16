# SPDX-License-Identifier: Apache-2.0
"""The recorded episode: a rosbag2 directory holding one MCAP file, without a ROS on the machine.

Its topics are the contract's (pictures and joint states, as the env publishes them) and, beside them, every
action chunk and the result of every row; all under the stamps of the env. Chunks of the file are compressed
(zstd), so that players see plain messages. Its custom data say what the episode was: `CUSTOM_DATA`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openeta_ros.control import Execution
from openeta_ros.embodiment import Embodiment
from openeta_ros.embodiment.schema import ActionType
from openeta_ros.envs import Sensors, StepResult
from openeta_ros.episodes.definitions import typestore
from openeta_ros.episodes.rosbag2_folder import Rosbag2Folder, profile
from openeta_ros.observation import NS_PER_S, image_message, joint_state_message

CHUNK_TOPIC = '/policy/action_chunk'
RESULT_TOPIC = '/env/step_result'
CHUNK_TYPE = 'openeta_msgs/msg/ActionChunk'
RESULT_TYPE = 'openeta_msgs/msg/StepResult'
IMAGE_TYPE = 'sensor_msgs/msg/Image'
JOINT_STATE_TYPE = 'sensor_msgs/msg/JointState'

# Keys of the custom data (in metadata.yaml and in the MCAP): `contract` is the YAML text, the others JSON.
CUSTOM_DATA = ('contract', 'settings', 'env', 'policy', 'versions', 'episode', 'latencies_ms')

WHOLE = Execution()


class EpisodeRecord:
    """Writes one episode; `folder` becomes the rosbag2 directory.

    Not for several threads at once. Errors are those of the file system (OSError).
    """

    def __init__(self, folder: Path, embodiment: Embodiment, custom_data: Mapping[str, str]) -> None:
        self._embodiment = embodiment
        self._types = typestore()
        self._folder = Rosbag2Folder(folder, custom_data, compression='zstd')
        self._kinds: dict[str, str] = {}
        sensors, commands = profile(reliability='best_effort', depth=5), profile(reliability='reliable')
        # A simulator publishes all joints on the first of the contract's state topics.
        self._state = absolute(embodiment.state[0].topic)
        cameras = {absolute(camera.topic): IMAGE_TYPE for camera in embodiment.cameras.values()}
        streams = {**cameras, self._state: JOINT_STATE_TYPE}
        for topic, kind in {**streams, CHUNK_TOPIC: CHUNK_TYPE, RESULT_TOPIC: RESULT_TYPE}.items():
            self._kinds[topic] = kind
            self._folder.add_topic(topic, kind, [sensors if topic in streams else commands])

    def sensors(self, sensors: Sensors) -> None:
        """Add the pictures and joint states of one moment."""
        stamp = sensors.stamp_ns
        for name, camera in self._embodiment.cameras.items():
            message = image_message(sensors.pictures[name], stamp, frame_id=name)
            self._write(absolute(camera.topic), stamp, message)
        self._write(self._state, stamp, joint_state_message(sensors.positions, sensors.velocities, stamp))

    def chunk(
        self,
        actions: NDArray[Any],
        action_type: ActionType,
        stamp_ns: int,
        execution: Execution = WHOLE,
    ) -> None:
        """Add the rows that the policy answered to the observation of `stamp_ns`, and how many of them are
        executed."""
        types = self._types.types
        stamp = self._time(stamp_ns)
        little = np.asarray(actions, actions.dtype.newbyteorder('<'))
        message = types[CHUNK_TYPE](
            header=types['std_msgs/msg/Header'](stamp=stamp, frame_id=self._embodiment.name),
            observation_stamp=stamp,
            action_type=action_type,
            rate_hz=float(self._embodiment.rate_hz),
            actions=types['openeta_msgs/msg/Array'](
                name='actions',
                dtype=little.dtype.str,
                shape=np.array(actions.shape, dtype=np.uint64),
                data=np.frombuffer(little.tobytes(), dtype=np.uint8),
            ),
            horizon=execution.horizon or 0,
            asynchronous=execution.asynchronous,
        )
        self._write(CHUNK_TOPIC, stamp_ns, message)

    def row(self, result: StepResult, sensors: Sensors) -> None:
        """Add what one executed row led to: its sensors and its result."""
        self.sensors(sensors)
        message = self._types.types[RESULT_TYPE](
            stamp=self._time(sensors.stamp_ns),
            reward=float(result.reward),
            terminated=bool(result.terminated),
            truncated=bool(result.truncated),
            success=bool(result.info['success']),
            step=int(result.info['step']),
            clamped=list(result.info['clamped']),
            executed=np.array(result.info.get('executed', ()), dtype=np.float64),
            events=list(result.info.get('events', ())),
        )
        self._write(RESULT_TOPIC, sensors.stamp_ns, message)

    def flush(self) -> None:
        """Hand to the operating system what is older than a second."""
        self._folder.flush(due=True)

    def close(self, custom_data: Mapping[str, str]) -> None:
        """Write the index and metadata.yaml; `custom_data` adds what is known only now."""
        self._folder.custom_data.update(custom_data)
        self._folder.close()

    def _write(self, topic: str, stamp_ns: int, message: Any) -> None:
        self._folder.write(topic, stamp_ns, self._types.serialize_cdr(message, self._kinds[topic]))

    def _time(self, stamp_ns: int) -> Any:
        sec, nanosec = divmod(stamp_ns, NS_PER_S)
        return self._types.types['builtin_interfaces/msg/Time'](sec=sec, nanosec=nanosec)


def absolute(topic: str) -> str:
    """Return a contract's topic as rosbag2 wants it: absolute, in the root namespace when it is relative."""
    return topic if topic.startswith('/') else f'/{topic.removeprefix("~/")}'
