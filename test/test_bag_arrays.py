# SPDX-License-Identifier: Apache-2.0
"""Arrays that grow by rows become files that NumPy reads, however many rows were expected."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from openeta_ros.episodes.arrays import ArraysError, ArraysWriter
from openeta_ros.episodes.npz import combined


@pytest.mark.parametrize('expected', [0, 1, 17, 40, 1000])
@pytest.mark.parametrize('name', ['demo.npz', 'demo'])
def test_the_arrays_are_whole_however_many_rows_were_expected(
    tmp_path: Path, name: str, expected: int
) -> None:
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (40, 5, 7, 3), np.uint8)
    numbers = random.normal(size=(40, 3))
    with ArraysWriter(tmp_path / name, expected) as arrays:
        for index in range(40):
            arrays.append({'pictures': pictures[index], 'times': np.array(index / 20)})
            if index:
                arrays.append({'numbers': numbers[index]})
        arrays.complete({'frequency': np.array(20.0)}, {'name': 'x'})
    if name == 'demo.npz':
        with zipfile.ZipFile(tmp_path / name) as archive:
            assert archive.testzip() is None
        found = dict(np.load(tmp_path / name, allow_pickle=False))
        assert (tmp_path / name).stat().st_size < 1.2 * (pictures.nbytes + numbers.nbytes + 320) + 2000
    else:
        found = {file.stem: np.load(file) for file in (tmp_path / name).glob('*.npy')}
    np.testing.assert_array_equal(found['pictures'], pictures)
    np.testing.assert_array_equal(found['numbers'], numbers[1:])
    np.testing.assert_array_equal(found['times'], np.arange(40) / 20)
    assert found['frequency'] == 20 and str(found['info']) == '{"name": "x"}'
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize('name', ['demo.npz', 'demo'])
def test_a_recording_that_was_not_ended_stays_where_arrays_get_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / f'{name}.partial').mkdir()
    (tmp_path / f'{name}.partial' / 'demo.mcap').write_bytes(b'all that there is')
    with ArraysWriter(tmp_path / name, 1) as arrays:
        arrays.append({'a': np.zeros(3)})
        arrays.complete({}, {})
    assert (tmp_path / f'{name}.partial' / 'demo.mcap').read_bytes() == b'all that there is'
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, f'{name}.partial']


def test_a_row_that_does_not_fit_is_refused_and_leaves_the_arrays_as_they_were(tmp_path: Path) -> None:
    with ArraysWriter(tmp_path / 'x.npz', 3) as arrays:
        arrays.append({'a': np.zeros(3), 'b': np.zeros(2)})
        with pytest.raises(ArraysError, match=r'b is float64 \(5,\), and float64 \(2,\) before'):
            arrays.append({'a': np.ones(3), 'b': np.zeros(5)})
        arrays.complete({}, {})
    assert np.load(tmp_path / 'x.npz')['a'].shape == (1, 3)


def test_nothing_is_left_of_what_was_not_completed(tmp_path: Path) -> None:
    (tmp_path / 'x.npz').write_bytes(b'before')
    with pytest.raises(KeyboardInterrupt), ArraysWriter(tmp_path / 'x.npz', 3) as arrays:
        arrays.append({'a': np.zeros(3)})
        raise KeyboardInterrupt
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b'before']


def test_checksums_of_parts_give_that_of_the_whole() -> None:
    random = np.random.default_rng(1)
    for size in (0, 1, 7, 1000, 65537):
        first, second = random.bytes(33), random.bytes(size)
        assert combined(zlib.crc32(first), zlib.crc32(second), size) == zlib.crc32(first + second)
