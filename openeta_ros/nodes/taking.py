# SPDX-License-Identifier: Apache-2.0
"""Live topics into a `Recording`: their messages as raw bytes, with what the middleware says of each.

rclpy's EventsExecutor ends with an error when a callback asks for that, and its others ask every entity for
each message. So the subscriptions belong to a node that no executor knows, and a thread takes from them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import rclpy
from rclpy.duration import Infinite
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.qos import QoSProfile

from openeta_ros.episodes.recorder import Recording
from openeta_ros.episodes.rosbag2_folder import FOREVER, Profile, profile
from openeta_ros.nodes.subscription import IDENTITY_BYTES, StreamSubscription
from openeta_ros.observation import NS_PER_S, ObservationError

# How often it is looked whether topics and publishers have come or gone.
LOOK_S = 0.2
# So long messages may gather after one has come: a thread that wakes for each of them costs three times more.
GATHER_S = 0.004
# Messages that wait to be taken. Those that come at hundreds of hertz are small.
DEPTH, PICTURE_DEPTH = 2000, 64
LARGE = ('sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage', 'sensor_msgs/msg/PointCloud2')
# What rmw says where publishers do not number their messages.
UNNUMBERED = (None, 2**64 - 1)


class Taking:
    """Takes what comes on topics until it is ended; subscribes to each as soon as someone publishes it.

    Args:
        node: whose clock and graph are used.
        wanted: names in full.
    """

    def __init__(self, node: Node, wanted: Sequence[str], recording: Recording) -> None:
        self._clock = node.get_clock()
        self._node = rclpy.create_node(
            f'_{node.get_name()}_topics',
            context=node.context,
            namespace=node.get_namespace(),
            use_global_arguments=False,
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._wanted = wanted
        self._recording = recording
        self._topics: dict[str, _Topic] = {}
        self._refused: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name='taking', daemon=True)
        self._thread.start()

    @property
    def topics(self) -> list[str]:
        """The topics that messages are taken from so far."""
        return list(self._topics)

    @property
    def time_runs(self) -> bool:
        """Whether ROS time has come, where it is simulated. Until then messages wait: they have no time."""
        return bool(self._clock.now().nanoseconds > 0)

    def end(self) -> None:
        """Take what has come, and no more."""
        self._stop.set()
        self._thread.join()
        for topic in self._topics.values():
            topic.close()
        self._node.destroy_node()

    def _run(self) -> None:
        try:
            looked = 0.0
            while not self._stop.is_set():
                if time.monotonic() - looked > LOOK_S:
                    self._look()
                    looked = time.monotonic()
                if self._wait():
                    self._take()
                    self._stop.wait(GATHER_S)
            self._take()
        except Exception as error:  # the thread's end must not go unnoticed
            self._recording.failure = self._recording.failure or error

    def _look(self) -> None:
        missing = [name for name in self._wanted if name not in self._topics and name not in self._refused]
        types = dict(self._node.get_topic_names_and_types()) if missing else {}
        for name in missing:
            if name in types and self._node.count_publishers(name):
                try:
                    topic = _Topic(self._node, self._clock, name, types[name][0], self._recording)
                except ObservationError as error:
                    self._refused.add(name)
                    self._recording.troubles.append(str(error))
                    continue
                topic.look()
                self._topics[name] = topic
        for topic in self._topics.values():
            topic.look()

    def _wait(self) -> bool:
        """Wait until a message comes, for `LOOK_S` at most; return whether one may have come."""
        handles = [one.handle for topic in self._topics.values() for one in topic.subscriptions]
        if not handles:
            self._stop.wait(LOOK_S)
            return False
        wait_set = rclpy_implementation.WaitSet(len(handles), 0, 0, 0, 0, 0, self._node.context.handle)
        with wait_set:
            wait_set.clear_entities()
            for handle in handles:
                wait_set.add_subscription(handle)
            wait_set.wait(int(LOOK_S * NS_PER_S))
            return bool(wait_set.get_ready_entities('subscription'))

    def _take(self) -> None:
        if not self.time_runs:
            return
        for topic in self._topics.values():
            topic.take()


class _Topic(StreamSubscription):
    """One topic of a recording."""

    def __init__(self, node: Node, clock: Any, name: str, message_type: str, recording: Recording) -> None:
        self._clock = clock
        self._recording = recording
        self._publisher_count = 0
        self._begun = False
        super().__init__(
            node, name, [message_type], lambda kind, data: None, reliability='auto', wake=lambda: None
        )

    @property
    def subscriptions(self) -> list[Any]:
        """Those there are now: two while one takes the other's place, none before the first publisher."""
        return [*(entry[1] for entry in self._old), *([self._current] if self._current else [])]

    def look(self) -> bool:
        """Adapt to the publishers there are, and note when the last one has gone, or one is back."""
        count = self._node.count_publishers(self.topic)
        if count != self._publisher_count:
            self._stale = True
            if self._begun and not (count and self._publisher_count):
                became = 'again' if count else 'no more'
                self._recording.troubles.append(
                    f'{self.topic} is published {became} since {time.strftime("%H:%M:%S")}'
                )
        self._publisher_count = count
        return super().look()

    def take(self) -> None:
        """Take what has come."""
        for subscription in self.subscriptions:
            with subscription.handle:
                for _ in range(DEPTH):
                    taken = subscription.handle.take_message(subscription.msg_type, True)
                    if taken is None:
                        break
                    self._receive_with(*taken)

    def _events(self) -> SubscriptionEventCallbacks:
        """Ask for none: one that no executor takes wakes every wait for messages, for ever."""
        return SubscriptionEventCallbacks(use_default_callbacks=False)

    def _quality(self, offered: Sequence[QoSProfile]) -> QoSProfile:
        profiles = [_profile(one) for one in offered]
        if self._begun:
            self._recording.offered(self.topic, profiles)
        else:
            self._recording.add_topic(self.topic, self.types[0], profiles)
            self._begun = True
        quality = super()._quality(offered)
        quality.depth = PICTURE_DEPTH if self.types[0] in LARGE else DEPTH
        return quality

    def _receive_with(self, data: bytes, info: Mapping[str, Any]) -> None:
        number = info['publication_sequence_number']
        identity = f'{number} '.encode() + data[:IDENTITY_BYTES]
        if self._old and identity in self._recent:  # two subscriptions received it
            return
        self._recent.append(identity)
        received = info['received_timestamp']
        simulated = self._clock.ros_time_is_active
        self._recording.take(
            self.topic,
            data,
            log_ns=self._clock.now().nanoseconds if simulated or not received else received,
            publish_ns=info['source_timestamp'] or received,
            sequence=None if number in UNNUMBERED else number,
        )


def _profile(quality: QoSProfile) -> Profile:
    return profile(
        history=quality.history.name.lower(),
        depth=quality.depth,
        reliability=quality.reliability.name.lower(),
        durability=quality.durability.name.lower(),
        liveliness=quality.liveliness.name.lower(),
        deadline=_time(quality.deadline),
        lifespan=_time(quality.lifespan),
        liveliness_lease_duration=_time(quality.liveliness_lease_duration),
    )


def _time(duration: Any) -> Mapping[str, int]:
    if duration.nanoseconds >= Infinite.nanoseconds:
        return FOREVER
    sec, nsec = divmod(duration.nanoseconds, NS_PER_S)
    return {'sec': sec, 'nsec': nsec}
