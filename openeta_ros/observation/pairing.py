# SPDX-License-Identifier: Apache-2.0
"""Which samples of the streams belong to one moment, and what lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openeta_ros.observation import joints as joint_states
from openeta_ros.observation import poses as tool_poses
from openeta_ros.observation.buffers import TF, Buffers, Damaged, Pictures
from openeta_ros.observation.health import Source
from openeta_ros.observation.joints import JointSample
from openeta_ros.observation.stream import Array, Found

if TYPE_CHECKING:
    from openeta_ros.embodiment import Embodiment


@dataclass(frozen=True)
class Paired:
    """The messages that belong to one moment, before pictures are decoded.

    `images` and `depths` are messages by camera; `positions` (rad or m) and `velocities` by joint name, of
    every joint that was in the messages (velocities only where they were); `poses` (7,) by arm, where the
    contract takes them from a topic or tf; `ages_ns` how far from the moment each sample is, by stream.
    """

    stamp_ns: int
    images: Mapping[str, Any]
    depths: Mapping[str, Any]
    positions: Mapping[str, float]
    velocities: Mapping[str, float]
    poses: Mapping[str, Array]
    ages_ns: Mapping[str, int]


class Pairer:
    """Pairs the streams in `buffers` by the contract's rules."""

    def __init__(self, embodiment: Embodiment, buffers: Buffers) -> None:
        self._embodiment = embodiment
        self._buffers = buffers
        self._joints = embodiment.wire_joints
        self._pictures = list(buffers.every_picture())

    def waited_for(self, stamp: int) -> Iterator[str]:
        """Yield the streams that have not come as far as a stamp, so that more may still come for it."""
        for one in self._pictures:
            if not one.stream.reached(stamp):
                yield one.source.text
        for name in self._joints:
            for stream in self._buffers.streams_of.get(name, ()):
                if stream.reached(stamp):
                    break
            else:
                yield self._joint_told(name)
        for pose in self._buffers.poses.values():
            if not pose.stream.reached(stamp):
                yield pose.source.text
        if self._buffers.tree is not None:
            for name, arm in self._embodiment.arms.items():
                if not self._buffers.tree.reached(arm, stamp):
                    yield self._transform_text(name)

    def missing(self) -> list[str]:
        """Return the streams of which nothing usable came so far: human names with topics."""
        buffers = self._buffers
        names = []
        for one in buffers.every_picture():
            damaged = [sample.reason for sample in one.stream.samples if isinstance(sample, Damaged)]
            if len(damaged) == len(one.stream.samples):
                names.append(f'{one.source.text}: {damaged[-1]}' if damaged else one.source.text)
        for name in self._joints:
            samples = [sample for stream in buffers.streams_of.get(name, ()) for sample in stream.samples]
            names += [self._joint_told(name)] if all(sample.absent for sample in samples) else []
        return names + [one.source.text for one in buffers.poses.values() if not one.stream.stamps]

    def pair(self, stamp: int) -> tuple[Paired, list[tuple[str, str, str]]]:
        """Return what belongs to a moment, and what lacks: stream, its human name with joint, and why."""
        pairing = _Pairing(stamp)
        images = self._images_at(pairing, self._buffers.pictures)
        depths = self._images_at(pairing, self._buffers.depths)
        positions, velocities = self._joints_at(pairing)
        poses = self._poses_at(pairing)
        if not pairing.lacks:
            for source, age_ns in pairing.ages.items():
                source.ages_ns.append(age_ns)
        ages_ns = {source.text: age_ns for source, age_ns in pairing.ages.items()}
        return Paired(stamp, images, depths, positions, velocities, poses, ages_ns), pairing.lacks

    def _images_at(self, pairing: _Pairing, pictures: Mapping[str, Pictures]) -> dict[str, Any]:
        images = {}
        for name, one in pictures.items():
            found = one.stream.at(pairing.stamp, self._buffers.rule)
            if found is not None and isinstance(found.sample, Damaged):
                pairing.lacks.append((one.source.text, one.source.text, found.sample.reason))
            elif self._has(pairing, one.source, found):
                assert found is not None
                images[name] = found.sample
        return images

    def _joints_at(self, pairing: _Pairing) -> tuple[dict[str, float], dict[str, float]]:
        samples: dict[str, JointSample] = {}
        lacks: dict[str, tuple[str, str]] = {}
        for joints in self._buffers.joints.values():
            offset = self._buffers.timeline.offset_text(joints.source)
            for name, stream in joints.streams.items():
                if name in samples:
                    continue  # a topic that stands earlier in the contract has it
                found = stream.at(pairing.stamp, joints.rule, joint_states.between)
                if offset is None and found is not None and not found.sample.absent:
                    samples[name] = found.sample
                    pairing.ages[joints.source] = max(found.age_ns, pairing.ages.get(joints.source, 0))
                else:
                    gap = joints.rule.text() if found is None else 'no position at this stamp'
                    lacks[name] = (joints.source.text, offset or gap)
        for name in self._joints:
            if name not in samples:
                text = self._joint_text(name)
                stream_text, why = lacks.get(name) or (text, self._never(name) or 'never came')
                pairing.lacks.append((stream_text, text, why))
        speeds = {name: one.velocity for name, one in samples.items() if one.velocity is not None}
        return {name: one.position for name, one in samples.items()}, speeds

    def _poses_at(self, pairing: _Pairing) -> dict[str, Array]:
        poses, rule = {}, self._buffers.rule
        for name, arm in self._embodiment.arms.items():
            found: Found[Array] | None = None
            if self._buffers.tree is not None:
                found = self._buffers.tree.at(arm, pairing.stamp, rule)
                if found is None:
                    text = self._transform_text(name)
                    pairing.lacks.append((text, text, rule.text()))
            elif name in self._buffers.poses:
                one = self._buffers.poses[name]
                found = one.stream.at(pairing.stamp, rule, tool_poses.BETWEEN)
                if not self._has(pairing, one.source, found):
                    continue
            if found is not None:
                poses[name] = found.sample
        return poses

    def _has(self, pairing: _Pairing, source: Source, found: Found[Any] | None) -> bool:
        """Note whether a stream of pictures or poses has something that can be used, and why not."""
        offset = self._buffers.timeline.offset_text(source)
        if found is None or offset is not None:
            pairing.lacks.append((source.text, source.text, offset or self._buffers.rule.text()))
            return False
        pairing.ages[source] = found.age_ns
        return True

    def _never(self, joint: str) -> str:
        """Return what messages hold instead of a joint that is in none of them; '' where it is not so."""
        streams = [joints.streams for joints in self._buffers.joints.values()]
        seen = [name for one in streams for name in one]
        return f'in no message, where there are {", ".join(seen)}' if seen and joint not in seen else ''

    def _joint_told(self, name: str) -> str:
        never = self._never(name)
        return f'{self._joint_text(name)}: {never}' if never else self._joint_text(name)

    def _joint_text(self, name: str) -> str:
        return f'joint {name} (topic {", ".join(self._buffers.joints)})'

    def _transform_text(self, arm: str) -> str:
        frames = self._embodiment.arms[arm]
        return f'transform {frames.base_frame} to {frames.tool_frame} (topic {TF})'


class _Pairing:
    """What one moment has and lacks: stream, its human name with joint, and why."""

    def __init__(self, stamp: int) -> None:
        self.stamp = stamp
        self.ages: dict[Source, int] = {}
        self.lacks: list[tuple[str, str, str]] = []
