"""Cross-conformal p-values: counted over all rows, each by the model that has not seen it; kept with a run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from lapae import LaplacianAutoencoder
from lapae.cross import CROSS, FOLDS, CrossCalibration, folds, together
from lapae.generate.rows import RowSampler

rng = np.random.default_rng(0)
X = rng.normal(size=(150, 1)) * [1.0, 2.0, -1.0] + 0.2 * rng.normal(size=(150, 3))
NEW = np.concatenate([X[:5] + 0.01, [[1.0, -2.0, -1.0]], [[np.nan] * 3]])


@pytest.fixture(scope="module")
def model():
    found = LaplacianAutoencoder(latent_dim=1, epochs=3, random_state=0, device="cpu").fit(X)
    found.p_value(NEW, calibration="cross")
    return found


def test_p_values_count_the_rows_that_each_model_has_not_seen(model):
    cross = model._cross_calibration()
    rows = model.model_.sampler.rows.numpy()
    fold = folds(together(model.model_.sampler), model.model_.seed)
    p = model.p_value(NEW, calibration="cross")
    for x, found in zip(NEW[:-1], p[:-1], strict=True):
        count = 0
        for k, of in enumerate(cross.models):
            ours, theirs = of.anomaly_score(x[None])[0], of.anomaly_score(rows[fold == k])[0]
            count += (theirs >= ours).sum()
        assert found == pytest.approx((1 + count) / (len(X) + 1))
    assert p[5] == 1 / 151 < model.p_value(NEW)[5]
    assert np.isnan(p[6])


def test_no_model_has_seen_a_row_that_it_calibrates(model):
    rows = model.model_.sampler.rows.numpy()
    fold = folds(together(model.model_.sampler), model.model_.seed)
    assert np.bincount(fold).tolist() == [30] * FOLDS
    for k, of in enumerate(model._cross_calibration().models):
        known = {row.tobytes() for row in of.sampler.rows.numpy()}
        assert {row.tobytes() for row in rows[fold != k]} == known


def test_copies_and_groups_are_in_one_fold_and_count_once():
    rows = torch.from_numpy(np.concatenate([X, X]))
    fold = folds(together(RowSampler(rows)), 0)
    np.testing.assert_array_equal(fold[:150], fold[150:])
    group = torch.arange(150) // 3
    fold = folds(together(RowSampler(rows, torch.cat([group, group + 50]))), 0)
    np.testing.assert_array_equal(fold, np.tile(fold[:150:3].repeat(3), 2))
    names = np.array([f"customer {i}" for i in range(30)]).repeat(4)
    of = np.random.default_rng(1).normal(size=(30, 3)).repeat(4, 0)  # rows of one customer are alike
    table = of + 0.01 * np.random.default_rng(2).normal(size=(120, 3))
    model = LaplacianAutoencoder(latent_dim=1, epochs=2, random_state=0, device="cpu").fit(table, groups=names)
    p = model.p_value(table + 5, calibration="cross")
    sampler = model.model_.sampler
    assert sampler is not None
    assert sampler.groups is not None
    assert sampler.groups.unique().numel() == 30
    assert p.min() == pytest.approx(1 / 31)  # a row of each customer calibrates
    which = [int(np.flatnonzero((table == row).all(1))[0]) for row in sampler.rows.numpy()]
    np.testing.assert_array_equal(np.array(which) // 4, sampler.groups.numpy())


def test_discoveries_take_them(model):
    new = np.concatenate([X[:40] + 0.01, np.tile([[1.0, -2.0, -1.0]], (3, 1))])
    assert model.discoveries(new, 0.1, calibration="cross")[40:].all()
    assert not model.discoveries(new, 0.1)[40:].any()  # 3 of 43 take p-values of 0.007 at most
    with pytest.raises(ValueError, match="calibration='full': expected 'split' or 'cross'"):
        model.discoveries(new, 0.1, calibration="full")  # pyright: ignore[reportArgumentType]


def test_a_run_keeps_them(model, tmp_path, monkeypatch):
    p = model.p_value(NEW, calibration="cross")
    model.save(tmp_path / "run")
    assert (tmp_path / "run" / CROSS).is_dir()
    monkeypatch.setattr(CrossCalibration, "fit", None)  # nothing is trained again
    again = LaplacianAutoencoder.load(tmp_path / "run")
    np.testing.assert_allclose(again.p_value(NEW, calibration="cross"), p, atol=1e-12)


def test_levels_are_found_by_their_names():
    t = rng.normal(size=90)
    frame = pd.DataFrame({"size": t, "twice": 2 * t, "city": np.where(t > 0, "Rome", "Oslo")})
    model = LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(frame)
    p = model.p_value(frame, calibration="cross")
    codes = model.model_.space.code(frame)
    np.testing.assert_array_equal(model.p_value(codes, calibration="cross"), p)
    assert 0.3 < p.mean() < 0.7


def test_what_has_no_rows_to_train_again_is_refused():
    images = np.random.default_rng(0).random((40, 8, 8))
    model = LaplacianAutoencoder(epochs=1, random_state=0, device="cpu").fit(images)
    with pytest.raises(ValueError, match="for tables of up to 128 columns"):
        model.p_value(images, calibration="cross")
