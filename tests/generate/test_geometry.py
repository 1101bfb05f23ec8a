"""Latent geometry: against what is known of a plane, a sphere, and a change of coordinates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from lapae import Bernoulli, Gaussian, LaplacianAutoencoder
from lapae.generate.geometry import Geometry, minimise
from lapae.methods.base import Output

GENERATOR = torch.Generator().manual_seed(0)


def codes(n: int, k: int = 2) -> torch.Tensor:
    return torch.randn(n, k, dtype=torch.float64, generator=GENERATOR)


def sphere(z: torch.Tensor) -> Output:
    u, v = z[:, 0], z[:, 1]
    return Output(torch.stack([u.cos() * v.cos(), u.sin() * v.cos(), v.sin()], 1)[None])


def test_linear_decoders_have_straight_lines_and_the_expected_metric() -> None:
    weights = torch.randn(3, 2, 5, dtype=torch.float64, generator=GENERATOR)
    space = Geometry(lambda z: Output(torch.einsum("bk,skd->sbd", z, weights)), Gaussian(sigma=0.5))
    a, b = codes(4), codes(4)
    metric = (weights @ weights.mT).mean(0) / 0.25
    assert torch.allclose(space.metric(a), metric.expand(4, 2, 2), rtol=1e-12)
    assert torch.allclose(space.distance(a, b), torch.einsum("nk,kl,nl->n", b - a, metric, b - a).sqrt(), rtol=1e-12)
    line = a[:, None] + torch.linspace(0, 1, 7, dtype=torch.float64)[:, None] * (b - a)[:, None]
    assert torch.allclose(space.geodesic(a, b, 7), line, atol=1e-6)


def test_geodesics_of_a_sphere_are_great_circles() -> None:
    space = Geometry(sphere, Gaussian(sigma=1.0))
    a = torch.tensor([[-1.0, 0.3], [0.0, 0.9], [0.0, -1.2]], dtype=torch.float64)
    b = torch.tensor([[1.0, 0.5], [2.5, 0.9], [1.5, 1.0]], dtype=torch.float64)
    x, y = sphere(a).loc[0], sphere(b).loc[0]
    angle = (x * y).sum(1).acos()
    assert torch.allclose(space.distance(a, b), angle, atol=3e-5)
    path = sphere(space.geodesic(a, b, 9).flatten(0, 1)).loc[0].unflatten(0, (3, 9))
    normal = torch.nn.functional.normalize(torch.linalg.cross(x, y), dim=1)
    assert (path * normal[:, None]).sum(2).abs().max() < 5e-5
    steps = (path[:, 1:] * path[:, :-1]).sum(2).acos()
    assert torch.allclose(steps, angle[:, None] / 8 * torch.ones(8), rtol=1e-3)
    assert torch.allclose(space.log_volume(a).exp(), a[:, 1].cos())


def test_uncertain_slopes_make_steps_longer() -> None:
    slopes = torch.tensor([0.5, 1.5], dtype=torch.float64)
    space = Geometry(lambda z: Output(slopes[:, None, None] * z), Gaussian(sigma=1.0))
    a, b = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    assert float(space.distance(a, b)) == pytest.approx(1.25**0.5)  # the mean decoder says 1


def test_logits_are_measured_by_fisher_information() -> None:
    space = Geometry(lambda z: Output(z[None]), Bernoulli())
    a, b = torch.tensor([[-3.0]], dtype=torch.float64), torch.tensor([[2.0]], dtype=torch.float64)
    angle = lambda logit: 2 * np.arcsin(1 / np.sqrt(1 + np.exp(-logit)))  # noqa: E731  Fisher-Rao of a coin
    assert float(space.distance(a, b)) == pytest.approx(angle(2.0) - angle(-3.0), rel=1e-4)


def test_a_learned_variance_is_measured_too() -> None:
    space = Geometry(lambda z: Output(0 * z[None], z[None].exp()), Gaussian(sigma=1.0))
    a, b = torch.tensor([[0.0]], dtype=torch.float64), torch.tensor([[3.0]], dtype=torch.float64)
    assert float(space.distance(a, b)) == pytest.approx(3 / 2**0.5)
    assert float(space.metric(a)) == pytest.approx(0.5)


def test_distances_do_not_depend_on_coordinates() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8)).double()
    for p in net.requires_grad_(False).parameters():
        p.mul_(2.0)
    change = torch.tensor([[2.0, 0.7], [-0.3, 30.0]], dtype=torch.float64)
    back = torch.linalg.inv(change)
    seen, a, b = 2 * codes(100), 2 * codes(3), 2 * codes(3)
    one = Geometry(lambda z: Output(net(z)[None]), Gaussian(sigma=1.0), seen)
    other = Geometry(lambda z: Output(net(z @ back)[None]), Gaussian(sigma=1.0), seen @ change)
    found = one.distance(a, b)
    assert torch.allclose(found, other.distance(a @ change, b @ change), rtol=1e-6)
    assert torch.allclose(found, one.distance(b, a), rtol=1e-3)
    assert (found >= (net(a) - net(b)).norm(dim=1) * (1 - 1e-9)).all()  # no path is shorter than the chord
    assert torch.allclose(found[:1], one.distance(a[:1], b[:1]), rtol=1e-3)  # nor depends on other pairs


def test_a_first_path_along_the_data_finds_the_way_around_a_hill() -> None:
    def hill(z: torch.Tensor) -> Output:
        return Output(torch.cat([z, 20 * torch.exp(-z.square().sum(1, keepdim=True) / 0.3)], 1)[None])

    angle = torch.linspace(0, 3.2, 100, dtype=torch.float64)
    seen = 1.5 * torch.stack([angle.cos(), angle.sin()], 1)
    a = torch.tensor([[1.5, 0.0]], dtype=torch.float64)
    assert float(Geometry(hill, Gaussian(sigma=1.0), seen).distance(a, -a)) < 5.0


def test_short_ways_are_found_with_few_points() -> None:
    asked = []

    def plain(z: torch.Tensor) -> Output:
        asked.append(len(z))
        return Output(torch.cat([z, 0.1 * z.square()], 1)[None])

    a, b = torch.tensor([[-1.0, 0.3]]).double(), torch.tensor([[1.0, 0.5]]).double()
    around = 5 * torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert 2.0 < float(Geometry(plain, Gaussian(sigma=1.0), around).distance(a, b)) < 2.05
    assert sum(asked) < 5_000  # with 96 segments, and a detour along the data, 10,000


def test_minimise_serves_each_row() -> None:
    target, scale = codes(3, 4), torch.tensor([1.0, 100.0, 0.01], dtype=torch.float64)
    found = minimise(lambda u, rows: 1 + scale[rows] * (u - target[rows]).square().sum(1), torch.zeros_like(target))
    assert torch.allclose(found, target, atol=1e-3)


def digits() -> np.ndarray:
    return np.asarray(load_digits(return_X_y=True)[0]).reshape(-1, 8, 8)


@pytest.fixture(scope="module")
def model() -> LaplacianAutoencoder:
    images = digits()[:300] / 16
    return LaplacianAutoencoder(latent_dim=2, epochs=3, random_state=0).fit(images)


def test_estimator(model: LaplacianAutoencoder, tmp_path) -> None:
    z = model.transform(digits()[:4] / 16)
    far = model.distance(z[:2], z[2:])
    assert far.shape == (2,)
    assert ((far > 0) & np.isfinite(far)).all()
    assert model.distance(z[:1], z[:1]) == pytest.approx(0, abs=1e-9)
    path = model.geodesic(z[:2], z[2:], n_points=5)
    assert path.shape == (2, 5, 2)
    assert np.allclose(path[:, [0, -1]], np.stack([z[:2], z[2:]], 1), atol=1e-5)
    assert model.model_.decode(path[0])[0].shape == (5, 8, 8)
    model.save(tmp_path / "run")
    assert LaplacianAutoencoder.load(tmp_path / "run").distance(z[:2], z[2:]) == pytest.approx(far, rel=1e-6)
    assert model.distance(z[:0], z[:0]).shape == (0,)
    assert model.geodesic(z[:0], z[:0]).shape == (0, 50, 2)


@pytest.mark.parametrize("method", ["ae", "vae", "dropout", "ensemble", "posthoc"])
def test_other_methods_and_tables(method: str) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 4)) * [1, 1000, 0.01, 1]
    rows[::7, 1] = np.nan
    fitted = LaplacianAutoencoder(method=method, latent_dim=2, epochs=2, random_state=0).fit(rows)
    z = fitted.transform(rows[:4])
    assert (fitted.distance(z[:2], z[2:]) > 0).all()


def test_bad_codes_are_refused(model: LaplacianAutoencoder) -> None:
    z = np.zeros((3, 2))
    with pytest.raises(ValueError, match=r"a has shape \(3, 8, 8\): expected latent codes \(n, 2\)"):
        model.distance(np.zeros((3, 8, 8)), z)
    with pytest.raises(ValueError, match="3 codes in a and 2 in b"):
        model.distance(z, z[:2])
    with pytest.raises(ValueError, match="b has codes that are not finite"):
        model.geodesic(z, z * np.nan)
    with pytest.raises(ValueError, match="n_points=1"):
        model.geodesic(z, z, n_points=1)
