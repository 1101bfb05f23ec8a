"""Imputation: what is hidden, the errors by hand, and a model that was fitted."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from known import Normal, all_to_test
from sklearn.datasets import load_wine

from lapae import LaplacianAutoencoder
from lapae.errors import ConfigError
from lapae.evaluate.imputation import ImputationOptions, evaluate, hide
from lapae.model import Model
from lapae.space import Space


def test_known_values_are_hidden_at_random_and_never_all_of_a_sample():
    rng = np.random.default_rng(0)
    x = np.where(rng.random((2000, 4)) < 0.3, np.nan, 1.0)
    x[0] = np.nan
    hidden = hide(x, 0.6, 1)
    assert not (hidden & np.isnan(x)).any()
    left = (~np.isnan(x) & ~hidden).sum(1)
    assert left[1:][~np.isnan(x[1:]).all(1)].min() == 1
    complete = ~np.isnan(x).any(1)
    # of four values all are hidden with probability 0.6⁴, and one of them is then kept
    assert hidden[complete].mean() == pytest.approx(0.6 - 0.6**4 / 4, abs=0.03)
    assert not np.array_equal(hidden, hide(x, 0.6, 2))
    np.testing.assert_array_equal(hidden, hide(x, 0.6, 1))


def test_errors_by_hand(normal):
    x = np.random.default_rng(0).normal(size=(3000, 3))
    found = evaluate(normal, all_to_test(x), ImputationOptions(missing=0.3, limit=None))
    hidden = hide(x, 0.3, 0)
    for j, column in enumerate(found.columns.values()):
        truth = x[hidden[:, j], j]
        assert column.n == len(truth)
        assert column.mae == pytest.approx(np.abs(truth).mean())
        assert column.rmse == pytest.approx(np.sqrt(np.square(truth).mean()))
        assert column.relative == pytest.approx(1, abs=0.02), "0 is about the median"
    assert found.inside == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / hidden.sum()))
    assert found.missing == pytest.approx(hidden.mean())
    json.dumps(found.to_dict(), allow_nan=False)
    assert "inside 90 %" in str(found.table())
    assert len(found.tenths) == 10


def test_a_fitted_model_on_new_rows(fitted, new):
    found = evaluate(fitted, new, ImputationOptions())
    assert found.inside == pytest.approx(0.9, abs=0.06)
    assert found.relative is not None
    assert found.relative < 0.6, "columns follow from one another"
    words = found.columns["kind"]
    assert words.wrong is not None
    assert words.wrong < 0.4, "two of three would be wrong by chance"
    assert words.mae is words.inside is None


def test_a_row_that_the_model_has_seen_gives_nothing_to_itself():
    """Validation rows are among those that a table is filled in from: as new rows they would be their own donors."""
    model = LaplacianAutoencoder(random_state=0, device="cpu").fit(load_wine(return_X_y=True)[0]).model_
    assert model.rows is not None
    rows = all_to_test(model.space.to_user(model.rows.valid.numpy()), space=model.space)
    with pytest.warns(UserWarning, match="validation samples"):
        found = evaluate(model, replace(rows, valid=rows.test, test=rows.train), ImputationOptions())
    copied = evaluate(model, rows, ImputationOptions())
    assert found.relative is not None
    assert copied.relative is not None
    assert copied.relative < 0.7 * found.relative


def test_the_median_is_that_of_each_pixel():
    """Pixels that never change are known by their median: there is nothing to compare with."""
    model = cast(Model, Normal(Space("image", (1, 1, 2))))
    x = np.tile(np.array([0.0, 1.0]), (60, 1)).reshape(60, 1, 1, 2)
    found = evaluate(model, all_to_test(x, space=model.space), ImputationOptions())
    assert found.columns["pixels"].mae is not None
    assert found.columns["pixels"].relative is None


def test_nothing_to_hide(normal):
    with pytest.raises(ConfigError, match="no value was hidden in 5 samples"):
        evaluate(normal, all_to_test(np.full((5, 3), np.nan)), ImputationOptions())
