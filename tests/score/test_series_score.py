"""Parts of the score of a series, by their definitions, and what they find where held-out windows are few."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score

from lapae.config import Config, TrainConfig
from lapae.data import Data
from lapae.fit import fit
from lapae.score.images import standardising
from lapae.score.series import FLOOR, FREEDOM, TWO, Shapes, surprise, weights

WINDOW = 32


def walks(n: int, seed: int = 0) -> torch.Tensor:
    """Windows (n, 8, 2) whose second channel stands still in half of them."""
    x = torch.randn(n, 8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).cumsum(1)
    x[: n // 2, :, 1] = 3.0
    return x


def by_hand(x: np.ndarray, rows: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Mean squared distances (B, R) of windows without their levels."""
    flat = [((part - part.mean(1, keepdims=True)) / scale).reshape(len(part), -1) for part in (x, rows)]
    return ((flat[0][:, None] - flat[1][None]) ** 2).mean(2)


def test_distances_of_shapes_by_brute_force():
    rows, new = walks(40), walks(9, 1) + torch.tensor([100.0, -50.0])
    shapes = Shapes.fit(rows)
    scale = rows.reshape(-1, 2).std(0, correction=0)
    square = by_hand(new.numpy(), rows.numpy(), scale.numpy())
    found, gap = shapes(new)
    np.testing.assert_allclose(found, np.log(square.min(1) + FLOOR), rtol=1e-9)
    np.testing.assert_allclose(gap.mean(1), square.min(1), rtol=1e-9)
    left = by_hand(rows.numpy(), rows.numpy(), scale.numpy())
    place = np.arange(40)
    left[abs(place[:, None] - place) < 5] = np.inf
    np.testing.assert_allclose(shapes.left_out(rows, 5), np.log(left.min(1) + FLOOR), rtol=1e-9)
    assert shapes.left_out(rows, 40).isinf().all()


def test_many_windows_are_thinned_out(monkeypatch):
    monkeypatch.setattr("lapae.score.series.MOST_VALUES", 20 * 16)
    rows = walks(100)
    shapes = Shapes.fit(rows)
    assert len(shapes.rows) == 20
    assert shapes.left_out(rows, 10).isfinite().all()


def test_a_channel_that_stands_still_has_no_infinite_weight():
    rows = walks(40)
    rows[..., 1] = 7.0
    shapes, new = Shapes.fit(rows), walks(2)
    assert shapes(new)[0].isfinite().all()
    assert shapes.scale[1] == 1


def test_surprise_is_minus_the_log_density_of_a_t_distribution():
    t = torch.linspace(0, 30, 50, dtype=torch.float64)
    np.testing.assert_allclose(surprise(t), student.logpdf(0, FREEDOM) - student.logpdf(t, FREEDOM), atol=1e-9)
    assert surprise(-t).max() == 0


@pytest.mark.parametrize("n_parts", [4, 5])
def test_what_counts_as_unusual(n_parts):
    parts = torch.randn(2000, n_parts, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whiten = standardising(parts, TWO)
    assert whiten.shape == (n_parts + 3, n_parts)

    def anomaly(**at: float) -> float:
        gap = torch.zeros(1, n_parts, dtype=torch.float64)
        for name, value in at.items():
            gap[0, int(name[1])] = value
        return float(weights(gap, whiten).sum())

    for two_sided in ("p1", "p2"):
        assert min(anomaly(**{two_sided: side}) for side in (-3.0, 3.0)) > 3
    for one_sided in ("p0", "p3", *(["p4"] if n_parts > 4 else [])):
        assert anomaly(**{one_sided: 3.0}) > 3
        assert anomaly(**{one_sided: -3.0}) < 0.5


def plant(seed: int, n: int) -> np.ndarray:
    """A series (n, 6): sensors that follow three processes, one of which creeps, with noise of their own."""
    rng = np.random.default_rng(seed)
    slow = np.zeros((n, 3))
    for i in range(1, n):
        slow[i] = [0.9, 0.999, 0.6] * slow[i - 1] + rng.standard_normal(3) * [0.4, 0.1, 0.8]
    mix = np.random.default_rng(0).standard_normal((3, 6))
    return slow @ mix + 0.5 * rng.standard_normal((n, 6))


def test_a_fault_is_found_after_400_steps_and_a_creeping_level_is_not_one():
    """Of 400 steps only a few windows that do not overlap are held out: not enough to know a spread."""
    config = Config(train=TrainConfig(seed=0, epochs=2, verbose=False))
    found = []
    for seed in range(3):
        x, label = plant(seed, 1200), np.zeros(1200)
        x[900:1100, 2] += 1.5 * x[:400, 2].std()
        label[900:1100] = 1
        model = fit(config, Data.of(x[:400], window=WINDOW, stride=2))
        windows = np.stack([x[i : i + WINDOW] for i in range(400, 1200 - WINDOW)])
        inside = label[400 + WINDOW // 2 : 1200 - WINDOW // 2]
        found.append(roc_auc_score(inside, model.anomaly_score(windows)[0]))
    assert np.mean(found) > 0.9
    assert list(model.parts(windows[:3]))[:5] == ["error", "texture", "detail", "shape", "sensors"]
