# SPDX-License-Identifier: Apache-2.0
"""The replay node: a recording's topics again, in their time, so that a live graph runs on it.

It publishes what the messages were, under the quality of service with which they were offered, and /clock. A
/clock that was recorded is left out while the node's own runs: there is one clock, or none.
"""

from __future__ import annotations

import importlib
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from rcl_interfaces.msg import SetParametersResult
from rclpy.action.server import ServerGoalHandle
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from rosgraph_msgs.msg import Clock
from std_srvs.srv import SetBool, Trigger

from openeta_msgs.action import Replay
from openeta_msgs.msg import Failure
from openeta_ros.episodes.bag import Bag, Recorded, Topic
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.playback import Playback
from openeta_ros.episodes.recorded_qos import Quality, offered
from openeta_ros.nodes import runtime
from openeta_ros.nodes.goals import serve_goals
from openeta_ros.nodes.keys import Keys
from openeta_ros.nodes.messages import time_message
from openeta_ros.nodes.parameters import RATE
from openeta_ros.nodes.runtime import Stopping
from openeta_ros.observation import NS_PER_S

CLOCK = '/clock'
# How often a goal's feedback, and the pauses of a node without /clock, come.
FEEDBACK_S = 0.25
# How long subscribers may take to receive the last messages before their publisher goes.
DELIVERY = Duration(seconds=2.0)
# How long the listeners of wait_for may take to be there.
LISTENERS_S = 60.0
# What a key changes the rate by.
STEP = 2.0


class ReplayNode(Node):
    """See `parameters` for the parameters."""

    def __init__(self, process: runtime.Process) -> None:
        super().__init__('replay')
        self._values = runtime.declare(self, 'replay')
        self._process = process
        self._playback: Playback | None = None
        self._goals = serve_goals(self, process, Replay, '~/replay', self._replay)
        self.create_service(SetBool, '~/pause', self._pause)
        self.create_service(Trigger, '~/step', self._step)
        self.add_on_set_parameters_callback(self._set)
        self._keys: Keys | None = None
        if self._values['bag']:
            faster, slower = partial(self._change_rate, STEP), partial(self._change_rate, 1 / STEP)
            keys = {' ': self._toggle, 'right': self._next, 's': self._next, 'up': faster, 'down': slower}
            self._keys = Keys(keys)
            if self._keys.there:
                print(
                    'keys: space pauses and goes on, s or right steps, up and down change the rate',
                    flush=True,
                )
            process.submit(self._play_and_end)

    def on_end(self) -> None:
        """Give the terminal back. On the worker, when the process ends."""
        if self._keys is not None:
            self._keys.close()

    def _play_and_end(self) -> None:
        """Play what the parameters say, and end the process."""
        goal = Replay.Goal(
            path=self._values['bag'],
            from_s=self._values['from_s'],
            to_s=self._values['to_s'],
            loop=self._values['loop'],
            paused=self._values['paused'],
        )
        try:
            result = self._play(goal, None)
        except Stopping:
            return
        if result.failure.kind:
            self.get_logger().error(result.failure.message)
        else:
            self.get_logger().info(
                f'{result.messages} messages, at most {result.largest_lag_s:.3f} s after their time'
            )
        self._process.end(1 if result.failure.kind else 0)

    def _replay(self, handle: ServerGoalHandle) -> Replay.Result:
        return self._play(handle.request, handle)

    def _play(self, goal: Replay.Goal, handle: ServerGoalHandle | None) -> Replay.Result:
        try:
            if goal.rate < 0 or goal.from_s < 0 or (goal.to_s and goal.to_s <= goal.from_s):
                raise BagError(
                    f'rate {goal.rate}, from {goal.from_s} s, to {goal.to_s} s is no part of a recording'
                )
            with Bag(Path(goal.path)) as bag:
                return _Player(self, bag, goal, handle).play()
        except (BagError, OSError) as error:
            return Replay.Result(failure=Failure(source='bag', kind='bag', message=str(error)))
        finally:
            self._playback = None

    def begin(self, start_ns: int, rate: float, *, paused: bool) -> Playback:
        """Return the time line of what is played now, which the services act on."""
        self._playback = Playback(start_ns, rate or self._values['rate'], paused=paused)
        return self._playback

    @property
    def stopping(self) -> bool:
        """Whether the process is told to end."""
        return self._process.stopping

    @property
    def values(self) -> dict[str, Any]:
        """The parameters."""
        return self._values

    def _toggle(self) -> None:
        if (playback := self._playback) is not None:
            playback.pause(not playback.paused)
            print('paused' if playback.paused else 'playing', flush=True)

    def _next(self) -> None:
        if (playback := self._playback) is not None and playback.paused:
            playback.step()

    def _change_rate(self, factor: float) -> None:
        rate = min(max(self._values['rate'] * factor, RATE.minimum), RATE.maximum)
        self.set_parameters([Parameter('rate', value=rate)])
        print(f'rate {rate:g}', flush=True)

    def _pause(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        playback = self._playback
        if playback is None:
            response.message = 'nothing is played'
            return response
        playback.pause(request.data)
        response.success = True
        return response

    def _step(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        playback = self._playback
        if playback is None or not playback.paused:
            response.message = 'nothing is played' if playback is None else 'time does not stand: pause first'
            return response
        playback.step()
        response.success = True
        return response

    def _set(self, parameters: list[Parameter]) -> SetParametersResult:
        """Take a new rate at once; the others hold from the next playback on."""
        for parameter in parameters:
            self._values[parameter.name] = parameter.value
            if parameter.name == 'rate' and self._playback is not None:
                self._playback.set_rate(parameter.value)
        return SetParametersResult(successful=True)


class _Player:
    """One playback."""

    def __init__(
        self, node: ReplayNode, bag: Bag, goal: Replay.Goal, handle: ServerGoalHandle | None
    ) -> None:
        self._node, self._bag, self._goal, self._handle = node, bag, goal, handle
        self._result = Replay.Result()
        self._first_ns, self._last_ns = bag.span() or (0, 0)
        self._clock_hz = node.values['clock_hz']
        self._clock_ns = 0
        self._told_s = 0.0
        self._rejected: Counter[str] = Counter()
        self._types: dict[str, Any] = {}
        self._publishers: dict[str, Publisher] = {}
        self._clock: Publisher | None = None

    def play(self) -> Replay.Result:
        """Play it; return the result."""
        node, goal = self._node, self._goal
        try:
            self._offer()
            self._wait_for(node.values['wait_for'].split())
            self._delay()
            start = self._first_ns + round(goal.from_s * NS_PER_S)
            stop = self._first_ns + round(goal.to_s * NS_PER_S) if goal.to_s else self._last_ns + 1
            playback = node.begin(start, goal.rate, paused=goal.paused)
            while self._once(playback, start, stop) and goal.loop:
                playback.restart(start)
            self._result.largest_lag_s = playback.largest_lag_ns / NS_PER_S
            for publisher in self._publishers.values():
                publisher.wait_for_all_acked(DELIVERY)  # the last messages may still be on their way
        finally:
            for publisher in (*self._publishers.values(), *([self._clock] if self._clock else [])):
                node.destroy_publisher(publisher)
        self._result.left_out += [f'{count} x {why}' for why, count in self._rejected.items()]
        for sentence in self._result.left_out:
            node.get_logger().warning(f'left out: {sentence}')
        if node.stopping:
            raise Stopping
        return self._result

    def _once(self, playback: Playback, start: int, stop: int) -> bool:
        """Play it from start to stop; return whether it came to its end."""
        tick_s = 1 / self._clock_hz if self._clock_hz else FEEDBACK_S
        for recorded in self._bag.messages(list(self._publishers), start, stop):
            if not playback.wait_until(
                recorded.log_ns, self._stopped, lambda now: self._tick(playback, now), tick_s
            ):
                return False
            if recorded.log_ns != self._clock_ns:  # no message is ahead of the clock
                self._tick(playback, recorded.log_ns)
            self._publish(recorded)
        return not self._stopped()

    def _publish(self, recorded: Recorded) -> None:
        try:
            message = deserialize_message(bytes(recorded.data), self._types[recorded.topic])
        except Exception as error:  # rclpy raises what its C code says
            self._rejected[f'{recorded.topic}: not a {recorded.message_type} ({error})'] += 1
            return
        self._publishers[recorded.topic].publish(message)
        self._result.messages += 1

    def _tick(self, playback: Playback, now_ns: int) -> None:
        if self._clock is not None:
            self._clock.publish(Clock(clock=time_message(now_ns)))
            self._clock_ns = now_ns
        if self._handle is not None and time.monotonic() - self._told_s > FEEDBACK_S:
            self._told_s = time.monotonic()
            self._handle.publish_feedback(
                Replay.Feedback(
                    position_s=(now_ns - self._first_ns) / NS_PER_S,
                    duration_s=(self._last_ns - self._first_ns) / NS_PER_S,
                    messages=self._result.messages,
                    paused=playback.paused,
                )
            )

    def _stopped(self) -> bool:
        return self._node.stopping or (self._handle is not None and self._handle.is_cancel_requested)

    def _offer(self) -> None:
        """Make the publishers."""
        if self._clock_hz:
            self._clock = self._node.create_publisher(Clock, CLOCK, QoSProfile(depth=1))
        qualities = offered(self._bag)
        for name, topic in self._bag.topics.items():
            if name == CLOCK and self._clock is not None:
                continue
            kind = _message_type(topic)
            if kind is None:
                self._result.left_out.append(f'{name}: {topic.message_type} is not installed')
                continue
            self._types[name] = kind
            self._publishers[name] = self._node.create_publisher(kind, name, _profile(qualities[name]))
        if not self._publishers:
            raise BagError(f'{self._bag.path} has no topic that can be played')

    def _wait_for(self, topics: list[str]) -> None:
        """Wait until each of the topics has a listener: however long that takes to be discovered."""
        publishers = self._publishers | ({CLOCK: self._clock} if self._clock is not None else {})
        if unknown := [topic for topic in topics if topic not in publishers]:
            raise BagError(
                f'wait_for: {", ".join(unknown)} is not played; what is: {", ".join(sorted(publishers))}'
            )
        until = time.monotonic() + LISTENERS_S
        while not self._stopped():
            missing = [topic for topic in topics if not publishers[topic].get_subscription_count()]
            if not missing:
                return
            if time.monotonic() >= until:
                raise BagError(
                    f'nobody has listened to {", ".join(missing)} for {LISTENERS_S:g} s (wait_for)'
                )
            time.sleep(0.02)

    def _delay(self) -> None:
        """Let those who listen find the topics, and find another clock: at once when there is one."""
        until = time.monotonic() + self._node.values['delay_s']
        while not self._stopped():
            if self._clock is not None and self._node.count_publishers(CLOCK) > 1:
                raise BagError(
                    f'another node publishes {CLOCK}: end it, or play without a clock (clock_hz:=0.0)'
                )
            if time.monotonic() >= until:
                break
            time.sleep(min(0.05, max(0.0, until - time.monotonic())))


def _message_type(topic: Topic) -> Any:
    """Return the class of a topic's messages; None when it is not installed, or they are not CDR."""
    package, _, name = topic.message_type.partition('/msg/')
    if topic.serialization not in ('cdr', ''):
        return None
    try:
        return getattr(importlib.import_module(f'{package}.msg'), name)
    except (ImportError, AttributeError, ValueError):
        return None


def _profile(quality: Quality) -> QoSProfile:
    return QoSProfile(
        depth=quality.depth,
        history=HistoryPolicy.KEEP_ALL if quality.keep_all else HistoryPolicy.KEEP_LAST,
        reliability=ReliabilityPolicy.RELIABLE if quality.reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if quality.transient_local else DurabilityPolicy.VOLATILE,
    )


def main() -> None:
    """Run the node."""
    runtime.main(ReplayNode)


if __name__ == '__main__':
    main()
