# SPDX-License-Identifier: Apache-2.0
"""Time that goes back by less than messages are late: a short bag that loops, a simulator reset at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from streams import FRONT, JOINTS, MS, T0, Message, bag, contract, image, joints, recording

from openeta_ros.episodes import demonstration
from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.bag_demonstration import convert
from openeta_ros.observation import Assembler

CAMERA, STATE = 'camera/front/image_raw', 'joint_states'


def feed(assembler: Assembler, stamp: int, elbow: float) -> None:
    assembler.add(STATE, joints(stamp, elbow=elbow))
    assembler.add(CAMERA, image(stamp, round(100 * elbow)))


def kinds(assembler: Assembler) -> list[str]:
    return [condition.kind for condition in assembler.conditions]


def test_a_simulator_that_is_reset_within_a_second_gives_nothing_of_before(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), None)
    for k in range(1, 13):
        feed(assembler, k * 50 * MS, 0.5)
    told: list[list[int]] = []
    assembler.on_set_back = lambda: told.append(assembler.clock_stamps())
    for k in range(1, 4):
        feed(assembler, k * 50 * MS, 0.7)
    assert kinds(assembler) == ['set_back'] and len(told) == 1 and told[0][-1] == 600 * MS
    assert 'went back by 0.550 s' in next(iter(assembler.conditions)).text
    seen = assembler.latest()
    assert seen is not None and seen.stamp_ns == 150 * MS and seen['qpos'][1] == 0.7
    assert assembler.clock_stamps() == [50 * MS, 100 * MS, 150 * MS]
    feed(assembler, 200 * MS, 0.7)
    feed(assembler, 650 * MS, 0.7)
    assert assembler.at(650 * MS)['qpos'][1] == 0.7 and kinds(assembler) == ['set_back']


def test_what_was_still_on_its_way_when_time_went_back_by_little_is_not_paired(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), None)
    for k in range(1, 13):
        feed(assembler, k * 50 * MS, 0.5)
    for k in range(1, 4):
        assembler.add(CAMERA, image(k * 50 * MS))
    assembler.add(STATE, joints(610 * MS, elbow=0.5))
    assembler.add(STATE, joints(150 * MS, elbow=0.7))
    assert kinds(assembler) == ['set_back', 'left_behind']
    assert assembler.at(150 * MS)['qpos'][1] == 0.7


def test_messages_that_come_twice_are_not_time_going_back(tmp_path: Path) -> None:
    """As over two ways, of which one is slower by three messages."""
    assembler = Assembler(contract(tmp_path), None)
    for k in range(40):
        feed(assembler, T0 + k * 50 * MS, k / 100)
        if k > 3:
            assembler.add(STATE, joints(T0 + (k - 3) * 50 * MS, elbow=(k - 3) / 100))
            assembler.add(CAMERA, image(T0 + (k - 3) * 50 * MS))
    assert kinds(assembler) == []
    assert assembler.at(T0 + 39 * 50 * MS)['qpos'][1] == 0.39


def test_two_publishers_of_one_topic_with_the_same_stamps_are_not_time_going_back(tmp_path: Path) -> None:
    state = '{topic: joint_states, max_age_s: 0.1}'
    assembler = Assembler(contract(tmp_path, (state, '{topic: joint_states, max_age_s: 0.2}')), None)
    for k in range(40):
        stamp = T0 + k * 10 * MS
        assembler.add(STATE, joints(stamp, elbow=0.5))
        assembler.add(STATE, joints(stamp - 20 * MS, elbow=0.5))
    assert kinds(assembler) == []


def test_by_the_time_of_reception_time_goes_back_however_little(tmp_path: Path) -> None:
    received = ('align: {clock: front,', 'align: {clock: front, timeline: receive,')
    assembler = Assembler(contract(tmp_path, received), None)
    for start, elbow, count in ((0, 0.5, 10), (3, 0.7, 2)):
        for k in range(1, 1 + count):
            assembler.add(STATE, joints(0, elbow=elbow), (start + k * 50) * MS)
            assembler.add(CAMERA, image(0), (start + k * 50) * MS)
    assert kinds(assembler) == ['set_back']
    assert assembler.at(103 * MS)['qpos'][1] == 0.7


@pytest.mark.parametrize('count', [8, 16])
def test_a_bag_that_holds_a_loop_gives_the_rows_of_each_turn(tmp_path: Path, count: int) -> None:
    turn = count * 50 * MS
    messages: list[Message] = [
        (topic, message, log + number * turn)
        for number in range(3)
        for topic, message, log in recording(count)
    ]
    with Bag(bag(tmp_path / 'recorded', messages)) as opened:
        account = convert(opened, contract(tmp_path), tmp_path / 'demo.npz', rate='clock')
    arrays = demonstration.load(tmp_path / 'demo.npz').arrays
    assert (account.rows, account.parts, account.dropped) == (3 * count, 3, 0)
    np.testing.assert_array_equal(arrays['frames_front'][:, 0, 0, 0], [*range(count)] * 3)
    np.testing.assert_allclose(arrays['qpos'][:, 1], [k / 100 for k in [*range(count)] * 3])
    assert {topic.topic: topic.rejected for topic in account.topics} == {FRONT: {}, JOINTS: {}}
