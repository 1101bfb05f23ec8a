"""What is unusual about series and images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.stats import ks_2samp, norm
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from lapae import LaplacianAutoencoder
from lapae.score.images import by_channel, contributions, standardising, steps, tail


def windows(rng: np.random.Generator, n: int) -> np.ndarray:
    """Windows (n, 24, 6) of six sensors that follow two waves at random phases, with noise."""
    t = np.arange(24)
    first, second = rng.uniform(0, 2 * np.pi, (2, n, 1))
    waves = np.stack([np.sin(t / 3 + first), np.sin(t / 2 + second)], -1)
    mix = np.array([[1, 0.5, -0.7, 0.2, 0.9, -0.4], [0.3, -0.8, 0.6, 1, -0.2, 0.7]])
    return waves @ mix + rng.normal(0, 0.1, (n, 24, 6))


@pytest.fixture(scope="module")
def model() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(epochs=5, random_state=0, device="cpu").fit(windows(np.random.default_rng(0), 800))


@pytest.mark.parametrize("channel", range(6))
def test_a_stuck_sensor_is_flagged_and_named(model, channel):
    stuck = windows(np.random.default_rng(1), 100)
    stuck[:, :, channel] = stuck[:, :1, channel]
    assert (model.p_value(stuck) <= 0.05).mean() > 0.9
    named = model.explain(stuck).sum(1).argmax(1)
    assert (named == channel).mean() > 0.8


def test_new_windows_score_as_those_held_out(model):
    new = -model.score_samples(windows(np.random.default_rng(2), 1000))
    compared: Any = ks_2samp(new, model.reference_)
    assert compared.pvalue > 0.05


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 5)])
def test_energies_by_their_definition(shape):
    """Squared differences: of a series over time, channel by channel; of an image along both axes, all together."""
    x = torch.randn(7, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if len(shape) == 2:
        expected = torch.stack([(x[:, 1:, c] - x[:, :-1, c]).square().sum(1) for c in range(3)], 1)
    else:
        expected = sum(x.diff(dim=axis).square().flatten(1).sum(1, keepdim=True) for axis in (2, 3))
    torch.testing.assert_close(by_channel(steps(x)), expected)


@pytest.fixture(scope="module")
def digits() -> tuple[LaplacianAutoencoder, dict[str, np.ndarray]]:
    """A model of digits 0 to 7 and its scores, higher for more unusual images, by kind."""
    found: Any = load_digits()
    x, order = found.images / 16, np.random.default_rng(0).permutation(len(found.images))
    normal = x[order[found.target[order] < 8]]
    train, new = normal[500:], normal[:500]
    kinds = {
        "train": train,
        "new": new,
        "8 and 9": x[found.target >= 8],
        "blank": np.zeros_like(new[:100]),
        "faint": 0.3 * new,
        "blurred": gaussian_filter(new, (0, 0.7, 0.7)),
    }
    model = LaplacianAutoencoder(network="mlp", epochs=30, random_state=0, device="cpu").fit(train)
    return model, {kind: -model.score_samples(images) for kind, images in kinds.items()}


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    return float(roc_auc_score(np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside]))


def test_training_images_are_no_more_unusual_than_new_ones(digits):
    """They are reproduced better, which is not unusual."""
    assert np.median(digits[1]["train"]) <= np.median(digits[1]["new"])


def test_digits_that_were_left_out_are_unusual(digits):
    assert auroc(digits[1]["new"], digits[1]["8 and 9"]) > 0.9


@pytest.mark.parametrize("kind", ["blank", "faint", "blurred"])
def test_images_that_are_easy_to_reproduce_for_lack_of_detail_are_unusual(digits, kind):
    assert auroc(digits[1]["new"], digits[1][kind]) > 0.98


def test_contributions_of_pixels_add_up_to_the_score(digits):
    known: Any = load_digits()
    model, images = digits[0], known.images[:20] / 16
    np.testing.assert_allclose(model.explain(images).sum((1, 2)), -model.score_samples(images), rtol=1e-4)


def test_what_counts_as_unusual():
    """Much error and a distant code; much or little texture and detail; an error that is large for the detail."""
    rng = torch.Generator().manual_seed(0)
    parts = torch.randn(2000, 4, generator=rng, dtype=torch.float64)
    parts[:, 0] += 2 * parts[:, 2]  # more detail, more error
    whiten = standardising(parts)

    def anomaly(*gap: float) -> float:
        return float(contributions(torch.tensor([gap], dtype=torch.float64), whiten).sum())

    usual = anomaly(0, 0, 0, 0)
    assert anomaly(-3, 0, 0, 0) < usual < anomaly(6, 0, 0, 0)
    assert anomaly(0, 0, 0, -3) < usual < anomaly(0, 0, 0, 3)
    assert min(anomaly(0, side, 0, 0) for side in (-3, 3)) > usual + 3
    assert min(anomaly(2 * side, 0, side, 0) for side in (-3, 3)) > usual + 3
    assert anomaly(2, 0, -2, 0) > anomaly(2, 0, 0, 0) + 3


@pytest.fixture(scope="module")
def scenes() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(network="mlp", epochs=3, random_state=0, device="cpu").fit(scene(0, 300))


def scene(seed: int, n: int) -> np.ndarray:
    """Images (n, 32, 32) of grain, coarse above and fine below, as bright on average everywhere."""
    noise = np.random.default_rng(seed).normal(size=(n, 32, 32))
    coarse = 2 * gaussian_filter(noise, (0, 1, 1))
    x = np.concatenate([coarse[:, :16], noise[:, 16:]], 1)
    return (0.5 + 0.1 * x).clip(0, 1)


def test_a_region_without_its_detail_is_unusual_and_named(scenes):
    new, smooth = scene(1, 100), scene(2, 60)
    smooth[:, 20:28, 4:12] = smooth[:, 20:28, 4:12].mean((1, 2), keepdims=True)
    assert (scenes.p_value(smooth) <= 0.05).mean() > 0.95
    assert (scenes.p_value(new) <= 0.05).mean() < 0.15
    assert scenes.score_parts(smooth)["region"].min() > scenes.score_parts(new)["region"].max()
    row, column = np.divmod(scenes.explain(smooth).reshape(60, -1).argmax(1), 32)
    assert ((abs(row - 23.5) < 5) & (abs(column - 7.5) < 5)).mean() > 0.9


def test_regions_by_their_definition(scenes):
    """Mean squared differences in squares of an eighth of the side, half over each other; the least of them counts."""
    parts = scenes.model_.calibration.score.image_parts  # pyright: ignore[reportOptionalMemberAccess]
    x = torch.from_numpy(scene(3, 4)[:, None]).float()
    assert parts is not None
    assert parts.regions is not None
    floor, mean, spread = parts.regions
    square = steps(x)[:, 0]
    lack = [
        (mean[i, j] - (square[:, 2 * i : 2 * i + 4, 2 * j : 2 * j + 4].mean((1, 2)) + floor[0, 0]).log()) / spread[i, j]
        for i in range(15)
        for j in range(15)
    ]
    values = parts.parts(scenes.model_.for_score(x), x, scenes.model_.calibration.score.deviation, 5)[0]  # pyright: ignore
    torch.testing.assert_close(values[:, -1], torch.stack(lack).amax(0), rtol=1e-4, atol=1e-4)


def test_tail_of_the_normal_distribution():
    t = torch.linspace(-6, 40, 500, dtype=torch.float64)
    np.testing.assert_allclose(tail(t), -norm.logsf(t), atol=0.06)
    assert (tail(t.float()).diff()[t[1:] > -5] > 0).all()


def test_models_saved_earlier_keep_their_score():
    """Their matrix is square and triangular: the squared length, and that of an excess of error once more."""
    rng = torch.Generator().manual_seed(0)
    gap, square = torch.randn(50, 3, generator=rng), torch.randn(3, 3, generator=rng).tril()
    t = gap @ square.T
    expected = t.square().sum(1) + t[:, 0].clamp_min(0).square()
    torch.testing.assert_close(contributions(gap, square).sum(1), expected)


@pytest.mark.parametrize("n_kinds", [1, 2])
def test_images_of_few_kinds_have_finite_scores(n_kinds):
    kinds = np.random.default_rng(0).uniform(size=(n_kinds, 6, 6))
    model = LaplacianAutoencoder(network="mlp", epochs=2, random_state=0, device="cpu").fit(np.repeat(kinds, 30, 0))
    for images in (kinds, kinds[:, ::-1], np.zeros((1, 6, 6))):
        assert np.isfinite(model.score_samples(np.ascontiguousarray(images))).all()


def blots(n: int, seed: int) -> np.ndarray:
    """Soft blots (n, 12, 12, 3) of one colour on a ground of another, with noise."""
    rng = np.random.default_rng(seed)
    place, width = rng.uniform(3, 9, (2, n, 1, 1)), rng.uniform(2, 4, (n, 1, 1))
    rows, columns = np.mgrid[:12, :12]
    shape = np.exp(-((rows - place[0]) ** 2 + (columns - place[1]) ** 2) / width**2)
    colour = np.array([0.6, 0.2, -0.1]) * rng.uniform(0.7, 1.2, (n, 1, 1, 1))
    return (0.3 + shape[..., None] * colour + rng.normal(0, 0.03, (n, 12, 12, 3))).clip(0, 1)


def test_images_without_their_colour_are_unusual():
    new = blots(200, 1)
    gray = np.repeat(new.mean(3, keepdims=True), 3, 3)
    model = LaplacianAutoencoder(epochs=3, random_state=0, device="cpu").fit(blots(400, 0))
    assert roc_auc_score(np.repeat([0, 1], 200), -model.score_samples(np.concatenate([new, gray]))) > 0.99
    assert (model.predict(new) == -1).mean() < 0.12
    parts = model.score_parts(gray)
    assert list(parts)[:5] == ["error", "texture", "detail", "distance", "colour"]
    assert parts["colour"].max() < -5
    score = model.model_.anomaly_score(new)[0]
    np.testing.assert_allclose(model.explain(new).reshape(200, -1).sum(1), score, rtol=1e-3)


def test_gray_images_in_three_channels_have_no_colour():
    x = np.repeat(blots(200, 0)[..., :1], 3, 3)
    assert "colour" not in LaplacianAutoencoder(epochs=1, random_state=0, device="cpu").fit(x).score_parts(x[:5])
