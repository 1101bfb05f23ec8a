from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lapae.errors import DataError
from lapae.space import Column, Space, for_trained
from lapae.space.checks import check_units
from lapae.space.scaling import standardise

BYTES = np.arange(256, dtype=np.uint8).reshape(64, 1, 2, 2)


def again(space: Space) -> Space:
    return Space.from_dict(json.loads(json.dumps(space.to_dict())))


def test_bytes_are_the_same_in_numpy_and_torch():
    space = Space.of(BYTES)
    array, tensor = space.to_model(BYTES), space.convert(torch.from_numpy(BYTES))
    assert array.dtype == np.float32
    assert tensor.dtype == torch.float32
    np.testing.assert_array_equal(array, tensor.numpy())
    assert (array.min(), array.max()) == (0, 1)
    np.testing.assert_array_equal(space.to_user(array).round(), BYTES)


SHAPES = hnp.array_shapes(min_dims=2, max_dims=3, min_side=2)


@given(hnp.arrays(np.float64, SHAPES, elements=st.floats(-1e6, 1e6, width=32)))
def test_to_the_model_and_back(x):
    space = Space.of(x)
    assert again(space) == space
    z = space.to_model(x)
    assert z.shape == (len(x), *space.model_shape)
    near = {"rtol": 1e-5, "atol": 1e-5 * np.abs(x).max()}
    assert np.allclose(space.to_user(z), x, **near)
    deviation = space.to_user(z.astype(np.float64), deviation=True)
    assert np.allclose(deviation, x - space.to_user(np.zeros(z.shape)), **near)


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, min_side=2), elements=st.floats(-1e6, 1e6)))
def test_columns_are_standardised(x):
    x = x.astype(np.float32).astype(np.float64)
    offset, scale = standardise(x)
    constant = (x == x[:1]).all(0)
    z = Space.of(x).to_model(x).astype(np.float64)
    assert np.allclose(z.mean(0), 0, atol=1e-4)
    assert (z[:, constant] == 0).all()
    np.testing.assert_array_equal(scale[constant], np.where(offset == 0, 1, np.abs(offset))[constant])
    assert np.allclose(z.std(0)[~constant], 1, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "axes"), [((50, 7, 3), (0, 1)), ((50, 3, 5, 6), (0, 2, 3)), ((50, 9, 5, 6), (0, 1, 2))]
)
def test_windows_and_arrays_are_standardised_per_channel(shape, axes):
    x = np.random.default_rng(0).normal(size=shape) * 7 + 1000
    space = Space.of(x)
    assert space.kind == "array"
    z = space.to_model(x)
    np.testing.assert_allclose(z.mean(axes), 0, atol=1e-5)
    np.testing.assert_allclose(z.std(axes), 1, atol=1e-5)
    assert np.ptp(z.mean(0)) > 0.01  # and not per element
    assert again(space) == space


@pytest.mark.parametrize(
    ("shape", "layout", "model_shape"),
    [
        ((5, 6), "gray", (1, 5, 6)),
        ((3, 5, 6), "plain", (3, 5, 6)),
        ((5, 6, 3), "last", (3, 5, 6)),
        ((5, 6, 1), "last", (1, 5, 6)),
    ],
)
def test_layouts_of_images(shape, layout, model_shape):
    x = np.random.default_rng(0).random((9, *shape))
    space = Space.of(x)
    assert (space.kind, space.layout, space.model_shape) == ("image", layout, model_shape)
    z = space.to_model(x)
    assert z.shape == (9, *model_shape)
    np.testing.assert_allclose(space.to_user(z), x, atol=1e-6)
    np.testing.assert_allclose(space.to_user(np.stack([z, z])), np.stack([x, x]), atol=1e-6)
    assert space.convert(torch.from_numpy(x)).shape == z.shape
    assert again(space) == space


def test_images_may_come_in_another_layout():
    x = np.random.default_rng(0).integers(0, 256, (9, 5, 6, 3), dtype=np.uint8)
    space = Space.of(x)
    np.testing.assert_array_equal(space.code(np.moveaxis(x, -1, 1)), x)
    np.testing.assert_array_equal(space.code(x.tolist()), x)
    np.testing.assert_array_equal(space.code(torch.from_numpy(x)), x)
    gray = Space.of(x[..., 0])
    np.testing.assert_array_equal(gray.code(x[..., :1]), x[..., 0])
    with pytest.raises(DataError, match=r"X: data of shape \(5, 6\), the model takes data of shape \(5, 6, 3\)"):
        space.code(x[..., 0])


@pytest.mark.parametrize(
    ("value", "match"), [(256.0, "from 0 to 256"), (-1.0, "from -1 to 0"), (np.inf, "row 2.*infinite")]
)
def test_values_that_no_image_has(value, match):
    space = Space.of(np.zeros((4, 5, 6), np.uint8))
    x = np.zeros((4, 5, 6))
    x[2, 1, 1] = value
    with pytest.raises(DataError, match=match):
        space.to_model(x)


def test_nan_is_left_out():
    x = np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan], [np.nan, 5.0, np.nan]])
    offset, scale = standardise(x)
    np.testing.assert_allclose(offset, [2, 5, 0])
    np.testing.assert_allclose(scale, [1, 5, 1])
    np.testing.assert_array_equal(np.isnan(Space.of(x).to_model(x)), np.isnan(x))


def test_constant_column_of_a_number_that_is_no_binary_fraction():
    space = Space.of(np.full((1000, 1), 0.1))
    assert space.scale == 0.1
    assert (space.to_model(np.full((5, 1), 0.1)) == 0).all()


def test_a_change_of_a_constant_is_seen_in_its_own_magnitude():
    space = Space.of(np.tile([1e-6, 1e6, 0.0], (50, 1)))
    z = space.to_model(np.array([[1e-3, 1e6 + 20, 0.5]]))[0]
    assert z[0] > 900
    assert abs(z[1]) < 1e-4
    assert z[2] == 0.5


def test_small_deviation_beside_a_large_offset():
    x = 1e9 + np.random.default_rng(0).normal(size=(500, 1))
    assert abs(Space.of(x).to_model(x).std() - 1) < 1e-4


def test_chunks_do_not_matter(monkeypatch):
    for shape in ((100, 3), (100, 4, 3)):
        x = np.random.default_rng(0).normal(size=shape)
        whole = Space.of(x)
        with monkeypatch.context() as patch:
            patch.setattr("lapae.space.scaling.CHUNK_BYTES", 7 * 24)
            parts = Space.of(x)
        np.testing.assert_allclose(parts.offset, whole.offset)
        np.testing.assert_allclose(parts.scale, whole.scale)


def test_tensors_keep_their_precision():
    space = Space("table", (2,), offset=np.array([1.0, 2.0]), scale=np.array([2.0, 4.0]))
    z = space.convert(torch.tensor([[3.0, 6.0]], dtype=torch.float64).expand(5, 2))
    assert z.dtype == torch.float64
    assert (z == 1).all()


def test_values_too_large_name_the_column():
    with pytest.raises(DataError, match="column 'b'"):
        Space.of(np.array([[0, 1e308], [1, -1e308], [2, 1e308]]), columns=(Column("a"), Column("b")))


def test_absurd_units():
    columns = (Column("a"), Column("b"))
    space = Space("table", (2,), offset=np.array([0.0, 50.0]), scale=np.array([1.0, 5.0]), columns=columns)
    x = np.tile([5.0, 50.0], (20, 1))
    check_units(space, x)
    check_units(space, x[:0])
    check_units(space, np.full((3, 2), np.nan))
    with pytest.raises(DataError, match="another range: those of feature 'b' are about 50000"):
        check_units(space, x * [1, 1000])
    check_units(space, np.tile([5.0, 50_000.0], (3, 1)))  # an outlier, in a few rows


@pytest.mark.parametrize(
    "changed",
    [
        {"scale": 0},
        {"scale": [0.0, 1.0]},
        {"offset": "a"},
        {"offset": [[0], [0, 1]]},
        {"offset": float("nan")},
        {"offset": [0, 1, 2]},
        {"offset": [[[0, 1]]]},
        {"kind": "song"},
        {"layout": "gray"},
        {"layout": 3},
        {"shape": []},
        {"shape": [2.0]},
        {"n_data": 0},
        {"columns": [{"name": "a", "kind": "number", "categories": [], "dtype": "float64"}]},
        {"columns": [{"name": "a"}, {"name": "b"}]},
        {"more": 1},
        {"unit": 0.0},
        {"unit": float("inf")},
        {"unit": [1.0]},
    ],
)
def test_bad_dictionaries(changed):
    good = Space.of(np.arange(10.0).reshape(5, 2)).to_dict()
    assert Space.from_dict(good).to_dict() == good
    with pytest.raises((ValueError, TypeError, KeyError)):
        Space.from_dict(good | changed)


def test_data_of_a_model_saved_before_there_were_units():
    space = Space.of(np.arange(10.0).reshape(5, 2))
    saved = space.to_dict()
    assert saved.pop("unit") is None
    assert Space.from_dict(saved) == space
    assert again(for_trained(space, integers=False, logits=False)).unit == 1


def test_equality():
    space = Space("table", (2,), offset=np.zeros(2))
    assert space == replace(space, offset=np.zeros(2))
    assert space != replace(space, offset=np.ones(2))
    assert space != "space"


@pytest.mark.parametrize(
    ("x", "told"),
    [
        (np.zeros((1797, 8, 8), np.uint8), "1,797 gray images of 8x8"),
        (np.zeros((3, 8, 9, 3), np.uint8), "3 colour images of 8x9"),
        (np.ones((3, 4)), "3 rows of 4 columns"),
        (np.full((3, 4, 5), 7.0), "3 arrays of 4x5"),
    ],
)
def test_in_a_line(x, told):
    assert Space.of(x).describe() == told


@pytest.mark.parametrize(
    ("x", "kind", "most"),
    [
        (np.full((5, 9, 9), 200, np.int64), "image", 255),
        (np.full((5, 9, 9), 200.0), "image", 255),
        (np.full((5, 8, 8), 16.0), "image", 16),
        (np.full((5, 9, 9), 200.5), "array", None),  # a window may have such values
        (np.full((5, 9, 9, 3), 200.5), "image", 255),
        (np.full((5, 9, 3), 200.0), "array", None),
        (np.full((5, 9, 9), 256.0), "array", None),
        (np.full((5, 9, 9), -1.0), "array", None),
        (np.full((5, 9, 9), 0.5), "image", 1),
        (np.ones((5, 9, 9), bool), "image", 1),
    ],
)
def test_which_numbers_are_images(x, kind, most):
    space = Space.of(x)
    assert space.kind == kind
    if most is not None:
        assert space.most == most
        np.testing.assert_allclose(space.to_model(space.code(x)).max(), x.max() / most)


def test_bytes_and_floats_of_the_same_images():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)
    of_bytes, of_floats = Space.of(pixels), Space.of(pixels / 255)
    z = of_bytes.to_model(of_bytes.code(pixels))
    np.testing.assert_allclose(of_floats.to_model(of_floats.code(pixels)), z, atol=1e-6)
    np.testing.assert_allclose(of_bytes.to_model(of_bytes.code(pixels.astype(float))), z)
    with pytest.raises(DataError, match=r"floats from .* values from 0 to 255: multiply them by 255"):
        of_bytes.to_model(of_bytes.code(pixels / 255))
    with pytest.raises(DataError, match="floats from 0 to 255, the model takes images with values from 0 to 1"):
        of_floats.to_model(of_floats.code(pixels.astype(float)))
    holes = np.where(pixels > 200, np.nan, np.minimum(pixels, 1).astype(float))  # almost black, with holes
    assert np.nanmax(of_bytes.to_model(of_bytes.code(holes))) == np.float32(1 / 255)
