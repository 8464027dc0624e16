# SPDX-License-Identifier: Apache-2.0
"""Messages as they come, in any order, to observations by stamp.

No ROS in here: live subscriptions and bag readers feed the same object, so that both give the same arrays.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openeta_ros.observation.buffers import Buffers, Damaged
from openeta_ros.observation.continuity import Continuity
from openeta_ros.observation.errors import DamagedImage, ImageError, MissingStream
from openeta_ros.observation.health import Conditions, StreamHealth
from openeta_ros.observation.image import decode_depth, decode_image
from openeta_ros.observation.messages import NS_PER_S, stamp_ns
from openeta_ros.observation.observation import Observation, assemble, fitted, observed
from openeta_ros.observation.pairing import Paired, Pairer
from openeta_ros.observation.stream import Array, Rule

if TYPE_CHECKING:
    from openeta_ros.embodiment import Embodiment, Kinematics


@dataclass(frozen=True)
class Streams:
    """What the streams said at one moment, before it becomes an observation.

    `stamp_ns` is ROS time of the clock stream. `pictures` are (H, W, 3) uint8 RGB by camera, as the camera
    delivers them, `depths` (H, W) float32 metres; the others are those of `Paired`.
    """

    stamp_ns: int
    pictures: Mapping[str, Array]
    positions: Mapping[str, float]
    velocities: Mapping[str, float]
    depths: Mapping[str, Array] = field(default_factory=dict)
    poses: Mapping[str, Array] = field(default_factory=dict)


class Assembler:
    """Pairs the contract's streams.

    The clock camera's stamp is the observation's; of every other stream the sample is taken that the
    contract's rule says. Pictures are decoded when they are used, not when they come. Not safe for use by
    several threads at once, but for `picture` and `frame`.

    Attributes:
        conditions: what is, or was, wrong with the streams.
        on_set_back: called when time went back (a simulator was reset), before what was kept is forgotten.
    """

    def __init__(
        self,
        embodiment: Embodiment,
        kinematics: Kinematics | None,
        *,
        history: int = 8,
        keep_s: float | None = None,
    ) -> None:
        """Make one for a contract; `keep_s`, when given, keeps pictures for so long instead of `history`."""
        self.on_set_back: Callable[[], None] = lambda: None
        self._embodiment = embodiment
        self._kinematics = kinematics
        self._continuity = Continuity(embodiment, kinematics)
        self._buffers = Buffers(
            embodiment, history, None if keep_s is None else round(keep_s * NS_PER_S), self._set_back
        )
        self._pairer = Pairer(embodiment, self._buffers)
        self.conditions: Conditions = self._buffers.timeline.conditions

    @property
    def topics(self) -> Mapping[str, tuple[str, ...]]:
        """The message types that each topic may have, by its name as the contract has it."""
        return self._buffers.topics

    @property
    def clock_topic(self) -> str:
        """The clock camera's topic, as the contract has it."""
        return self._embodiment.cameras[self._embodiment.align.clock].topic

    @property
    def history(self) -> int:
        """How many pictures of each camera are kept; it may be changed while running."""
        return self._buffers.history

    @history.setter
    def history(self, count: int) -> None:
        self._buffers.history = count

    def keep_from(self, stamp: int | None) -> None:
        """Keep what belongs to moments from a stamp on, after whatever leap of time; None: there are none."""
        self._buffers.needed = stamp

    @property
    def rejected(self) -> Counter[str]:
        """How many messages could not be used, or not all of them, by stream and reason."""
        sources = self._buffers.sources
        return Counter(
            {f'{one.text}: {why}': count for one in sources for why, count in one.rejected.items()}
        )

    def health(self) -> list[StreamHealth]:
        """Return the figures of every stream."""
        return [source.health(self.conditions) for source in self._buffers.sources]

    def new_episode(self) -> None:
        """Let the next observation continue none before it."""
        self._continuity.restart()

    def add(self, topic: str, message: Any, received_ns: int | None = None) -> None:
        """Take a message of a topic of the contract.

        Args:
            topic: its name as the contract has it, a key of `topics`.
            message: with the fields of one of the topic's types.
            received_ns: ROS time of its reception (in a bag, of its recording). Needed where the contract
                goes by it; elsewhere it shows clocks that differ.
        """
        self._buffers.add(topic, message, received_ns)

    def reject(self, topic: str, reason: str, received_ns: int) -> None:
        """Count a message of a topic of the contract that is none: its bytes are not of the topic's type."""
        self._buffers.reject(topic, reason, received_ns)

    def add_image(self, camera: str, message: Any, received_ns: int | None = None) -> None:
        """Take a picture message of a camera of the contract; other cameras are ignored."""
        if camera in self._buffers.pictures:
            self._buffers.add_picture(self._buffers.pictures[camera], message, received_ns)

    def add_joint_state(self, message: Any, topic: str | None = None, received_ns: int | None = None) -> None:
        """Take a JointState message of a topic of the contract (the first one when None)."""
        name = self._embodiment.state[0].topic if topic is None else topic
        self._buffers.add_joints(self._buffers.joints[name], message, received_ns)

    def stamp(self, message: Any, received_ns: int | None) -> int:
        """Return a message's stamp on the contract's timeline; 0 when it has none."""
        return self._buffers.timeline.stamp(message, received_ns)

    def stamp_of_reception(self, received_ns: int) -> int | None:
        """Return the stamp of what has none of its own and came then; None before the first clock picture."""
        if self._buffers.clock.source.newest_ns is None:
            return None
        return self._buffers.timeline.stamp_of_reception(received_ns)

    def clock_stamps(self) -> list[int]:
        """Return the stamps of the clock pictures that are kept, rising, each once."""
        return list(dict.fromkeys(self._buffers.clock.stream.stamps))

    def waited_for(self, stamp: int) -> list[str]:
        """Return the streams that have not come as far as a stamp, so that more may still come for it."""
        return list(self._pairer.waited_for(stamp))

    def awaited(self, stamp: int) -> str | None:
        """Return one of the streams of `waited_for`; None when all have come as far."""
        return next(self._pairer.waited_for(stamp), None)

    def missing(self) -> list[str]:
        """Return the streams of which nothing usable came so far: human names with topics."""
        return self._pairer.missing()

    def paired(self, stamp: int) -> Paired:
        """Return what belongs to a moment by what has come so far, when nothing for it is under way.

        Raises:
            MissingStream: streams that have nothing near enough to it, and why.
        """
        paired, lacks = self._pairer.pair(stamp)
        lacking = {place for place, _, _ in lacks}
        for place, _, why in lacks:
            self.conditions.found(place, 'stale', why, stamp)
        for text in paired.ages_ns.keys() - lacking:
            self.conditions.right(text, 'stale', stamp)
        if lacks:
            raise MissingStream([f'{name}: {why}' for _, name, why in lacks])
        return paired

    def decoded(self, paired: Paired) -> Streams:
        """Return what was paired with its pictures decoded.

        Raises:
            ImageError: a picture cannot be decoded; it is counted, once.
        """
        return Streams(
            paired.stamp_ns,
            self._pictures(paired.images, depth=False),
            paired.positions,
            paired.velocities,
            self._pictures(paired.depths, depth=True),
            paired.poses,
        )

    def picture(self, camera: str, message: Any, *, depth: bool) -> Array:
        """Return a camera's picture (H, W, 3) uint8 RGB, or its depth (H, W) float32. For any thread.

        Raises:
            ImageError: it cannot be decoded; the text names the camera.
        """
        try:
            return decode_depth(message) if depth else decode_image(message)
        except ImageError as error:
            source = (self._buffers.depths if depth else self._buffers.pictures)[camera].source
            raise type(error)(f'{source.text}: {error.reason}', error.stamp_ns) from None

    def streams_at(self, stamp: int) -> Streams:
        """Return what the streams said at the clock picture that has exactly this stamp (ROS time, ns).

        Every other stream must have come as far as the stamp: what is still under way is missing, and is not
        replaced by the sample before it. So the same messages give the same arrays, however late they come.

        Raises:
            MissingStream: streams that have nothing for this stamp yet, or only what is too old or damaged.
            ImageError: a picture cannot be decoded.
        """
        waited_for = self.waited_for(stamp)
        clock = self._buffers.clock
        if not waited_for and clock.stream.at(stamp, Rule('hold', 0)) is None:
            waited_for = [clock.source.text]
        if waited_for:
            raise MissingStream(waited_for)
        try:
            return self.decoded(self.paired(stamp))
        except DamagedImage as error:
            raise MissingStream([error.reason]) from None

    def streams_from(self, stamp: int) -> Streams:
        """Return what the streams said at the first clock picture from a stamp on that is complete: where the
        one of this stamp was lost, is damaged or pairs with nothing, the next that is there.

        Raises:
            MissingStream: what lacks at the stamp; nothing complete has come from then on.
            ImageError: a picture cannot be decoded.
        """
        try:
            return self.streams_at(stamp)
        except MissingStream:
            for later in self.clock_stamps():
                # What comes in order comes no more when others have come after it.
                if later > stamp and self.awaited(later) is None and not self._pairer.pair(later)[1]:
                    with contextlib.suppress(MissingStream):
                        return self.streams_at(later)
            raise

    def at(self, stamp: int) -> Observation:
        """Return the observation of `streams_at`.

        Raises:
            MissingStream: streams that have nothing for this stamp yet, or only what is too old.
            ObservationError: what is there cannot be used.
        """
        return self.assembled(self.streams_at(stamp))

    def latest_streams(self) -> Streams | None:
        """Return what the streams said at the newest clock picture that all others pair with, if there is
        one. What is damaged counts as lost.

        Raises:
            MissingStream: the clock camera went silent: what it sent last is no picture of now.
            ImageError: a picture cannot be decoded.
        """
        clock = self._buffers.clock.source
        silent = self._buffers.timeline.silent()
        if silent is not None:
            if (clock.text, 'stale') not in self.conditions.lasting:  # once, however often it is asked
                self.conditions.found(clock.text, 'stale', silent, clock.newest_ns or 0)
            raise MissingStream([f'{clock.text}: {silent}'])
        self.conditions.right(clock.text, 'stale', clock.newest_ns or 0)
        for stamp in reversed(self.clock_stamps()):
            paired, lacks = self._pairer.pair(stamp)
            if not lacks:
                with contextlib.suppress(DamagedImage):
                    return self.decoded(paired)
        return None

    def latest(self) -> Observation | None:
        """Return the observation of `latest_streams`, if there is one.

        Raises:
            MissingStream: the clock camera went silent.
            ObservationError: what is there cannot be used.
        """
        streams = self.latest_streams()
        return None if streams is None else self.assembled(streams)

    def observed(self, paired: Paired, frames: Mapping[str, Array]) -> Observation:
        """Return the observation of what was paired, whose pictures are decoded and fitted: `frames_<camera>`
        and `depth_<camera>`. It continues the one made before it.

        Raises:
            ObservationError: it cannot be used.
        """
        return observed(
            self._embodiment,
            self._kinematics,
            frames,
            paired.positions,
            paired.stamp_ns,
            poses=paired.poses,
            continuity=self._continuity,
        )

    def frame(self, camera: str, message: Any, *, depth: bool) -> Array:
        """Return a camera's picture, or its depth, decoded and as the contract delivers it. For any thread.

        Raises:
            ImageError: it cannot be; the text names the camera.
        """
        source = (self._buffers.depths if depth else self._buffers.pictures)[camera].source
        picture = self.picture(camera, message, depth=depth)
        return fitted(self._embodiment.cameras[camera], picture, source.text)

    def assembled(self, streams: Streams) -> Observation:
        """Return the observation made of streams; it continues the one made before it.

        Raises:
            ObservationError: they cannot be used.
        """
        return assemble(
            self._embodiment,
            self._kinematics,
            pictures=streams.pictures,
            positions=streams.positions,
            stamp_ns=streams.stamp_ns,
            depths=streams.depths,
            poses=streams.poses,
            continuity=self._continuity,
        )

    def _pictures(self, messages: Mapping[str, Any], *, depth: bool) -> dict[str, Array]:
        pictures = {}
        for name, message in messages.items():
            one = (self._buffers.depths if depth else self._buffers.pictures)[name]
            try:
                pictures[name] = self.picture(name, message, depth=depth)
            except ImageError as error:
                reason = error.reason.removeprefix(f'{one.source.text}: ')
                if one.rejected is not message:
                    one.rejected = message
                    self._buffers.timeline.reject(one.source, reason, error.stamp_ns or 0)
                if isinstance(error, DamagedImage):
                    one.stream.replace(message, Damaged(reason))
                raise
            one.rejected = None
            self.conditions.right(one.source.text, 'rejected', stamp_ns(message))
        return pictures

    def _set_back(self) -> None:
        self.on_set_back()
        self._continuity.restart()
