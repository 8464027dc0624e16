# SPDX-License-Identifier: Apache-2.0
"""Clocks that are zero, differ, or go back are noticed and told of; nothing is paired across them."""

from __future__ import annotations

from pathlib import Path

import pytest
from streams import MS, T0, S, contract, image, joints

from openeta_ros.observation import Assembler, MissingStream, ObservationError

CAMERA, STATE = 'camera/front/image_raw', 'joint_states'
FRONT, JOINTS = 'camera front (topic camera/front/image_raw)', 'joint states (topic joint_states)'


def feed(assembler: Assembler, stamp: int, elbow: float = 0.0, received: int | None = None) -> None:
    assembler.add(STATE, joints(stamp, elbow=elbow), received)
    assembler.add(CAMERA, image(stamp), received)


def kinds(assembler: Assembler) -> list[tuple[str, str]]:
    return [(condition.stream, condition.kind) for condition in assembler.conditions]


def test_zero_stamps_make_no_observation_and_are_told_once(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), None)
    for k in range(21):
        feed(assembler, 0, received=T0 + k * 50 * MS)
    assert assembler.latest() is None and assembler.clock_stamps() == []
    changes = assembler.conditions.changes()
    assert [(one.stream, one.kind, one.until_ns) for one in changes] == [
        (JOINTS, 'no_stamp', None),
        (FRONT, 'no_stamp', None),
    ]
    feed(assembler, T0 + 2 * S, received=T0 + 2 * S)
    ended = assembler.conditions.changes()
    assert {(one.stream, one.count, one.until_ns) for one in ended} == {
        (JOINTS, 21, T0 + 2 * S),
        (FRONT, 21, T0 + 2 * S),
    }


@pytest.mark.parametrize('word', ['receive', 'log'])
def test_zero_stamps_do_not_matter_where_the_contract_goes_by_reception(tmp_path: Path, word: str) -> None:
    received = (
        'align: {clock: front,',
        f'align: {{clock: front, timeline: {word},',
    )
    assembler = Assembler(contract(tmp_path, received), None)
    for k in range(5):
        feed(assembler, 0, k / 10, received=T0 + k * 50 * MS)
    assert assembler.at(T0 + 100 * MS)['qpos'][1] == 0.2
    with pytest.raises(ObservationError, match='time of reception'):
        feed(assembler, T0)


@pytest.mark.parametrize(('offset', 'text'), [(170, '170.0 s ahead of'), (-170, '170.0 s behind')])
def test_stamps_of_a_machine_with_another_time_are_never_paired_and_the_offset_is_told(
    tmp_path: Path, offset: int, text: str
) -> None:
    assembler = Assembler(contract(tmp_path), None)
    for k in range(4000):  # long enough for the stamps of both to overlap
        now = T0 + k * 50 * MS
        assembler.add(STATE, joints(now + offset * S), now)
        assembler.add(CAMERA, image(now), now)
        with pytest.raises(MissingStream):
            assembler.paired(now)
    offsets = [one for one in assembler.conditions if one.kind == 'offset']
    assert len(offsets) == 1 and text in offsets[0].text and offsets[0].until_ns is None
    with pytest.raises(MissingStream, match=text):
        assembler.paired(now)


def test_simulated_time_at_any_speed_is_no_offset(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), None)
    for k in range(1, 50):
        assembler.add(CAMERA, image(k * 500 * MS), T0 + k * MS)
        assembler.add(STATE, joints(k * 500 * MS), T0 + k * MS)
    assert assembler.at(49 * 500 * MS).stamp_ns == 49 * 500 * MS and not list(assembler.conditions)


def test_time_that_goes_back_is_told_and_nothing_of_before_is_paired(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), None)
    for k in range(40):
        feed(assembler, T0 + k * 50 * MS, 0.5)
    told: list[list[int]] = []
    assembler.on_set_back = lambda: told.append(assembler.clock_stamps())
    assembler.add(CAMERA, image(T0 + 20 * MS))
    assembler.add(STATE, joints(T0 + 1990 * MS, elbow=0.5))  # still on its way from before
    assembler.add(STATE, joints(T0 + 15 * MS, elbow=0.7))
    assembler.add(STATE, joints(T0 + 25 * MS, elbow=0.9))
    assert assembler.at(T0 + 20 * MS)['qpos'][1] == 0.7
    assert len(told) == 1 and told[0][-1] == T0 + 39 * 50 * MS
    assert (FRONT, 'set_back') in kinds(assembler)
    assert 'went back by 1.930 s' in next(iter(assembler.conditions)).text
    feed(assembler, T0 + 70 * MS, 1.0)
    assert assembler.at(T0 + 70 * MS)['qpos'][1] == 1.0


def test_a_stream_that_did_not_go_back_with_the_others_is_named(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), None)
    feed(assembler, T0 + 100 * S)
    for k in range(4):
        assembler.add(CAMERA, image(T0 + k * 50 * MS))
        assembler.add(STATE, joints(T0 + 100 * S + k * 50 * MS))
    assert (JOINTS, 'left_behind') in kinds(assembler)
    assert assembler.latest() is None


def test_one_message_that_is_very_late_is_not_time_going_back(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), None)
    for k in range(40):
        feed(assembler, T0 + k * 50 * MS)
    assembler.add(STATE, joints(T0))
    feed(assembler, T0 + 2 * S)
    assert assembler.at(T0 + 2 * S).stamp_ns == T0 + 2 * S
    assert kinds(assembler) == [(JOINTS, 'late')] and len(assembler.clock_stamps()) > 1


def test_the_nearest_sample_is_taken_within_its_tolerance(tmp_path: Path) -> None:
    nearest = ('align: {clock: front,', 'align: {clock: front, rule: nearest, tolerance_s: 0.01,')
    assembler = Assembler(contract(tmp_path, nearest), None)
    for stamp, elbow in ((T0 - 9 * MS, 1.0), (T0 + 4 * MS, 2.0), (T0 + 60 * MS, 3.0)):
        assembler.add(STATE, joints(stamp, elbow=elbow))
    for stamp in (T0, T0 + 30 * MS, T0 + 55 * MS):
        assembler.add(CAMERA, image(stamp))
    assert assembler.at(T0)['qpos'][1] == 2.0
    with pytest.raises(MissingStream, match=r'nothing within 0\.01 s around'):
        assembler.at(T0 + 30 * MS)
    assert assembler.at(T0 + 55 * MS)['qpos'][1] == 3.0


def test_interpolation_needs_both_sides_and_takes_what_lies_between(tmp_path: Path) -> None:
    mixed = ('align: {clock: front,', 'align: {clock: front, rule: interpolate,')
    assembler = Assembler(contract(tmp_path, mixed), None)
    for stamp, elbow in ((T0 - 30 * MS, 1.0), (T0 + 10 * MS, 2.0), (T0 + 400 * MS, 3.0)):
        assembler.add(STATE, joints(stamp, elbow=elbow))
    for stamp in (T0, T0 + 200 * MS):
        assembler.add(CAMERA, image(stamp))
    assert assembler.at(T0)['qpos'][1] == 1.75
    with pytest.raises(MissingStream, match='on both sides'):
        assembler.at(T0 + 200 * MS)


def test_figures_tell_rate_jitter_age_and_offset(tmp_path: Path) -> None:
    assembler = Assembler(contract(tmp_path), None)
    for k in range(40):
        late = 5 * MS if k % 5 == 0 else 0
        assembler.add(STATE, joints(T0 + k * 50 * MS - 3 * MS), T0 + k * 50 * MS)
        assembler.add(CAMERA, image(T0 + k * 50 * MS + late), T0 + k * 50 * MS + 20 * MS)
        assembler.latest()
    health = {one.stream: one for one in assembler.health()}
    assert health[FRONT].messages == 40 and health[FRONT].rate_hz == pytest.approx(20)
    assert health[FRONT].jitter_ms == pytest.approx(5) and health[JOINTS].jitter_ms == 0
    assert health[JOINTS].age_ms == pytest.approx((3.0, 8.0)) and health[FRONT].age_ms == (0.0, 0.0)
    assert health[JOINTS].offset_s == pytest.approx(-0.003)
