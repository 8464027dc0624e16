# SPDX-License-Identifier: Apache-2.0
"""A subscription that takes what is offered: whoever publishes, with whatever quality, early or late."""

from __future__ import annotations

import difflib
import importlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    QoSCompatibility,
    QoSProfile,
    ReliabilityPolicy,
    qos_check_compatible,
)
from rclpy.topic_endpoint_info import TopicEndpointInfo

from openeta_ros.observation import ObservationError

# Messages that wait for the executor: a simulator that draws fast is ahead of a busy reader by so many.
DEPTH = 64
# So long two subscriptions live side by side when one takes the place of another: the publishers must hear of
# the new one before the old one goes. A few milliseconds on one machine.
OVERLAP_S = 0.5
# Bytes that identify a message while two subscriptions receive it: all of one of numbers, the header of a
# picture.
IDENTITY_BYTES = 512
NEAR_MISSES = 5

Take = Callable[[str, bytes], None]


@dataclass(frozen=True)
class Trouble:
    """Why nothing can come on a topic; `lasting` when only somebody's setting can change that."""

    text: str
    lasting: bool


class StreamSubscription:
    """One topic, subscribed to as soon as someone publishes it, with a quality that all publishers serve.

    Reliable and transient local where all of them offer it: then nothing is lost, also not what was published
    before we came. When publishers of another quality come or go, a new subscription takes the old one's
    place; no message is lost or taken twice by that. Everything runs on the executor's thread.

    Args:
        types: the message types that will do, as in 'sensor_msgs/msg/Image'.
        take: called with the type's name and the raw bytes of each message.
        reliability: 'auto', or 'reliable' or 'best_effort' whatever is offered.
        wake: called when `look` should be called soon.

    Raises:
        ObservationError: the package of one of the types is not installed.
    """

    def __init__(
        self,
        node: Node,
        topic: str,
        types: Sequence[str],
        take: Take,
        *,
        reliability: str,
        wake: Callable[[], None],
        callback_group: CallbackGroup | None = None,
    ) -> None:
        self.topic = topic
        self.types = tuple(types)
        self._node = node
        self._take = take
        self._reliability = reliability
        self._wake = wake
        self._group = callback_group
        self._classes = {name: message_class(name, topic) for name in types}
        self._current: Any = None
        self._asked: tuple[str, QoSProfile] | None = None
        self._old: list[tuple[float, Any]] = []  # when to end them, monotonic
        self._recent: deque[bytes] = deque(maxlen=DEPTH)
        self._stale = True

    @property
    def resolved(self) -> str:
        """The topic's full name, after namespace and remaps."""
        return str(self._node.resolve_topic_name(self.topic))

    def look(self) -> bool:
        """Adapt to the publishers there are; return whether to be called again soon."""
        now = time.monotonic()
        while self._old and self._old[0][0] <= now:
            self._node.destroy_subscription(self._old.pop(0)[1])
        if self._stale or self._current is None:
            self._stale = False
            publishers = [info for info in self._publishers() if info.topic_type in self.types]
            if publishers:
                name = publishers[0].topic_type
                self._ask(name, self._quality([info.qos_profile for info in publishers]))
        return self._current is None or bool(self._old)

    def trouble(self) -> Trouble | None:
        """Return why nothing can come, if that is so."""
        publishers = self._publishers()
        if not publishers:
            return Trouble(f'nobody publishes {self.resolved}; {self._near_misses()}', lasting=False)
        right = [info for info in publishers if info.topic_type in self.types]
        if not right:
            told = ', '.join(sorted({f'{info.topic_type} ({_place(info)})' for info in publishers}))
            return Trouble(
                f'{self.resolved} is published as {told}, and needed is {" or ".join(self.types)}',
                lasting=True,
            )
        if self._asked is None:
            return None
        found = [_incompatibility(info, self._asked[1]) for info in right]
        if not all(found):
            return None
        return Trouble(f'{self.resolved} cannot be received: {"; ".join(map(str, found))}', lasting=True)

    def close(self) -> None:
        """Receive nothing any more."""
        for subscription in [*(entry[1] for entry in self._old), self._current]:
            if subscription is not None:
                self._node.destroy_subscription(subscription)
        self._old, self._current, self._asked = [], None, None

    def _publishers(self) -> list[TopicEndpointInfo]:
        # Counting is six times cheaper, and most of the time that this runs there is nobody.
        if not self._node.count_publishers(self.resolved):  # as it is, it would not be remapped
            return []
        return list(self._node.get_publishers_info_by_topic(self.topic))

    def _quality(self, offered: Sequence[QoSProfile]) -> QoSProfile:
        """Return the best quality that every publisher can serve."""
        reliable = all(qos.reliability == ReliabilityPolicy.RELIABLE for qos in offered)
        if self._reliability != 'auto':
            reliable = self._reliability == 'reliable'
        kept = all(qos.durability == DurabilityPolicy.TRANSIENT_LOCAL for qos in offered)
        return QoSProfile(
            history=HistoryPolicy.KEEP_LAST,
            depth=DEPTH,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.TRANSIENT_LOCAL if kept else DurabilityPolicy.VOLATILE,
        )

    def _ask(self, name: str, quality: QoSProfile) -> None:
        if self._asked == (name, quality):
            return
        if self._current is not None:
            self._old.append((time.monotonic() + OVERLAP_S, self._current))
        self._asked = name, quality
        self._current = self._node.create_subscription(
            self._classes[name],
            self.topic,
            partial(self._receive, name),
            quality,
            callback_group=self._group,
            event_callbacks=self._events(),
            raw=True,
        )

    def _events(self) -> SubscriptionEventCallbacks:
        return SubscriptionEventCallbacks(
            matched=self._on_event, incompatible_qos=self._on_event, use_default_callbacks=False
        )

    def _on_event(self, event: Any) -> None:
        self._stale = True
        self._wake()

    def _receive(self, name: str, data: bytes) -> None:
        identity = data[:IDENTITY_BYTES]
        if self._old and identity in self._recent:
            return
        self._recent.append(identity)
        self._take(name, data)

    def _near_misses(self) -> str:
        wanted = self.resolved
        others = [
            (name, types[0])
            for name, types in self._node.get_topic_names_and_types()
            if name != wanted and set(types) & {*self.types, *_SIMILAR_TYPES.get(self.types[0], ())}
        ]
        if not others:
            return 'and there is no topic of such a type'
        others.sort(key=lambda other: -difflib.SequenceMatcher(None, wanted, other[0]).ratio())
        told = [name if kind in self.types else f'{name} ({kind})' for name, kind in others[:NEAR_MISSES]]
        return f'the nearest there are: {", ".join(told)}'


# Types that are taken for each other: a contract says raw, and the driver compresses.
_SIMILAR_TYPES = {
    'sensor_msgs/msg/Image': ('sensor_msgs/msg/CompressedImage',),
    'sensor_msgs/msg/CompressedImage': ('sensor_msgs/msg/Image',),
}


def on_executor(node: Node, job: Callable[[], None]) -> None:
    """Have a node's executor do a job soon, on its own thread.

    That is where entities are destroyed: under the hands of an executor that waits for them it would fail.
    """

    def once() -> None:
        node.destroy_timer(timer)
        job()

    timer = node.create_timer(0.0, once, clock=Clock(clock_type=ClockType.STEADY_TIME))


def _incompatibility(info: TopicEndpointInfo, asked: QoSProfile) -> str | None:
    """Return which policy keeps a publisher's messages from us, if one does."""
    offered = info.qos_profile
    if qos_check_compatible(offered, asked)[0] != QoSCompatibility.ERROR:
        return None
    policies = [
        f'{policy.upper()} {have.name} is offered, {want.name} asked for'
        for policy in ('reliability', 'durability')
        if (have := getattr(offered, policy)) != (want := getattr(asked, policy))
    ]
    return f'{" and ".join(policies)} (by {_place(info)})'


def _place(info: TopicEndpointInfo) -> str:
    return f'{info.node_namespace.rstrip("/")}/{info.node_name}'


def message_class(name: str, topic: str) -> Any:
    """Return the class of a topic's messages, of a name as 'sensor_msgs/msg/Image'.

    Raises:
        ObservationError: its package is not installed.
    """
    package, _, kind = name.split('/')
    try:
        return getattr(importlib.import_module(f'{package}.msg'), kind)
    except ImportError:
        raise ObservationError(
            f'topic {topic} has messages of {name}, and the package {package} is not installed'
        ) from None
