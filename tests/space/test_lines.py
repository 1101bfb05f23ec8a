"""Columns that are the same as another one, in other units."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from lapae import LaplacianAutoencoder
from lapae.space import Column
from lapae.space.levels import MOST_NUMBERS, confirmed, copies, with_levels
from lapae.space.lines import Line, fit

PAIRS = {"y": "copy", "celsius": "fahrenheit", "net": "gross", "iso": "compact"}


def stays(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 3))
    y = np.round(100 + 10 * z[:, 0], 2)
    day = pd.date_range("2020-01-01", periods=900)[rng.integers(0, 900, n)]
    celsius = np.round(15 + 8 * z[:, 1], 1)
    net = np.round(np.exp(4 + 0.5 * z[:, 2]), 2)
    columns = {"y": y, "copy": y, "celsius": celsius, "fahrenheit": np.round(1.8 * celsius + 32, 1)}
    columns |= {"net": net, "gross": np.round(1.19 * net, 2), "other": z.sum(1) + rng.normal(size=n)}
    return pd.DataFrame(columns | {"iso": day.strftime("%Y-%m-%d"), "compact": day.strftime("%Y%m%d").astype(int)})


@pytest.fixture(scope="module")
def fitted() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(random_state=0, device="cpu", epochs=3).fit(stays(500, 0))


def test_lines_are_found_with_the_numbers_that_were_meant():
    rng = np.random.default_rng(0)
    net = np.round(rng.gamma(2, 50, 800), 2)
    gross = np.round(net * 1.19, 2)
    there = fit(net, gross, 0.01, 0.01)
    assert there is not None
    assert (there.a, there.b, there.unit) == (1.19, 0, 0.01)
    back = fit(gross, net, 0.01, 0.01)
    assert back is not None
    assert back.a == 1 / 1.19
    warm = rng.normal(15, 8, 800)  # both were rounded
    celsius, fahrenheit = np.round(warm, 1), np.round(1.8 * warm + 32, 1)
    both = fit(celsius, fahrenheit, 0.1, 0.1)
    assert both is not None
    assert both.reach == pytest.approx(0.14, abs=1e-4)
    low, high = both.interval(celsius)
    assert ((low <= fahrenheit) & (fahrenheit <= high)).all()
    assert (high - low).max() <= 0.3
    assert fit(net, net + rng.normal(0, 1, 800), 0.01, 0) is None
    assert fit(net.round(-2), net.round(-2), 1, 1) is None  # too few values
    assert fit(net, np.where(np.arange(800) == 5, gross + 1, gross), 0.01, 0.01) is None


def test_columns_say_on_which_line_they_are_and_held_out_rows_confirm_it():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    x[:, 2] = 3 * x[:, 0] - 1
    x[::5, 2] = np.nan
    found = with_levels([Column(name) for name in "abcd"], x)
    assert [column.given_by for column in found] == ["c", "", "a", ""]
    assert all(Column.from_dict(json.loads(json.dumps(column.to_dict()))) == column for column in found)
    assert confirmed(found, x) == found
    x[:10, 2] += 1
    assert [column.given_by for column in confirmed(found, x)] == [""] * 4
    assert found[2].line is not None
    with pytest.raises(ValueError, match="slope"):
        Column.from_dict({**found[2].to_dict(), "line": {"a": 0, "b": 1, "reach": 0, "unit": 0}})
    assert copies([Column("a")] * (MOST_NUMBERS + 1), np.zeros((2, MOST_NUMBERS + 1))) == {}


def test_a_line_keeps_decimal_places():
    line = Line(1.19, 0.0, 0.005, 0.01)
    np.testing.assert_array_equal(line(np.array([1.0, 0.99, np.nan])), [1.19, 1.18, np.nan])
    np.testing.assert_array_equal(line.interval(np.array([1.0]))[0], [1.19])


def test_missing_values_are_computed(fitted):
    rows = stays(200, 1)
    for pair in PAIRS.items():
        for name in pair:
            lacking = rows.assign(**{name: None if name == "iso" else np.nan})
            filled, (low, high) = fitted.impute(lacking)[name], fitted.impute_interval(lacking)
            if name == "iso":
                assert [str(v)[:10] for v in filled] == rows["iso"].tolist()
                assert [str(v)[:10] for v in low[name]] == [str(v)[:10] for v in high[name]] == rows["iso"].tolist()
                continue
            assert (filled.astype(float) == rows[name]).mean() >= 0.98, name  # a half may be rounded up or down
            assert ((low[name] <= rows[name]) & (rows[name] <= high[name])).mean() >= 0.98
            assert (high[name] - low[name]).mean() <= 1e-3


def test_values_beside_the_line_are_found_and_named_and_exported(fitted, tmp_path):
    rows = stays(300, 2)
    assert (fitted.p_value(rows) <= 0.05).mean() <= 0.1
    for one, other in list(PAIRS.items())[:3]:
        wrong = rows.assign(**{other: (1.1 * rows[other]).round(2)})
        assert (fitted.p_value(wrong) <= 0.05).mean() >= 0.95
        assert fitted.reasons(wrong[:60])["feature"].isin([one, other]).mean() >= 0.95
    fitted.save(tmp_path / "run")
    some = rows[:40].assign(copy=(rows["copy"] * np.where(rows.index % 2, 1.0, 1.1)).round(2))
    np.testing.assert_array_equal(LaplacianAutoencoder.load(tmp_path / "run").p_value(some), fitted.p_value(some))
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    from lapae_runtime import Detector

    fitted.export(tmp_path / "model.onnx")
    found = Detector.load(tmp_path / "model.onnx").score(some.to_dict("records"))
    np.testing.assert_allclose(found.p_value, fitted.p_value(some), atol=2e-2)
    np.testing.assert_allclose(found.anomaly_score, -fitted.score_samples(some), rtol=1e-2, atol=1e-3)
