# SPDX-License-Identifier: Apache-2.0
"""The contract's topics into an Assembler: what a policy sees live.

Messages are taken as raw bytes and decoded as NumPy views by the code that reads bags: cheaper than rclpy's
own conversion, and one decoder for both.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from openeta_ros.embodiment import Embodiment, Kinematics
from openeta_ros.nodes.subscription import StreamSubscription, on_executor
from openeta_ros.observation import (
    Assembler,
    Condition,
    MissingStream,
    Observation,
    ObservationError,
    StreamHealth,
    Streams,
)
from openeta_ros.observation.cdr import message_decoder

# How often publishers are looked for while some topic has none.
LOOK_S = 0.05
# A setting that keeps a stream from coming may be that of a node that just ends; after so long it is not.
LASTING_S = 1.0


class Bridge:
    """Subscribes to every stream of a contract (see `StreamSubscription`) and makes observations of them.

    Messages are taken on the executor's thread; waiting is for other threads.

    Args:
        history: how many pictures of each camera are kept.
        reliability: see `StreamSubscription`.
        on_observation: called on the executor's thread with each observation, as soon as all of its streams
            have come as far as it; one for each clock picture that everything pairs with, in order.
        wanted: asked before such an observation is made; when it says no, none is.
        on_message: called on the executor's thread with the topic (as the contract has it) and each message.

    Raises:
        ObservationError: the contract asks for what cannot be done here.
    """

    def __init__(
        self,
        node: Node,
        embodiment: Embodiment,
        kinematics: Kinematics,
        *,
        history: int,
        reliability: str = 'auto',
        on_observation: Callable[[Observation], None] | None = None,
        wanted: Callable[[], bool] = lambda: True,
        on_message: Callable[[str, Any], None] = lambda topic, message: None,
        callback_group: CallbackGroup | None = None,
    ) -> None:
        import cv2  # here, so that the first picture need not wait for it

        # Its other threads wait busily for longer than the colours of a picture take: three times the cost.
        cv2.setNumThreads(1)
        self._node = node
        self._clock = node.get_clock()
        self._assembler = Assembler(embodiment, kinematics, history=history)
        self._changed = threading.Condition()
        self._missed: set[str] = set()  # topics that somebody waits for
        topics = self._assembler.topics
        self._decode = message_decoder(names={name for types in topics.values() for name in types})
        self._on_observation = on_observation
        self._wanted = wanted
        self._on_message = on_message
        self._begins = True  # the next observation that is waited for is the first of an episode
        self._newest_ns = 0  # of the observations that were handed over
        self._awaited: list[str] = []  # the topics of a stream that the next one waits for; empty: any
        self.subscriptions = [
            StreamSubscription(
                node,
                topic,
                types,
                partial(self._take, topic),
                reliability=reliability,
                wake=lambda: self._timer.reset(),
                callback_group=callback_group,
            )
            for topic, types in topics.items()
        ]
        self._assembler.on_set_back = self._set_back
        # Steady: publishers are looked for whatever simulated time does.
        self._timer = node.create_timer(
            LOOK_S, self._look, callback_group=callback_group, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def wait_for(
        self,
        stamp_ns: int,
        timeout_s: float,
        check: Callable[[], None] | None = None,
        *,
        lost_s: float = math.inf,
    ) -> tuple[Streams, Observation]:
        """Return what the streams said at a stamp, waiting until it has come.

        Args:
            stamp_ns: stamp of the clock camera's picture; 0 takes the newest picture that pairs.
            timeout_s: seconds to wait at most, of the monotonic clock.
            check: called now and then meanwhile; what it raises ends the wait.
            lost_s: seconds from which on the picture counts as lost when others have come after it: then the
                first of these that pairs will do.

        Raises:
            MissingStream: something did not come in time, or cannot come: which, and what is known about it.
            ObservationError: what came cannot be used.
        """
        begin = time.monotonic()
        with self._changed:
            while True:
                try:
                    streams = self._streams(stamp_ns, lost=time.monotonic() - begin >= lost_s)
                    if self._begins:  # whatever was handed over meanwhile, of the episode before
                        self._assembler.new_episode()
                        self._begins = False
                    return streams, self._assembler.assembled(streams)
                except MissingStream as missing:
                    if check is not None:
                        check()
                    waited = time.monotonic() - begin
                    hopeless = waited > LASTING_S and self._lasting_trouble(missing.streams)
                    if hopeless or waited > timeout_s:
                        raise MissingStream([self._told(stream) for stream in missing.streams]) from None
                    topics = {topic for stream in missing.streams for topic in _topics_of(stream)}
                    self._missed |= topics or set(self._assembler.topics)
                    self._changed.wait(min(timeout_s - waited, 0.1))

    def new_episode(self) -> None:
        """Let the next observation continue none before it."""
        with self._changed:
            self._assembler.new_episode()
            self._begins = True

    def health(self) -> tuple[list[StreamHealth], list[Condition], list[Condition]]:
        """Return figures of every stream; conditions that last; those that began or ended since the last
        call."""
        with self._changed:
            conditions = self._assembler.conditions
            return self._assembler.health(), list(conditions.lasting.values()), conditions.changes()

    def condition_counts(self) -> Counter[str]:
        """Return how many messages or moments were wrong so far, by stream and kind of condition."""
        with self._changed:
            counts = self._assembler.conditions.counts
            return Counter({f'{stream}: {kind}': count for (stream, kind), count in counts.items()})

    def trouble(self, stream: str) -> str | None:
        """Return why nothing can come of a stream, named as in its health, if that is known."""
        topics = _topics_of(stream)
        found = [one.trouble() for one in self.subscriptions if one.topic in topics]
        return '; '.join(trouble.text for trouble in found if trouble is not None) or None

    def close(self) -> None:
        """Subscribe to nothing any more. For any thread."""
        on_executor(self._node, self._close)

    def _close(self) -> None:
        self._node.destroy_timer(self._timer)
        for subscription in self.subscriptions:
            subscription.close()

    def _streams(self, stamp_ns: int, *, lost: bool) -> Streams:
        if not stamp_ns:
            return self._newest()
        return self._assembler.streams_from(stamp_ns) if lost else self._assembler.streams_at(stamp_ns)

    def _newest(self) -> Streams:
        streams = self._assembler.latest_streams()
        if streams is None:
            raise MissingStream(self._assembler.missing() or ['streams that are near enough in time to pair'])
        return streams

    def _look(self) -> None:
        if not any([subscription.look() for subscription in self.subscriptions]):
            self._timer.cancel()

    def _take(self, topic: str, name: str, data: bytes) -> None:
        # ROS time, by the short way where it is that of the machine.
        received_ns = self._clock.now().nanoseconds if self._clock.ros_time_is_active else time.time_ns()
        try:
            message = self._decode(data, name)
        except ObservationError as error:
            self._node.get_logger().error(f'topic {topic}: {error}', throttle_duration_sec=10.0)
            with self._changed:
                self._assembler.reject(topic, str(error), received_ns)
            return
        self._on_message(topic, message)
        with self._changed:
            self._assembler.add(topic, message, received_ns)
            if topic in self._missed:  # else a wait would be woken for each message of each stream
                self._missed.clear()
                self._changed.notify_all()
        if self._on_observation is not None and (not self._awaited or topic in self._awaited):
            self._hand_over(self._on_observation)

    def _hand_over(self, on_observation: Callable[[Observation], None]) -> None:
        """Hand over the observations that are complete."""
        self._awaited = []
        for stamp in self._assembler.clock_stamps():
            if stamp <= self._newest_ns:
                continue
            if not self._wanted():
                self._newest_ns = stamp
                continue
            with self._changed:
                awaited = self._assembler.awaited(stamp)
                if awaited is not None:
                    self._awaited = _topics_of(awaited)
                    return
                self._newest_ns = stamp
                try:
                    streams = self._assembler.decoded(self._assembler.paired(stamp))
                    observation = self._assembler.assembled(streams)
                except MissingStream:
                    continue  # a condition of the streams, which health() tells
                except ObservationError as error:
                    self._node.get_logger().error(f'no observation: {error}', throttle_duration_sec=10.0)
                    continue
            on_observation(observation)

    def _set_back(self) -> None:
        self._newest_ns, self._awaited = 0, []

    def _lasting_trouble(self, streams: Sequence[str]) -> bool:
        topics = {topic for stream in streams for topic in _topics_of(stream)}
        troubles = [one.trouble() for one in self.subscriptions if one.topic in topics]
        return any(trouble is not None and trouble.lasting for trouble in troubles)

    def _told(self, stream: str) -> str:
        """Return a stream's name and what is known about why nothing comes."""
        trouble = self.trouble(stream)
        return f'{stream}: {trouble}' if trouble else stream


def _topics_of(stream: str) -> list[str]:
    """Return the topics in a stream's name, such as 'camera front (topic camera/front/image_raw)'."""
    found = re.search(r'\(topic ([^)]*)\)', stream)
    return found[1].split(', ') if found else []
