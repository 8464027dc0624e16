# SPDX-License-Identifier: Apache-2.0
"""Streams become observations by stamp; nothing is ever filled in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openeta_ros.embodiment import Embodiment, load
from openeta_ros.observation import (
    Assembler,
    MissingStream,
    ObservationError,
    assemble,
    image_message,
    joint_state_message,
)

MS = 1_000_000
CONTRACT = """
embodiment: two_joints
rate_hz: 20
description: {file: robot.urdf}
arms:
  arm:
    joints: [shoulder, elbow]
    gripper: {joint: finger, open: 0.0, closed: 0.8}
    base_frame: base
    tool_frame: tool
    home: [0.0, 0.0, 1.0]
    limits: {position: [[-1, 1], [-1, 1]], velocity: [1, 1]}
cameras:
  front: {topic: camera/front/image_raw, size: [2, 2]}
  top: {topic: camera/top/image_raw, size: [2, 2]}
state:
  - {topic: joint_states, max_age_s: 0.1}
endpose: {source: none}
align: {clock: front, max_age_s: 0.1}
"""
POSITIONS = {'finger': 0.2, 'elbow': 2.0, 'other': 9.0, 'shoulder': 1.0}


def contract(tmp_path: Path, text: str = CONTRACT) -> Embodiment:
    path = tmp_path / 'two_joints.yaml'
    path.write_text(text)
    return load(path)


@pytest.fixture
def embodiment(tmp_path: Path) -> Embodiment:
    return contract(tmp_path)


@pytest.fixture
def assembler(embodiment: Embodiment) -> Assembler:
    return Assembler(embodiment, None)


def picture(value: int) -> np.ndarray:
    return np.full((2, 2, 3), value, np.uint8)


def test_joints_are_found_by_name_and_the_gripper_is_its_openness(embodiment: Embodiment) -> None:
    pictures = {'front': picture(1), 'top': picture(2)}
    seen = assemble(embodiment, None, pictures=pictures, positions=POSITIONS, stamp_ns=5)
    assert list(seen) == ['frames_front', 'frames_top', 'qpos'] and seen.stamp_ns == 5
    np.testing.assert_allclose(seen['qpos'], [1.0, 2.0, 0.75])
    with pytest.raises(ValueError, match='read-only'):
        seen['qpos'][0] = 3


@pytest.mark.parametrize(
    ('pictures', 'positions', 'text'),
    [
        (['front'], POSITIONS, r'camera top \(topic camera/top/image_raw\)'),
        (['front', 'top'], {'shoulder': 1.0, 'finger': 0.0}, 'joint elbow has no position'),
        (['front', 'top'], {**POSITIONS, 'elbow': float('nan')}, 'joint elbow is nan'),
    ],
)
def test_what_is_missing_or_not_finite_is_named(
    embodiment: Embodiment, pictures: list[str], positions: dict[str, float], text: str
) -> None:
    drawn = {name: picture(0) for name in pictures}
    with pytest.raises(ObservationError, match=text):
        assemble(embodiment, None, pictures=drawn, positions=positions, stamp_ns=5)


def test_an_observation_waits_for_every_stream_to_reach_its_stamp(assembler: Assembler) -> None:
    for stamp in (50 * MS, 100 * MS):
        assembler.add_image('front', image_message(picture(stamp // MS), stamp))
        assembler.add_joint_state(joint_state_message(POSITIONS, {}, stamp))
    assembler.add_image('top', image_message(picture(50), 50 * MS))
    with pytest.raises(MissingStream, match='camera top') as missing:
        assembler.at(100 * MS)  # the old picture of top is not paired with the new one of front
    assert missing.value.streams == ('camera top (topic camera/top/image_raw)',)
    assert assembler.at(50 * MS)['frames_top'][0, 0, 0] == 50
    assembler.add_image('top', image_message(picture(100), 100 * MS))
    assert assembler.at(100 * MS)['frames_top'][0, 0, 0] == 100


def test_the_newest_sample_at_or_before_the_stamp_is_taken(assembler: Assembler) -> None:
    assembler.add_image('front', image_message(picture(1), 100 * MS))
    assembler.add_image('top', image_message(picture(2), 90 * MS))
    assembler.add_image('top', image_message(picture(3), 110 * MS))
    for value, stamp in ((1.0, 80 * MS), (2.0, 99 * MS), (3.0, 101 * MS)):
        assembler.add_joint_state(joint_state_message({**POSITIONS, 'elbow': value}, {}, stamp))
    seen = assembler.at(100 * MS)
    assert seen['frames_top'][0, 0, 0] == 2 and seen['qpos'][1] == 2.0


def test_joints_may_come_in_several_messages(assembler: Assembler) -> None:
    for camera in ('front', 'top'):
        assembler.add_image(camera, image_message(picture(1), 100 * MS))
    assembler.add_joint_state(joint_state_message({'finger': 0.0}, {}, 98 * MS))
    assembler.add_joint_state(joint_state_message({'elbow': 2.0, 'shoulder': 1.0}, {}, 99 * MS))
    seen = assembler.latest()
    assert seen is not None
    np.testing.assert_array_equal(seen['qpos'], [1.0, 2.0, 1.0])


def test_too_old_is_missing(assembler: Assembler) -> None:
    assembler.add_joint_state(joint_state_message(POSITIONS, {}, 100 * MS))
    for camera in ('front', 'top'):
        assembler.add_image(camera, image_message(picture(1), 250 * MS))
    assert assembler.latest() is None
    assert assembler.missing() == []


def test_what_never_came_is_named_with_its_topic(assembler: Assembler) -> None:
    assembler.add_joint_state(joint_state_message({'shoulder': 1.0, 'finger': 0.0}, {}, 5))
    assembler.add_image('front', image_message(picture(1), 5))
    assert assembler.missing() == [
        'camera top (topic camera/top/image_raw)',
        'joint elbow (topic joint_states): in no message, where there are shoulder, finger',
    ]


def test_unusable_messages_are_counted(assembler: Assembler) -> None:
    assembler.add_image('front', image_message(picture(1), 0))
    assembler.add_joint_state(joint_state_message({**POSITIONS, 'elbow': float('inf')}, {}, 5))
    assert assembler.rejected == {
        'camera front (topic camera/front/image_raw): no stamp': 1,
        'joint states (topic joint_states): elbow is not finite': 1,
    }
    assert len(assembler.missing()) == 3


def test_a_clock_set_back_forgets_what_was_before(assembler: Assembler) -> None:
    for stamp in (5000 * MS, 50 * MS):
        for camera in ('front', 'top'):
            assembler.add_image(camera, image_message(picture(stamp // (50 * MS)), stamp))
        assembler.add_joint_state(joint_state_message(POSITIONS, {}, stamp))
    seen = assembler.latest()
    assert seen is not None and seen.stamp_ns == 50 * MS


def test_only_the_newest_pictures_are_kept(embodiment: Embodiment) -> None:
    assembler = Assembler(embodiment, None, history=2)
    for stamp in (1, 2, 3):
        for camera in ('front', 'top'):
            assembler.add_image(camera, image_message(picture(stamp), stamp))
        assembler.add_joint_state(joint_state_message(POSITIONS, {}, stamp))
    assert assembler.at(2)['frames_front'][0, 0, 0] == 2
    with pytest.raises(MissingStream):
        assembler.at(1)


@pytest.mark.parametrize('period', [50, 2000])
def test_the_last_picture_of_a_clock_camera_that_went_silent_is_not_the_newest(
    embodiment: Embodiment, period: int
) -> None:
    assembler = Assembler(embodiment, None)
    for stamp in range(period * MS, 11 * period * MS, period * MS):
        for camera in ('front', 'top'):
            assembler.add_image(camera, image_message(picture(1), stamp))
        assembler.add_joint_state(joint_state_message(POSITIONS, {}, stamp))
    last = stamp
    for late in range(
        0, 1000 + 3 * period, period // 5
    ):  # as late as a clock may be, and pictures of it lost
        assembler.add_joint_state(joint_state_message(POSITIONS, {}, last + late * MS))
        seen = assembler.latest()
        assert seen is not None and seen.stamp_ns == last
    assembler.add_joint_state(joint_state_message(POSITIONS, {}, last + (1010 + 3 * period) * MS))
    for _ in range(2):
        with pytest.raises(
            MissingStream, match=r'camera front .*: nothing for \d\.\d s, in which other streams'
        ):
            assembler.latest()
    front = 'camera front (topic camera/front/image_raw)'
    told = [(one.stream, one.kind, one.count, one.until_ns) for one in assembler.conditions]
    assert told == [(front, 'stale', 1, None)]
    again = last + (1050 + 3 * period) * MS
    for camera in ('front', 'top'):
        assembler.add_image(camera, image_message(picture(1), again))
    assembler.add_joint_state(joint_state_message(POSITIONS, {}, again))
    seen = assembler.latest()
    assert seen is not None and seen.stamp_ns == again
    assert [one.until_ns for one in assembler.conditions] == [again]
