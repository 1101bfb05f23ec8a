from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lapae.data import DataError, Scaling
from lapae.data.scaling import standardise

BYTES = np.arange(256, dtype=np.uint8)


def test_bytes_scale_the_same_in_numpy_and_torch():
    scaling = Scaling(0.0, 255.0)
    array, tensor = scaling.apply(BYTES), scaling.apply(torch.from_numpy(BYTES))
    assert array.dtype == np.float32
    assert tensor.dtype == torch.float32
    np.testing.assert_array_equal(array, tensor.numpy())
    assert (array.min(), array.max()) == (0, 1)
    np.testing.assert_array_equal(scaling.invert(array).round(), BYTES)


SHAPES = hnp.array_shapes(min_dims=2, max_dims=3, min_side=2)


@given(hnp.arrays(np.float64, SHAPES, elements=st.floats(-1e6, 1e6, width=32)))
def test_standardised_and_back(x):
    scaling = standardise(x)
    z = scaling.apply(x).astype(np.float64)
    constant = (x == x[:1]).all(0)
    assert np.allclose(z.mean(0), 0, atol=1e-4)
    assert (z[:, constant] == 0).all()
    np.testing.assert_array_equal(np.asarray(scaling.scale)[constant], 1)
    assert np.allclose(z.std(0)[~constant], 1, atol=1e-3)
    assert np.allclose(scaling.invert(z), x, rtol=1e-5, atol=np.ptp(x) * 1e-5)
    assert Scaling.from_dict(json.loads(json.dumps(scaling.to_dict()))) == scaling


def test_nan_is_left_out():
    x = np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan], [np.nan, 5.0, np.nan]])
    scaling = standardise(x)
    np.testing.assert_allclose(scaling.offset, [2, 5, 0])
    np.testing.assert_allclose(scaling.scale, [1, 1, 1])
    np.testing.assert_array_equal(np.isnan(scaling.apply(x)), np.isnan(x))


def test_constant_column_of_a_number_that_is_no_binary_fraction():
    scaling = standardise(np.full((1000, 1), 0.1))
    assert scaling.scale == 1
    assert (scaling.apply(np.full((5, 1), 0.1)) == 0).all()


def test_small_deviation_beside_a_large_offset():
    x = 1e9 + np.random.default_rng(0).normal(size=(500, 1))
    scaling = standardise(x)
    assert abs(scaling.apply(x).std() - 1) < 1e-4


def test_chunks_do_not_matter(monkeypatch):
    x = np.random.default_rng(0).normal(size=(100, 3))
    whole = standardise(x)
    monkeypatch.setattr("lapae.data.source.chunks.__defaults__", (7 * 24,))
    parts = standardise(x)
    np.testing.assert_allclose(parts.offset, whole.offset)
    np.testing.assert_allclose(parts.scale, whole.scale)


def test_tensors_of_any_leading_shape():
    scaling = Scaling(np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    x = torch.tensor([[3.0, 6.0]], dtype=torch.float64).expand(5, 4, 2)
    z = scaling.apply(x)
    assert z.dtype == torch.float64
    assert (z == 1).all()
    torch.testing.assert_close(scaling.invert(z), x)
    assert scaling.invert(z.float()).dtype == torch.float32


def test_values_too_large_name_the_column():
    with pytest.raises(DataError, match="column 'b'"):
        standardise(np.array([[0, 1e308], [1, -1e308], [2, 1e308]]), ("a", "b"))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"offset": 0, "scale": 1, "more": 2},
        {"offset": "a", "scale": 1},
        {"offset": [0, 1], "scale": 1},
        {"offset": [[0], [0, 1]], "scale": 1},
        {"offset": 0, "scale": 0},
        {"offset": float("nan"), "scale": 1},
    ],
)
def test_bad_dictionaries(values):
    with pytest.raises(DataError, match="scal"):
        Scaling.from_dict(values)


def test_equality():
    assert Scaling(0.0, 2.0) == Scaling.from_dict({"offset": 0, "scale": 2})
    assert Scaling(0.0, 2.0) != Scaling(np.zeros(2), np.full(2, 2.0))
    assert Scaling() != "scaling"
