# SPDX-License-Identifier: Apache-2.0
"""Live, a picture that came damaged counts as one that was lost: it is told, and the next one is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from streams import MS, T0, contract, header, joints, make, picture

from openeta_ros.observation import Assembler, ImageError, MissingStream

CAMERA, STATE = 'camera/front/image_raw', 'joint_states'
COMPRESSED = ('image_raw}', 'image_raw, transport: compressed}')
FRONT = 'camera front (topic camera/front/image_raw)'
DAMAGED = 'the jpeg file is damaged: premature end of data segment'


def jpeg(stamp: int, value: int, *, damaged: bool = False) -> Any:
    noise = np.random.default_rng(value).integers(0, 9, (48, 64, 3), np.uint8)
    data = cv2.imencode('.jpg', picture(value, (48, 64)) + noise)[1].reshape(-1)
    if damaged:
        data = np.concatenate([data[:-400], data[-2:]])
    return make('sensor_msgs/msg/CompressedImage', header=header(stamp), format='jpeg', data=data)


def fed(folder: Path, damaged: tuple[int, ...], count: int = 4) -> Assembler:
    assembler = Assembler(contract(folder, COMPRESSED), None)
    for k in range(count):
        stamp = T0 + k * 50 * MS
        assembler.add(STATE, joints(stamp, elbow=k / 100))
        assembler.add(CAMERA, jpeg(stamp, 50 * k, damaged=k in damaged))
    return assembler


def test_the_newest_picture_that_is_whole_is_taken(tmp_path: Path) -> None:
    assembler = fed(tmp_path, (2, 3))
    for _ in range(3):
        seen = assembler.latest()
        assert seen is not None and seen.stamp_ns == T0 + 50 * MS and seen['qpos'][1] == 0.01
    assert assembler.rejected == {f'{FRONT}: {DAMAGED}': 2}
    assembler.add(STATE, joints(T0 + 200 * MS, elbow=0.04))
    assembler.add(CAMERA, jpeg(T0 + 200 * MS, 200))
    seen = assembler.latest()
    assert seen is not None and seen.stamp_ns == T0 + 200 * MS


def test_the_moment_of_a_damaged_picture_is_missing_and_says_why(tmp_path: Path) -> None:
    assembler = fed(tmp_path, (2,))
    for _ in range(2):
        with pytest.raises(MissingStream) as missing:
            assembler.at(T0 + 100 * MS)
        assert missing.value.streams == (f'{FRONT}: {DAMAGED}',)
    assert assembler.at(T0 + 150 * MS)['qpos'][1] == 0.03


def test_where_the_next_one_will_do_damaged_and_lost_ones_are_passed_over_and_none_before_is_taken(
    tmp_path: Path,
) -> None:
    assembler = fed(tmp_path, (2,))
    assert assembler.streams_from(T0 + 50 * MS).stamp_ns == T0 + 50 * MS
    assert assembler.streams_from(T0 + 75 * MS).stamp_ns == T0 + 150 * MS
    with pytest.raises(MissingStream, match='camera front'):
        assembler.streams_from(T0 + 151 * MS)


def test_pictures_that_are_all_damaged_are_named(tmp_path: Path) -> None:
    assembler = fed(tmp_path, (0, 1, 2, 3))
    assert assembler.latest() is None
    assert assembler.missing() == [f'{FRONT}: {DAMAGED}']


def test_what_is_no_picture_at_all_is_not_waited_for(tmp_path: Path) -> None:
    assembler = fed(tmp_path, ())
    assembler.add(STATE, joints(T0 + 200 * MS))
    message = jpeg(T0 + 200 * MS, 9)
    message.data = np.frombuffer(b'GIF89a', np.uint8)
    assembler.add(CAMERA, message)
    with pytest.raises(ImageError, match='the bytes are gif'):
        assembler.latest()
