"""Coverage: of a model that is right, by hand, and of one that was fitted."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from known import all_to_test

from lapae.errors import ConfigError
from lapae.evaluate.coverage import CoverageOptions, by_tenth, evaluate
from lapae.evaluate.held_out import held_out


def test_a_model_that_is_right_covers_what_it_promises(normal):
    x = np.random.default_rng(0).normal(size=(4000, 3))
    found = evaluate(normal, all_to_test(x), CoverageOptions(level=0.8, limit=None))
    assert found.inside == pytest.approx(0.8, abs=4 * np.sqrt(0.16 / 12_000))
    # values are independent, so that the standard error is that of a share
    assert found.standard_error == pytest.approx(np.sqrt(0.16 / 12_000), rel=0.1)
    for rate, share in found.flagged.items():
        assert share == pytest.approx(rate, abs=4 * np.sqrt(rate / 4000))
    assert [column.width for column in found.columns.values()] == pytest.approx([2 * 1.2815515655446004] * 3)


def test_by_hand(normal):
    x = np.array([[0.0, 2.0, np.nan], [3.0, np.nan, np.nan], [0.1, 0.2, np.nan], [np.nan, 5.0, np.nan]])
    found = evaluate(normal, all_to_test(x), CoverageOptions())
    # inside ± 1.645: two of three, one of three, and nothing known
    assert {name: (c.inside, c.n) for name, c in found.columns.items()} == {
        "0": (pytest.approx(2 / 3), 3),
        "1": (pytest.approx(1 / 3), 3),
    }
    assert found.inside == pytest.approx(3 / 6)
    assert found.to_dict()["p_values"] == {
        "0.01": pytest.approx(1 / 3),
        "0.05": pytest.approx(1 / 3),
        "0.1": pytest.approx(1 / 3),
    }
    assert found.to_dict()["n_data"] == 3, "the row without a p-value is left out"
    json.dumps(found.to_dict(), allow_nan=False)
    assert "of 3 test samples" in str(found.table())


def test_tenths_of_a_column(normal):
    x = np.random.default_rng(0).normal(size=(4000, 3))
    x[:5, 0] = np.nan
    found = evaluate(normal, all_to_test(x), CoverageOptions(level=0.8, limit=None))
    # nothing is known of a value from the others: intervals hold all but the lowest and the highest tenth
    assert found.tenths[1:-1] == pytest.approx([1.0] * 8, abs=0.15)
    assert sum(found.tenths) / 10 == pytest.approx(found.inside, abs=1e-3)  # pyright: ignore
    assert "tenth 10 (the highest)" in str(found.table())
    values = np.array([[1.0, 0], [1, 1], [1, 2], [np.nan, 3]])
    share = by_tenth(values, values < 2, ~np.isnan(values) & (values != 3))
    assert share == (None, 1.0, None, 1.0, None, 1.0, 0.0, None, None, None)


def test_values_that_are_in_or_out_together_have_a_larger_error(normal):
    one = np.random.default_rng(0).normal(size=(500, 1))
    found = evaluate(normal, all_to_test(np.repeat(one, 3, axis=1)), CoverageOptions(limit=None))
    assert found.inside is not None
    assert found.standard_error == pytest.approx(np.sqrt(found.inside * (1 - found.inside) / 500), rel=0.01)


def test_a_fitted_model_on_new_rows(fitted, new):
    found = evaluate(fitted, new, CoverageOptions())
    assert found.inside == pytest.approx(0.9, abs=0.05)
    assert found.flagged[0.05] == pytest.approx(0.05, abs=0.04)
    assert set(found.columns) == {"length", "width"}, "words have no interval"
    assert set(found.figures()) == {"coverage_p_values"}


def test_rows_that_had_a_part_in_training_are_a_warning(normal):
    x = np.zeros((20, 3))
    whole = all_to_test(x)
    no_test = replace(whole, valid=whole.test, test=whole.train)
    with pytest.warns(UserWarning, match="evaluated on 20 validation samples"):
        assert evaluate(normal, no_test, CoverageOptions()).split == "validation"
    with pytest.raises(ConfigError, match="--data FILE"):
        held_out(replace(no_test, valid=whole.train), None, 0)


def test_a_limit_takes_some_at_random():
    x = np.arange(300.0).reshape(100, 3)
    some = held_out(all_to_test(x, y=np.arange(100)), 10, 1)
    assert len(some.x) == 10
    assert some.y is not None
    np.testing.assert_array_equal(some.x, x[some.y])
    assert not np.array_equal(some.y, np.arange(10))
