# SPDX-License-Identifier: Apache-2.0
"""The recorder node: a contract's topics as they come, and what policy and env say, into one MCAP file.

What did not reach the recorder is counted by the numbers that publishers give their messages; what else is
lost, where it is lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from openeta_msgs.msg import Failure, RecorderStatus
from openeta_msgs.srv import Describe, StartRecording, StopRecording
from openeta_ros import embodiment as contracts
from openeta_ros.embodiment import Embodiment
from openeta_ros.episodes.recorder import Ended, Recording, known
from openeta_ros.nodes import runtime
from openeta_ros.nodes.cameras import info_topic
from openeta_ros.nodes.taking import Taking
from openeta_ros.observation import Assembler

STATUS_S = 1.0
# How often those who can say what is recorded are asked, until they do; and which nodes they are.
ASK_S = 0.2
DESCRIBED = ('env', 'policy')
# What there may be beside a contract's topics: tf and time, what the policy answered, what became of it.
BESIDE = ('/tf', '/tf_static', '/clock', 'policy/action_chunk', 'env/step_result', 'env/status')


class RecorderNode(Node):
    """See `parameters` for the parameters."""

    # A disk may take its time to write what waits.
    END_S = 60.0

    def __init__(self, process: runtime.Process) -> None:
        super().__init__('recorder')
        self._process = process
        self._values = runtime.declare(self, 'recorder')
        self._embodiment = contracts.load(self._values['embodiment'])
        self._streams = [self.resolve_topic_name(name) for name in streams_of(self._embodiment)]
        others = [*others_of(self._embodiment), *BESIDE, *self._values['topics'].split()]
        self._wanted = list(dict.fromkeys([*self._streams, *map(self.resolve_topic_name, others)]))
        self._under_way: tuple[Recording, Taking] | None = None
        self.exit_code = 0
        self._status = self.create_publisher(RecorderStatus, '~/status', 10)
        self.create_service(StartRecording, '~/start', self._on_start)
        self.create_service(StopRecording, '~/stop', self._on_stop)
        # Steady: whatever simulated time does.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(STATUS_S, self._tell, clock=steady)
        self.create_timer(ASK_S, self._ask, clock=steady)
        self._describers = {name: self.create_client(Describe, f'{name}/describe') for name in DESCRIBED}
        self._asked: set[str] = set()
        if self._values['record']:
            self._begin_at_once()

    def on_end(self) -> None:
        """End the recording under way. On the worker, when the process ends."""
        if self._under_way is not None:
            self._end({})

    def _begin_at_once(self) -> None:
        try:
            self._begin(Path(self._values['record']), _object(self._values['info'], 'info'))
        except (OSError, ValueError) as error:
            self._failed(str(error))

    def _begin(self, path: Path, info: Mapping[str, Any]) -> Path:
        if self._under_way is not None:
            raise OSError(f'{self._under_way[0].path} is being recorded: stop it first')
        about = {'node': self.get_fully_qualified_name(), 'topics': self._wanted}
        recording = Recording(
            path.absolute(),
            known(self._embodiment, info, about),
            self._clocks(),
            compression=self._values['compression'],
        )
        self._asked.clear()
        self._under_way = recording, Taking(self, self._wanted, recording)
        return recording.path

    def _end(self, outcome: Mapping[str, Any]) -> Ended:
        assert self._under_way is not None
        (recording, taking), self._under_way = self._under_way, None
        taking.end()
        recording.troubles += self._missing(taking)
        ended = recording.end(outcome, self._clocks())
        print(*ended.lines(), sep='\n', flush=True)
        if ended.failure:
            self.exit_code = 1
        return ended

    def _on_start(self, request: Any, response: Any) -> Any:
        folder = Path(self._values['folder'] or 'recordings')
        path = Path(request.path) if request.path else folder / time.strftime('%Y-%m-%d_%H-%M-%S')
        try:
            response.path = str(self._begin(path, _object(request.info, 'info')))
        except (OSError, ValueError) as error:
            response.failure = Failure(source='recorder', kind=type(error).__name__, message=str(error))
        return response

    def _on_stop(self, request: Any, response: Any) -> Any:
        if self._under_way is None:
            return response
        try:
            ended = self._end(_object(request.outcome, 'outcome'))
        except ValueError as error:  # it goes on
            response.failure = Failure(source='recorder', kind='ValueError', message=str(error))
            return response
        response.path, response.account = str(ended.path), json.dumps(ended.json())
        if ended.failure:
            response.failure = Failure(source='recorder', kind='disk', message=ended.failure)
        return response

    def _ask(self) -> None:
        """Ask env and policy, when they are there, what they are: it is kept with the recording."""
        if self._under_way is None:
            return
        recording = self._under_way[0]
        for name, client in self._describers.items():
            if name not in self._asked and client.service_is_ready():
                self._asked.add(name)
                client.call_async(Describe.Request()).add_done_callback(partial(self._note, recording, name))

    def _note(self, recording: Recording, name: str, answer: Any) -> None:
        descriptor = answer.result().descriptor if answer.exception() is None else ''
        if descriptor:
            recording.note(name, descriptor)
        else:  # it is not ready yet
            self._asked.discard(name)

    def _clocks(self) -> dict[str, int]:
        return {
            'ros_ns': self.get_clock().now().nanoseconds,
            'wall_ns': time.time_ns(),
            'monotonic_ns': time.monotonic_ns(),
        }

    def _tell(self) -> None:
        status = RecorderStatus()
        if self._under_way is not None:
            recording, taking = self._under_way
            status.recording, status.path = True, str(recording.path)
            status.messages, status.bytes, status.lost = recording.messages, recording.bytes, recording.lost
            status.troubles += [*self._missing(taking), *recording.troubles, *recording.worries()]
            if recording.failure is not None and self._values['record']:
                self._failed(f'the recording ends: {recording.failure}')
        self._status.publish(status)

    def _missing(self, taking: Taking) -> list[str]:
        no_time = [] if taking.time_runs else ['use_sim_time is set: nothing is recorded before /clock comes']
        return [
            *no_time,
            *(f'nobody publishes {name}' for name in self._streams if name not in taking.topics),
        ]

    def _failed(self, text: str) -> None:
        self.get_logger().error(text)
        self.exit_code = 1
        self._process.end(1)


def streams_of(embodiment: Embodiment) -> list[str]:
    """Return the topics that a contract takes observations from."""
    return list(Assembler(embodiment, None).topics)


def others_of(embodiment: Embodiment) -> list[str]:
    """Return the other topics that a contract names or implies: calibrations, commands, description, stop."""
    cameras = [camera.topic for camera in embodiment.cameras.values()]
    depths = [camera.depth.topic for camera in embodiment.cameras.values() if camera.depth]
    grippers = [arm.gripper for arm in embodiment.arms.values() if arm.gripper]
    commands = [part.command.topic for part in (*embodiment.arms.values(), *grippers) if part.command]
    named = [embodiment.description.topic, embodiment.safety.stop_topic]
    return [
        *map(info_topic, [*cameras, *depths]),
        *(topic.topic for topic in embodiment.action.topics),
        *commands,
        *(name for name in named if name),
    ]


def _object(text: str, what: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        ValueError: it is none.
    """
    try:
        value = json.loads(text or '{}')
    except ValueError as error:
        raise ValueError(f'{what} is no JSON: {error}') from None
    if not isinstance(value, dict):
        raise ValueError(f'{what} must be a JSON object, and is {text}')
    return value


def main() -> None:
    """Run the node."""
    runtime.main(RecorderNode)


if __name__ == '__main__':
    main()
