# SPDX-License-Identifier: Apache-2.0
"""Pictures and depth are turned, cropped and resized as the contract says, once and in this order."""

from __future__ import annotations

import numpy as np
import pytest

from openeta_ros.embodiment import Camera
from openeta_ros.observation import ImageError, fit_depth, fit_picture

PICTURE = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
DEPTH = np.arange(24, dtype=np.float32).reshape(4, 6)


def camera(**fields: object) -> Camera:
    return Camera(topic='c', **fields)


def test_pictures_are_turned_then_cropped_then_resized() -> None:
    picture = np.zeros((4, 6, 3), np.uint8)
    picture[0, 5] = 200  # the upper right corner goes to the upper left when turned counter-clockwise
    turned = fit_picture(picture, camera(rotate=90))
    assert turned.shape == (6, 4, 3) and turned[0, 0, 0] == 200
    cropped = fit_picture(picture, camera(rotate=90, crop=(0, 0, 2, 2)))
    assert cropped.shape == (2, 2, 3) and cropped[0, 0, 0] == 200
    halved = fit_picture(picture, camera(rotate=90, crop=(0, 0, 2, 2), size=(1, 1)))
    assert halved.tolist() == [[[50, 50, 50]]]


@pytest.mark.parametrize('degrees', [90, 180, 270])
def test_turning_is_counter_clockwise(degrees: int) -> None:
    for fitted, given in ((fit_picture, PICTURE), (fit_depth, DEPTH)):
        turned = fitted(given, camera(rotate=degrees))
        np.testing.assert_array_equal(turned, np.rot90(given, degrees // 90))
        assert turned.flags.c_contiguous


@pytest.mark.parametrize('fields', [{}, {'size': (4, 6)}, {'size': (4, 6), 'resize': 'pad'}])
def test_what_needs_no_change_is_not_copied(fields: dict[str, object]) -> None:
    assert fit_picture(PICTURE, camera(**fields)) is PICTURE
    assert fit_depth(DEPTH, camera(**fields)) is DEPTH


def test_any_layout_in_memory_is_taken() -> None:
    flipped = PICTURE[::-1, ::-1, ::-1]
    for fields in ({}, {'rotate': 90}, {'crop': (1, 1, 3, 3)}, {'size': (2, 3)}):
        fitted = fit_picture(flipped, camera(**fields))
        assert fitted.flags.c_contiguous
        np.testing.assert_array_equal(fitted, fit_picture(flipped.copy(), camera(**fields)))


@pytest.mark.parametrize('size', [(2, 3), (1, 2), (4, 2)])
def test_shrinking_averages_areas(size: tuple[int, int]) -> None:
    height, width = size
    means = PICTURE.reshape(height, 4 // height, width, 6 // width, 3).astype(float).mean(axis=(1, 3))
    np.testing.assert_allclose(fit_picture(PICTURE, camera(size=size)), means, atol=0.51)


def test_enlarging_is_linear_between_the_middles_of_pixels() -> None:
    row = np.array([[[0, 0, 0], [100, 100, 100]]], np.uint8)
    assert fit_picture(row, camera(size=(1, 4)))[0, :, 0].tolist() == [0, 25, 75, 100]


def test_depth_is_never_mixed() -> None:
    for size in ((2, 3), (8, 12), (3, 5), (7, 2)):
        assert set(fit_depth(DEPTH, camera(size=size)).reshape(-1)) <= set(DEPTH.reshape(-1))
    nan = np.array([[np.nan, 2.0]], np.float32)
    np.testing.assert_array_equal(fit_depth(nan, camera(size=(1, 4))), [[np.nan, np.nan, 2.0, 2.0]])


@pytest.mark.parametrize(
    ('given', 'size', 'inner'),
    [
        ((4, 6), (6, 6), (slice(1, 5), slice(0, 6))),  # wider than what is wanted: bars above and below
        ((4, 6), (4, 8), (slice(0, 4), slice(1, 7))),  # narrower: bars left and right
        ((4, 6), (7, 6), (slice(1, 5), slice(0, 6))),  # the odd row goes below
        ((480, 640), (224, 224), (slice(28, 196), slice(0, 224))),
        ((1, 1000), (10, 10), (slice(4, 5), slice(0, 10))),  # never less than a row
        ((3, 2), (2, 3), (slice(0, 2), slice(1, 2))),
    ],
)
def test_padding_keeps_proportions_around_the_middle(
    given: tuple[int, int], size: tuple[int, int], inner: tuple[slice, slice]
) -> None:
    wanted = camera(size=size, resize='pad')
    picture = fit_picture(np.full((*given, 3), 9, np.uint8), wanted)
    depth = fit_depth(np.full(given, 9, np.float32), wanted)
    assert picture.shape == (*size, 3) and depth.shape == size
    outside = np.ones(size, bool)
    outside[inner] = False
    assert (picture[inner] == 9).all() and (picture[outside] == 0).all()
    assert (depth[inner] == 9).all() and np.isnan(depth[outside]).all()


@pytest.mark.parametrize('crop', [(0, 0, 5, 3), (0, 4, 4, 3), (9, 9, 1, 1)])
def test_a_crop_beyond_the_picture_is_refused(crop: tuple[int, int, int, int]) -> None:
    for fitted, given in ((fit_picture, PICTURE), (fit_depth, DEPTH)):
        with pytest.raises(ImageError, match=r'crop \[.*\] reaches beyond a picture of 4 rows and 6 columns'):
            fitted(given, camera(crop=crop))
