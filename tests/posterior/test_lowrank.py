"""The low-rank form against dense matrices, laplace-torch's `full`, and its own promises about random vectors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from explicit import data, fitted, matrix, network
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.testing import assert_close

from lapae.curvature.likelihoods import Bernoulli, Gaussian
from lapae.methods.laplace import make_precision
from lapae.networks import Autoencoder
from lapae.posterior import LowRankPrecision, bound, fit_shrinkage, log_marginal_likelihood
from lapae.posterior.lowrank import MOST_SIDE
from lapae.posterior.shrinkage import MOST_VARIANCE, SHARE

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def whole_rows(module: nn.Module, x: Tensor, likelihood) -> Tensor:
    """All rows of H^½ J, (N D, P)."""
    params = {name: p.detach() for name, p in module.named_parameters()}
    parts = vmap(jacrev(lambda p, x: functional_call(module, p, (x[None],))[0].flatten()), (None, 0))(params, x)
    j = torch.cat([parts[name].flatten(2) for name in params], 2)  # (N, D, P)
    output = module(x).detach()
    eye = torch.eye(j.shape[1], dtype=x.dtype).reshape(j.shape[1], 1, *output.shape[1:]).expand(-1, *output.shape)
    factor = likelihood.hessian_factor(output, eye).flatten(2)  # (D, N, D): S e_r
    return torch.einsum("rnd,ndp->nrp", factor, j).flatten(0, 1)


def turned(precision: LowRankPrecision, u: Tensor | None = None, sign: float = 1.0) -> LowRankPrecision:
    """The same vectors, with the diagonal in other coordinates."""
    generator, u = torch.Generator().manual_seed(3), precision.u if u is None else u
    random = {name: torch.randn(side, side, generator=generator).double() for name, side in sides(precision).items()}
    found = {name: torch.linalg.qr(value)[0] for name, value in random.items()}
    precision.set_bases({name: q if sign > 0 else -q.flip(1) for name, q in found.items()})
    precision.set_vectors(precision.turn(u))
    return precision


def sides(precision: LowRankPrecision) -> dict[str, int]:
    return dict(zip(precision.shapes, precision.sides, strict=True))


def in_weights(precision: LowRankPrecision) -> Tensor:
    """The matrix of `matrix`, in the coordinates of the weights."""
    rotation = precision.turn(torch.eye(precision.n_weights, dtype=torch.float64))
    assert_close(rotation @ rotation.T, torch.eye(len(rotation), dtype=torch.float64), **EXACT)
    return rotation @ matrix(precision) @ rotation.T


@pytest.mark.parametrize("bases", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("rho", [0.0, 0.4, 1.0])
def test_variances_draws_and_determinant_are_those_of_the_matrix(rho, temperature, bases):
    _, precision = fitted("lowrank", "many", temperature)
    assert isinstance(precision, LowRankPrecision)
    before = precision.u.T @ precision.u
    precision = turned(precision) if bases else precision
    precision.set_rho(rho)
    explicit = in_weights(precision)
    if rho == 1:  # vectors alone are the same in all coordinates
        assert_close(explicit * temperature, before + torch.diag(precision.flat_prior()), **EXACT)
    covariance, n = torch.linalg.inv(explicit), precision.n_weights
    g = torch.randn(3, 4, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(precision.variance(g), torch.einsum("abp,pq,abq->ab", g, covariance, g), **EXACT)
    assert_close(precision.covariance(g), g @ covariance @ g.mT, **EXACT)
    assert_close(precision.quadratic(g), torch.einsum("abp,pq,abq->ab", g, explicit, g), **EXACT)
    root = precision.scale_noise(torch.eye(n, dtype=torch.float64))
    assert_close(root.T @ root, covariance, **EXACT)
    assert_close(precision.log_det(), torch.linalg.slogdet(explicit)[1], **EXACT)
    precision.set_rho(0.0)
    diagonal = in_weights(precision).diagonal() * temperature - precision.flat_prior()
    assert_close(precision.diagonal_of_weights(), diagonal, **EXACT)


def test_draws_are_the_same_whichever_eigenvectors_a_device_finds():
    _, precision = fitted("lowrank")
    assert isinstance(precision, LowRankPrecision)
    u, eps = precision.u, torch.randn(2, precision.n_weights, generator=torch.Generator().manual_seed(0)).double()
    drawn = [turned(precision, u, sign).scale_noise(eps) for sign in (1.0, -1.0)]
    assert_close(*drawn, **EXACT)


def test_coordinates_are_saved_dropped_and_unknown_to_earlier_versions():
    _, precision = fitted("lowrank")
    assert isinstance(precision, LowRankPrecision)
    earlier = {name: value.clone() for name, value in precision.state_dict().items() if name != "q"}
    before = precision.log_det()
    assert turned(precision).log_det() != before
    assert sides(precision)["encoder.0.bias"] == 0
    assert precision.q.numel() == sum(side**2 for side in precision.sides) > 0
    other = LowRankPrecision(precision.shapes, 1.0).double()
    other.load_state_dict(precision.state_dict())
    assert torch.equal(other.log_det(), precision.log_det())
    decoder = frozenset(name for name in precision.shapes if name.startswith("decoder"))
    given = precision.given(decoder, 0.2).scale_noise(torch.ones(precision.n_weights, dtype=torch.float64))
    assert all(((part == 0).all() == (name in decoder)) for name, part in precision.split(given).items())
    assert torch.isfinite(precision.given(decoder, 0.2).diagonal_of_weights()[: precision.sizes[0]]).all()
    other.load_state_dict(earlier)
    assert_close(other.log_det(), before)
    precision.drop_vectors()
    assert not len(precision.q)
    assert sides(LowRankPrecision({"w": torch.Size([2, MOST_SIDE + 1])}, 1.0)) == {"w": 0}


@pytest.mark.parametrize("likelihood", [Gaussian(0.7), Bernoulli()], ids=repr)
def test_with_all_rows_it_is_the_whole_ggn(likelihood):
    module, x = network(), data(9).sigmoid()
    rows = whole_rows(module, x, likelihood)
    precision = make_precision(module, "lowrank", 0.7, 1.0).double()
    assert isinstance(precision, LowRankPrecision)
    precision.set_prior(0.7)
    precision.set_vectors(rows)
    ggn = rows.T @ rows + 0.7 * torch.eye(precision.n_weights, dtype=torch.float64)
    assert_close(precision.variance(rows), torch.einsum("rp,rp->r", rows, torch.linalg.solve(ggn, rows.T).T), **EXACT)
    mean = dict(module.named_parameters())
    theta = precision.join(mean)
    dense = -0.5 * (0.7 * theta.square().sum() - len(theta) * math.log(0.7) + torch.logdet(ggn))
    assert log_marginal_likelihood(0.0, mean, precision) == pytest.approx(float(dense), rel=1e-10)


def test_as_laplace_torch_full():
    laplace = pytest.importorskip("laplace", reason="laplace-torch is an optional oracle")
    backend = pytest.importorskip("laplace.curvature.backpack", reason="laplace-torch needs BackPACK")
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_default_dtype(torch.float64)  # laplace-torch makes its prior precision in the default type
    try:
        torch.manual_seed(0)
        layers = [nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2), nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 5)]
        flat = nn.Sequential(*layers)
        x = torch.randn(11, 5, generator=torch.Generator().manual_seed(1))
        module = Autoencoder(nn.Sequential(*layers[:3]), nn.Sequential(*layers[3:]))
        rows = whole_rows(module, x, Gaussian(0.5))
        precision = make_precision(module, "lowrank", 0.8, 1.0)
        assert isinstance(precision, LowRankPrecision)
        precision.set_vectors(rows)
        found = laplace.Laplace(
            flat, "regression", subset_of_weights="all", hessian_structure="full", sigma_noise=0.5,
            prior_precision=0.8, backend=backend.BackPackGGN,
        )  # fmt: skip
        found.fit(DataLoader(TensorDataset(x, x), batch_size=4))
        mean = {name: p.detach() for name, p in module.named_parameters()}
        assert_close(precision.log_det(), found.log_det_posterior_precision, **EXACT)
        root = precision.scale_noise(torch.eye(precision.n_weights))
        assert_close(root.T @ root, found.posterior_covariance, **EXACT)
        expected = found.log_marginal_likelihood().item()
        assert log_marginal_likelihood(found.log_likelihood.item(), mean, precision) == pytest.approx(expected)
    finally:
        torch.set_default_dtype(torch.float32)


def sampled(g: Tensor, n: int, seed: int) -> LowRankPrecision:
    """n vectors ~ N(0, G), as their outer products add up to G, prior 1."""
    values, vectors = torch.linalg.eigh(g)
    root = vectors * values.clamp_min(0).sqrt()
    eps = torch.randn(n, len(g), dtype=g.dtype, generator=torch.Generator().manual_seed(seed))
    precision = LowRankPrecision({"w": torch.Size([len(g)])}, 1.0).double()
    precision.set_vectors(eps @ root.T / n**0.5)
    return precision


def spectrum(values: Tensor, seed: int = 0) -> Tensor:
    """A matrix with these eigenvalues, in random directions."""
    n = len(values)
    q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))[0]
    return (q * values) @ q.T


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_the_bound_is_that_of_the_true_curvature(rho):
    """Vectors that are left out in turn measure tr(G C⁻¹) of a G that is not known: right on average."""
    p, n = 60, 60
    g = spectrum(torch.logspace(2, -1, p, dtype=torch.float64))
    mean = {"w": torch.linspace(-1, 1, p, dtype=torch.float64)}
    found, expected = [], []
    for seed in range(200):
        precision = sampled(g, n, seed)
        precision.set_rho(rho)
        at = bound(mean, precision)
        c = matrix(precision)
        found.append(at.data_variance)
        expected.append(float(torch.trace(torch.linalg.solve(c, g))))
        left = float(torch.trace(torch.linalg.inv(c)))
        value = -0.5 * (at.data_variance + mean["w"].square().sum() + left - p + torch.logdet(c))
        assert at.value == pytest.approx(float(value))
        assert at.determined == pytest.approx(p - left)
    difference = torch.tensor(found) - torch.tensor(expected)
    slack = 4 * difference.std() / len(found) ** 0.5 + 0.05 * sum(expected) / len(expected)  # of T - 1 vectors, not T
    assert abs(difference.mean()) < slack


@pytest.mark.parametrize(("rank", "n", "whole"), [(10, 200, True), (300, 20, False)])
def test_the_vectors_stand_alone_where_they_reach_the_rank_and_the_diagonal_helps_where_not(
    rank, n, whole, monkeypatch
):
    monkeypatch.setattr("lapae.posterior.shrinkage.ALONE", 1)  # as for the millions of weights of a network of images
    p = 300
    values = torch.zeros(p, dtype=torch.float64)
    values[:rank] = torch.logspace(3, 1, rank, dtype=torch.float64)
    g = spectrum(values)
    mean = {"w": torch.randn(p, dtype=torch.float64, generator=torch.Generator().manual_seed(5))}
    precision = sampled(g, n, 1)
    found = fit_shrinkage(mean, precision, p)
    assert (float(precision.rho) == 1) is whole

    # what is chosen is nearer to the true posterior (in the divergence that the bound is of) than either end
    def divergence(c: Tensor) -> float:
        a = g + precision.flat_prior() * torch.eye(p, dtype=torch.float64)
        return float(torch.trace(torch.linalg.solve(c, a)) - p + torch.logdet(c) - torch.logdet(a)) / 2

    chosen = divergence(matrix(precision))
    assert found.value == pytest.approx(bound(mean, precision).value)
    for rho in (0.0, 1.0):
        precision.set_rho(rho)
        assert chosen <= divergence(matrix(precision)) + 1e-9


def test_few_vectors_of_a_small_network_stand_alone_with_a_stronger_prior():
    """Left out in turn, they measure no more variance of the data's own values than a few times their noise."""
    p, n_values = 300, 60
    g = spectrum(torch.logspace(4, 2, p, dtype=torch.float64))
    mean = {"w": torch.randn(p, dtype=torch.float64, generator=torch.Generator().manual_seed(5))}
    precision = sampled(g, 20, 1)
    found = fit_shrinkage(mean, precision, n_values)
    assert float(precision.rho) == 1
    at = bound(mean, precision)
    assert found.value == pytest.approx(at.value)
    assert 0.5 * MOST_VARIANCE * n_values < at.data_variance <= MOST_VARIANCE * n_values
    precision.set_prior(float(precision.prior) / 10)
    assert bound(mean, precision).value > at.value  # the evidence alone would take a weaker one


def test_beside_the_diagonal_the_prior_is_as_weak_as_the_data_allow(monkeypatch):
    """Unused weights are as uncertain as they can be while the data's own values get no more variance than noise."""
    monkeypatch.setattr("lapae.posterior.shrinkage.MOST_VARIANCE", 0.0)  # the vectors never stand alone
    p = 300
    g = spectrum(torch.logspace(4, 2, p, dtype=torch.float64))
    mean = {"w": torch.zeros(p, dtype=torch.float64)}

    def chosen(n_values: int, first: float) -> LowRankPrecision:
        precision = sampled(g, 20, 1)
        precision.set_prior(first)
        fit_shrinkage(mean, precision, n_values)
        assert float(precision.rho) == SHARE
        return precision

    def variance(precision: LowRankPrecision) -> float:
        return float((precision.d / precision.base()).sum())

    assert float(chosen(2 * p, 1.0).prior) == pytest.approx(1e-3)
    assert float(chosen(2 * p, 5.0).prior) == pytest.approx(5e-3)
    for n_values in (100, 200, 290):  # a prior that decides the variance of the data, too
        precision = chosen(n_values, 1e4)
        assert variance(precision) <= n_values
        precision.set_prior(float(precision.prior) / 10**0.5)
        assert variance(precision) > n_values
    assert float(chosen(1, 3.0).prior) == 3.0  # never stronger than it was


def test_the_prior_is_that_of_the_evidence_where_vectors_are_many():
    """With many vectors the bound is the Laplace evidence of the true curvature, maximum and all."""
    p = 40
    values = torch.zeros(p, dtype=torch.float64)
    values[:12] = torch.logspace(3, 0, 12, dtype=torch.float64)
    g = spectrum(values)
    mean = {"w": 0.5 * torch.randn(p, dtype=torch.float64, generator=torch.Generator().manual_seed(5))}
    precision = sampled(g, 4000, 2)
    fit_shrinkage(mean, precision, p)
    assert float(precision.rho) == 1
    deltas = torch.logspace(-2, 2, 401, dtype=torch.float64)
    evidence = [float(0.5 * (p * d.log() - (values + d).log().sum() - d * mean["w"].square().sum())) for d in deltas]
    best = float(deltas[int(torch.tensor(evidence).argmax())])
    assert float(precision.prior) == pytest.approx(best, rel=0.15)  # steps of 12 %


def test_a_prior_that_is_given_stays():
    precision = sampled(spectrum(torch.ones(20, dtype=torch.float64)), 30, 0)
    precision.set_prior(3.0)
    fit_shrinkage({"w": torch.ones(20, dtype=torch.float64)}, precision, 20, prior=False)
    assert float(precision.prior) == 3


def test_known_weights_do_not_vary_nor_count():
    module, precision = fitted("lowrank")
    assert isinstance(precision, LowRankPrecision)
    name = next(iter(precision.shapes))
    u = precision.u.clone()
    precision.split(u)[name].zero_()
    precision.pin([name])
    for rho in (1.0, 0.4):
        precision.set_vectors(u, rho=rho)
        drawn = precision.split(precision.scale_noise(torch.ones(2, precision.n_weights, dtype=torch.float64)))
        assert (drawn[name] == 0).all()
        assert all((part != 0).any() for other, part in drawn.items() if other != name)
    mean = dict(module.named_parameters())
    before = bound(mean, precision)
    assert bound(mean | {name: mean[name] + 5}, precision) == before
    assert torch.isfinite(torch.tensor(before.value))


def test_bfloat16_stays_in_all_types_and_places():
    _, precision = fitted("lowrank")
    assert isinstance(precision, LowRankPrecision)
    wide = precision.log_det()
    precision.set_vectors(precision.u.bfloat16(), rho=0.4)
    for kind in (torch.float32, torch.float64):
        precision.to(kind)
        assert precision.u.dtype == torch.bfloat16
        assert precision.scale_noise(torch.ones(precision.n_weights, dtype=kind)).dtype == kind
    assert_close(precision.log_det(), wide, rtol=1e-2, atol=0.0)
    other = LowRankPrecision(precision.shapes, 1.0).double()
    other.load_state_dict(precision.state_dict())
    assert other.u.dtype == torch.bfloat16
    assert torch.equal(other.log_det(), precision.log_det())


def test_without_vectors_it_is_the_running_diagonal():
    _, diagonal = fitted("diagonal")
    precision = LowRankPrecision(diagonal.shapes, 0.7).double()
    precision.h.copy_(diagonal.get_buffer("h"))
    eps = torch.randn(precision.n_weights, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(precision.scale_noise(eps), diagonal.scale_noise(eps))
    assert_close(precision.log_det(), diagonal.log_det())
    before = precision.log_det()
    precision.set_vectors(torch.ones(2, precision.n_weights, dtype=torch.float64))
    assert precision.log_det() != before
    precision.drop_vectors()
    assert precision.log_det() == before


def test_layers_alone_are_refused():
    _, precision = fitted("lowrank")
    with pytest.raises(TypeError, match="between layers"):
        precision.whiten({})
    with pytest.raises(TypeError, match="no eigenvalues by layer"):
        precision.eigenvalues()
    with pytest.raises(ValueError, match="expected vectors of shape"):
        precision.set_vectors(torch.ones(2, 3))  # pyright: ignore


@pytest.mark.parametrize("few", [False, True])
def test_given_some_weights_the_precision_of_the_others_is_a_part_of_the_matrix(few, monkeypatch):
    """With the vectors alone, or beside the diagonal where they are few for these weights."""
    monkeypatch.setattr("lapae.posterior.lowrank.ALONE", 1 if few else 300)
    _, precision = fitted("lowrank", "many", 2.5)
    assert isinstance(precision, LowRankPrecision)
    decoder = frozenset(name for name in precision.shapes if name.startswith("decoder"))
    given = precision.given(decoder, 0.2)
    free = torch.tensor([name not in decoder for name in precision.shapes])
    free = free.repeat_interleave(torch.tensor(precision.sizes))
    if few:
        explicit = matrix(precision)[free][:, free]
    else:
        u = precision.u[:, free]
        explicit = (u.T @ u + 0.2 * torch.eye(u.shape[1], dtype=u.dtype)) / 2.5
    root = given.scale_noise(torch.eye(given.n_weights, dtype=torch.float64))
    covariance = root.T @ root
    assert_close(covariance[free][:, free], torch.linalg.inv(explicit), **EXACT)
    assert (covariance[~free] == 0).all()
    precision.temperature = 5.0
    warmer = precision.given(decoder, 0.2).scale_noise(torch.eye(given.n_weights, dtype=torch.float64))
    assert_close(warmer.T @ warmer, 2 * covariance)
    precision.set_vectors(2 * precision.u)
    assert precision.given(decoder, 0.2) is not given
    assert set(precision.state_dict()) == {"prior", "h", "u", "d", "q", "rho", "n_values", "drawn"}


def test_a_code_is_certain_where_the_data_are_though_a_decoder_could_undo_what_an_encoder_does():
    """Codes may be turned and stretched without a change of outputs: the whole posterior leaves that open."""
    module, x = network(), data(40)
    precision = make_precision(module, "lowrank", 1e-4, 1.0).double()
    assert isinstance(precision, LowRankPrecision)
    precision.set_prior(1e-4)
    precision.set_vectors(whole_rows(module, x, Gaussian(0.1)))
    encoder = {name: p.detach() for name, p in module.encoder.named_parameters()}
    parts = vmap(jacrev(lambda p, x: functional_call(module.encoder, p, (x[None],))[0]), (None, 0))(encoder, x)
    rows = torch.cat([parts[name].flatten(2) for name in encoder], 2)
    rows = torch.cat([rows, rows.new_zeros(*rows.shape[:2], precision.n_weights - rows.shape[2])], 2)
    decoder = frozenset(name for name in precision.shapes if name.startswith("decoder"))
    assert (precision.given(decoder, 1e-4).variance(rows) < 0.1 * precision.variance(rows)).all()
