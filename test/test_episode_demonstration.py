# SPDX-License-Identifier: Apache-2.0
"""Demonstrations: their arrays, their info, and their files."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from point_env import PointEnv

from openeta_ros.episodes import DemonstrationError, record_demonstration
from openeta_ros.episodes.demonstration import load


def single_array() -> bytes:
    content = io.BytesIO()
    np.save(content, np.zeros((2, 7)))
    return content.getvalue()


def damaged() -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, actions=np.random.default_rng(0).normal(size=(300, 7)))
    data = content.getvalue()
    return data[:400] + b'\xff' * 200 + data[600:]


def test_a_demonstration_holds_what_was_seen_and_commanded() -> None:
    env = PointEnv()
    demonstration = record_demonstration(env, 5)
    arrays = demonstration.arrays
    env.reset(5)
    assert np.array_equal(arrays['actions'], env.expert())
    shapes = {name: array.shape for name, array in arrays.items()}
    assert shapes == {
        'frames_front': (9, 240, 320, 3),
        'frames_top': (9, 240, 320, 3),
        'qpos': (9, 7),
        'endpose': (9, 8),
        'actions': (8, 7),
        'times': (9,),
        'frequency': (),
    }
    assert arrays['frames_front'].dtype == np.uint8
    assert {array.dtype for name, array in arrays.items() if 'frames' not in name} == {np.dtype('float64')}
    assert np.allclose(arrays['times'], np.arange(9) / 20)
    assert demonstration.info == {
        'frequency': 20.0,
        'cameras': ['front', 'top'],
        'embodiment': 'light_arm',
        'action_dims': {'qpos': 7, 'ee': 8},
        'instruction': 'bring the first joint to its goal',
        'seed': 5,
        'success': True,
    }


def test_a_saved_demonstration_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    made = record_demonstration(PointEnv(), 5)
    saved = made.save(tmp_path / 'demo.npz')
    read = load(tmp_path / 'demo.npz')
    assert saved.path == read.path == tmp_path / 'demo.npz'
    assert read.info == made.info and read.success
    assert read.arrays.keys() == made.arrays.keys()
    for name, array in made.arrays.items():
        assert read.arrays[name].dtype == array.dtype and np.array_equal(read.arrays[name], array)
    assert [path.name for path in tmp_path.iterdir()] == ['demo.npz']


@pytest.mark.parametrize(
    ('content', 'words'),
    [
        (b'no zip file', 'not an .npz demonstration'),
        (b'', 'not an .npz demonstration'),
        (single_array(), 'not an .npz demonstration'),
        (damaged(), 'not an .npz demonstration'),
        ({'qpos': np.zeros((3, 2))}, 'needs an array actions'),
        ({'actions': np.zeros(3)}, 'needs an array actions'),
        ({'actions': np.zeros((2, 2)), 'info': np.array('[1]')}, 'info must be a JSON object'),
        ({'actions': np.zeros((2, 2)), 'info': np.array('{')}, 'not an .npz demonstration'),
        ({'actions': np.array([[None]])}, 'not an .npz demonstration'),
    ],
)
def test_a_file_without_a_demonstration_is_refused_in_one_sentence(
    tmp_path: Path, content: bytes | dict[str, np.ndarray], words: str
) -> None:
    path = tmp_path / 'demo.npz'
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.savez(path, **content)
    with pytest.raises(DemonstrationError, match=words) as caught:
        load(path)
    assert str(path) in str(caught.value) and '\n' not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DemonstrationError, match='nothing'):
        load(tmp_path / 'nothing.npz')
