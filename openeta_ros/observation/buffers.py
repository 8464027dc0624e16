# SPDX-License-Identifier: Apache-2.0
"""The contract's streams: what comes on its topics, kept by stamp for as long as it may be needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from openeta_ros.observation import poses as tool_poses
from openeta_ros.observation.health import Source
from openeta_ros.observation.joints import JointReader, JointSample
from openeta_ros.observation.messages import NS_PER_S
from openeta_ros.observation.poses import POSE_TYPES, PoseError, TransformTree
from openeta_ros.observation.stream import Array, Rule, Stream
from openeta_ros.observation.timeline import Timeline

if TYPE_CHECKING:
    from openeta_ros.embodiment import Embodiment
    from openeta_ros.embodiment.schema import PoseTopic, State

IMAGE_TYPES = {'raw': ('sensor_msgs/msg/Image',), 'compressed': ('sensor_msgs/msg/CompressedImage',)}
JOINT_TYPES = ('sensor_msgs/msg/JointState',)
TF, TF_STATIC, TF_TYPES = '/tf', '/tf_static', ('tf2_msgs/msg/TFMessage',)

# So many messages of joints and poses are kept for each picture, at most: 1 kHz beside 5 pictures a second.
SAMPLES_PER_PICTURE = 200
# Where pictures are kept for a time, so many: seconds of the fastest drivers. It only bounds the memory while
# there are no pictures.
MOST_SAMPLES = 50_000
PRUNED_EVERY = 32

Take = Callable[[Any, 'int | None'], None]


class Damaged(NamedTuple):
    """Stands for the message of a picture that turned out to be damaged: there is none, and the one before is
    not held over it."""

    reason: str


@dataclass(eq=False)
class Pictures:
    """The pictures of a camera, or of its depth: messages, not decoded.

    `rejected` is the last that could not be, when none could be decoded since.
    """

    source: Source
    stream: Stream[Any]
    rejected: Any = None


@dataclass(eq=False)
class Joints:
    """A topic of joint states: a stream for each joint that was in it."""

    source: Source
    reader: JointReader
    rule: Rule
    streams: dict[str, Stream[JointSample]]


@dataclass(eq=False)
class Poses:
    """A topic of tool poses."""

    source: Source
    topic: PoseTopic
    stream: Stream[Array]


class Buffers:
    """Takes the messages of a contract's topics.

    Attributes:
        history: how many pictures of each camera are kept.
        needed: where pictures are kept for a time, the oldest moment that is still to be paired, if any.
        topics: the message types that each topic may have, by its name as the contract has it.
        rule: how pictures and poses are read; joints have the rule of their topic.
        pictures, depths: by camera. joints: by topic. poses: by arm. tree: where poses come from tf.
        streams_of: by joint that ever came, in the contract's order of topics.
        sources: all streams. timeline: stamps them.
    """

    def __init__(
        self, embodiment: Embodiment, history: int, keep_ns: int | None, on_set_back: Callable[[], None]
    ) -> None:
        self.history = history
        self.needed: int | None = None
        self._keep_ns = keep_ns
        self._embodiment = embodiment
        self._takers: dict[str, list[Take]] = {}
        self._on_set_back = on_set_back
        align = embodiment.align
        self.rule = self._rule_of(align.max_age_s)
        clock = Source(f'camera {align.clock} (topic {embodiment.cameras[align.clock].topic})')
        self.timeline = Timeline(align, clock, self._set_back)
        self.sources: list[Source] = [clock]
        self.topics: dict[str, tuple[str, ...]] = {}
        self.pictures: dict[str, Pictures] = {}
        self.depths: dict[str, Pictures] = {}
        for name, camera in embodiment.cameras.items():
            source = clock if name == align.clock else self._source(f'camera {name}', camera.topic)
            self.pictures[name] = Pictures(source, Stream())
            self._listen(
                camera.topic, IMAGE_TYPES[camera.transport], partial(self.add_picture, self.pictures[name])
            )
            if camera.depth is not None:
                source = self._source(f'depth of camera {name}', camera.depth.topic)
                self.depths[name] = Pictures(source, Stream())
                types = IMAGE_TYPES[camera.depth.transport]
                self._listen(camera.depth.topic, types, partial(self.add_picture, self.depths[name]))
        self.joints: dict[str, Joints] = {}
        self.streams_of: dict[str, list[Stream[JointSample]]] = {}
        for state in embodiment.state:
            self.joints[state.topic] = self._joints_of(state)
            self._listen(state.topic, JOINT_TYPES, partial(self.add_joints, self.joints[state.topic]))
        self.poses: dict[str, Poses] = {}
        self.tree: TransformTree | None = None
        self._transforms: dict[str, Source] = {}
        self._listen_to_poses()
        self._oldest_ns = max(
            [self.rule.limit_ns, *(joints.rule.limit_ns for joints in self.joints.values())]
        )

    @property
    def clock(self) -> Pictures:
        """The clock camera."""
        return self.pictures[self._embodiment.align.clock]

    def add(self, topic: str, message: Any, received_ns: int | None) -> None:
        """Take a message of a topic, a key of `topics`."""
        for take in self._takers[topic]:
            take(message, received_ns)

    def reject(self, topic: str, reason: str, received_ns: int) -> None:
        """Count a message of a topic, a key of `topics`, that cannot be decoded."""
        own = [source for source in self.sources if source.text.endswith(f'(topic {topic})')]
        for source in [self._transform('transforms', topic)] if topic in (TF, TF_STATIC) else own:
            source.messages += 1
            self.timeline.reject(source, reason, received_ns)

    def add_picture(self, pictures: Pictures, message: Any, received_ns: int | None) -> None:
        """Take a message of `pictures` or `depths`."""

        def deliver(stamp: int) -> None:
            pictures.stream.add(stamp, message)
            if self._keep_ns is None:
                del pictures.stream.stamps[: -self.history], pictures.stream.samples[: -self.history]
            else:
                oldest = pictures.stream.stamps[-1] - self._keep_ns
                pictures.stream.release(min(oldest, oldest if self.needed is None else self.needed))
            if pictures.rejected is None:
                self.timeline.conditions.right(pictures.source.text, 'rejected', stamp)

        self.timeline.take(pictures.source, message, received_ns, deliver)

    def add_joints(self, joints: Joints, message: Any, received_ns: int | None) -> None:
        """Take a message of `joints`."""

        def deliver(stamp: int) -> None:
            with _Rejecting(self.timeline, joints.source, stamp) as reject:
                samples = joints.reader.read(message, reject)
            for name, sample in samples.items():
                stream = self._stream_of(joints, name)
                stream.add(stamp, sample)
                self._prune(stream)

        self.timeline.take(joints.source, message, received_ns, deliver)

    def every_picture(self) -> Iterator[Pictures]:
        """Yield the pictures and depths of every camera."""
        yield from self.pictures.values()
        yield from self.depths.values()

    def _stream_of(self, joints: Joints, name: str) -> Stream[JointSample]:
        """Return a topic's stream of a joint, a new one when it comes for the first time."""
        if name not in joints.streams:
            joints.streams[name] = Stream()
            topics = self.joints.values()
            self.streams_of[name] = [topic.streams[name] for topic in topics if name in topic.streams]
        return joints.streams[name]

    def _source(self, name: str, topic: str) -> Source:
        source = self.timeline.watch(Source(f'{name} (topic {topic})'))
        self.sources.append(source)
        return source

    def _rule_of(self, max_age_s: float) -> Rule:
        align = self._embodiment.align
        limit_s = align.tolerance_s if align.rule == 'nearest' and align.tolerance_s else max_age_s
        return Rule(align.rule, round(limit_s * NS_PER_S))

    def _joints_of(self, state: State) -> Joints:
        reader = JointReader(state, self._embodiment.wire_joints)
        return Joints(self._source('joint states', state.topic), reader, self._rule_of(state.max_age_s), {})

    def _listen_to_poses(self) -> None:
        source, arms = self._embodiment.endpose.source, self._embodiment.arms
        if source == 'tf':
            self.tree = TransformTree()
            for topic in (TF, TF_STATIC):
                self._listen(topic, TF_TYPES, partial(self._add_transforms, topic))
        elif not isinstance(source, str):
            by_arm = source.topic if isinstance(source.topic, dict) else dict.fromkeys(arms, source.topic)
            for arm, topic in by_arm.items():
                self.poses[arm] = Poses(self._source(f'pose of {arm}', topic), source, Stream())
                self._listen(topic, POSE_TYPES, partial(self._add_pose, arm))

    def _add_pose(self, arm: str, message: Any, received_ns: int | None) -> None:
        poses = self.poses[arm]

        def deliver(stamp: int) -> None:
            with _Rejecting(self.timeline, poses.source, stamp) as reject:
                try:
                    base_frame = self._embodiment.arms[arm].base_frame
                    poses.stream.add(stamp, tool_poses.read_pose(message, poses.topic, base_frame))
                    self._prune(poses.stream)
                except PoseError as error:
                    reject(str(error))

        self.timeline.take(poses.source, message, received_ns, deliver)

    def _add_transforms(self, topic: str, message: Any, received_ns: int | None) -> None:
        tree = self.tree
        assert tree is not None
        for transform in message.transforms:
            name = f'transform {transform.header.frame_id} to {transform.child_frame_id}'
            source = self._transform(name, topic)
            if topic == TF_STATIC:
                source.messages += 1
                self._add_transform(tree, source, transform, None)
            else:
                deliver = partial(self._add_transform, tree, source, transform)
                self.timeline.take(source, transform, received_ns, deliver)
        for stream in tree.moving():
            self._prune(stream)

    def _transform(self, name: str, topic: str) -> Source:
        if name not in self._transforms:
            self._transforms[name] = self._source(name, topic)
        return self._transforms[name]

    def _add_transform(self, tree: TransformTree, source: Source, transform: Any, stamp: int | None) -> None:
        with _Rejecting(self.timeline, source, stamp or 0) as reject:
            try:
                tree.add(transform, stamp)
            except PoseError as error:
                reject(str(error))

    def _listen(self, topic: str, types: tuple[str, ...], take: Take) -> None:
        self.topics[topic] = types
        self._takers.setdefault(topic, []).append(take)

    def _prune(self, stream: Stream[Any]) -> None:
        """Forget what is older than the pictures that are kept."""
        count = len(stream.stamps)
        if count > SAMPLES_PER_PICTURE and count % PRUNED_EVERY == 0:
            if self.clock.stream.stamps:
                stream.release(self.clock.stream.stamps[0] - self._oldest_ns)
            stream.keep(MOST_SAMPLES if self._keep_ns is not None else self.history * SAMPLES_PER_PICTURE)

    def _set_back(self) -> None:
        self._on_set_back()
        for one in self.every_picture():
            one.stream.clear()
        for stream in self._numbers():
            stream.clear()

    def _numbers(self) -> Iterator[Stream[Any]]:
        """Yield every stream of joints and poses."""
        for joints in self.joints.values():
            yield from joints.streams.values()
        for poses in self.poses.values():
            yield poses.stream
        if self.tree is not None:
            yield from self.tree.moving()


class _Rejecting:
    """Counts what of a message is wrong; a message of which nothing is ends the condition."""

    def __init__(self, timeline: Timeline, source: Source, stamp: int) -> None:
        self._timeline, self._source, self._stamp = timeline, source, stamp
        self._right = True

    def __enter__(self) -> Callable[[str], None]:
        return self._reject

    def __exit__(self, *error: object) -> None:
        if self._right:
            self._timeline.conditions.right(self._source.text, 'rejected', self._stamp)

    def _reject(self, reason: str) -> None:
        self._right = False
        self._timeline.reject(self._source, reason, self._stamp)
