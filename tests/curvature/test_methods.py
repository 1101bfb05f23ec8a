"""What each method promises, beyond the layers."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, Case, dense, seeded
from narrow import as_a
from torch import Tensor, nn
from torch.testing import assert_close

from lapae.curvature import Residual, Sum, ggn_blocks, ggn_diagonal, ggn_kfac, reference
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian
from lapae.curvature.rules.base import product_with_itself
from lapae.networks import conv, mlp

LIKELIHOODS = [Gaussian(), Gaussian(sigma=0.3), Bernoulli(), Categorical()]
BY_NAME = {case.name: case for case in CASES}
SOME = [
    BY_NAME[name]
    for name in (
        "dense tanh", "linear on (B, T, in)", "wider than the data", "batchnorm 1d", "residual", "conv2d all",
        "batchnorm 2d", "convolutional autoencoder", "residual, convolutional", "transposed, output padding",
    )
]  # fmt: skip


def autoencoder() -> nn.Module:
    torch.manual_seed(0)
    return mlp((6,), 2, hidden=(7, 5)).double()


def data(n: int = 4, shape: tuple[int, ...] = (6,)) -> Tensor:
    return torch.randn(n, *shape, dtype=torch.float64, generator=seeded(1))


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
@pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
def test_every_likelihood_seeds_m(case: Case, likelihood):
    module, x = case.module(), case.x()
    assert_close(ggn_diagonal(module, x, likelihood, "exact"), reference.ggn_diagonal(module, x, likelihood))
    assert_close(ggn_blocks(module, x, likelihood), reference.ggn_blocks(module, x, likelihood))


@pytest.mark.parametrize("likelihood", [Gaussian(), Categorical()], ids=repr)
@pytest.mark.parametrize("budget", [8, 2_000, 20_000, 200_000])
@pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
def test_a_memory_budget_changes_nothing_but_memory(case: Case, budget, likelihood):
    module, x = case.module(), case.x(5)
    expected = ggn_diagonal(module, x, likelihood, "exact")
    assert_close(ggn_diagonal(module, x, likelihood, "exact", memory_budget=budget), expected)
    mixed = ggn_diagonal(module, x, likelihood, "mixed", switch=10)
    assert_close(ggn_diagonal(module, x, likelihood, "mixed", switch=10, memory_budget=budget), mixed)
    assert_close(ggn_blocks(module, x, likelihood, memory_budget=budget), ggn_blocks(module, x, likelihood))
    if "all" not in case.name:  # groups, which KFAC does not have
        whole = ggn_kfac(module, x, likelihood, n_samples=None)
        parts = ggn_kfac(module, x, likelihood, n_samples=None, memory_budget=budget)
        assert_close({k: f.g for k, f in parts.items()}, {k: f.g for k, f in whole.items()})


def test_a_product_in_strips_is_the_product():
    for n in (1, 90, 96, 97, 200, 577):
        x = torch.randn(n, 4 * n, generator=seeded(n))
        assert_close(product_with_itself(x), x @ x.T, rtol=1e-4, atol=1e-3)


def test_chunks_inside_a_layer_change_nothing(monkeypatch):
    case = BY_NAME["conv2d padding"]
    module, x = case.module(), case.x(4)
    expected = ggn_diagonal(module, x, method="exact"), ggn_blocks(module, x), ggn_kfac(module, x, n_samples=None)
    for file in ("rules.base", "extract", "collect"):
        monkeypatch.setattr(f"lapae.curvature.{file}.CHUNK_FLOATS", 40)
    monkeypatch.setattr("lapae.curvature.extract.COLUMN_FLOATS", 40)
    assert_close(ggn_diagonal(module, x, method="exact"), expected[0])
    assert_close(ggn_blocks(module, x), expected[1])
    for name, factors in ggn_kfac(module, x, n_samples=None).items():
        assert_close(factors.block(), expected[2][name].block())
        assert factors.n == expected[2][name].n


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
@pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
def test_mc_is_unbiased(case: Case, likelihood):
    """The mean over many draws is within a few standard errors of exact, in every weight."""
    module, x = case.module(), case.x(2)
    exact = reference.ggn_diagonal(module, x, likelihood)
    n_draws, n_samples = 40, 50
    draws = [
        ggn_diagonal(module, x, likelihood, "mc", n_samples=n_samples, generator=seeded(s)) for s in range(n_draws)
    ]
    for name, h in exact.items():
        stacked = torch.stack([draw[name] for draw in draws])
        error = stacked.mean(0) - h
        standard = stacked.std(0) / n_draws**0.5
        assert (error.abs() <= 6 * standard + 1e-12).all()
        assert stacked.std(0).mean() < 0.5 * stacked.mean() + 1e-12  # else the test above says little


def test_the_error_of_mc_falls_like_the_root_of_the_number_of_samples():
    module, x = autoencoder(), data()
    exact = torch.cat([h.flatten() for h in ggn_diagonal(module, x, method="exact").values()])

    def error(n: int) -> float:
        errors = []
        for s in range(30):
            h = ggn_diagonal(module, x, method="mc", n_samples=n, generator=seeded(1000 * n + s))
            errors.append((torch.cat([v.flatten() for v in h.values()]) - exact).norm() / exact.norm())
        return torch.stack(errors).square().mean().sqrt().item()

    errors = {n: error(n) for n in (1, 16, 256)}
    assert errors[1] / errors[16] == pytest.approx(4, rel=0.3)
    assert errors[16] / errors[256] == pytest.approx(4, rel=0.3)


def test_mc_in_chunks_draws_as_many():
    module, x = autoencoder(), data()
    exact = ggn_diagonal(module, x, method="exact")
    h = ggn_diagonal(module, x, method="mc", n_samples=4000, generator=seeded(0), memory_budget=2_000)
    for name in exact:
        assert ((h[name] - exact[name]).norm() / exact[name].norm()) < 0.15


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=repr)
def test_bottleneck_is_exact_in_the_encoder_and_approx_in_the_decoder(likelihood):
    torch.manual_seed(0)
    for module, x in (
        (autoencoder(), data()),
        (conv((1, 4, 4), 2, channels=(3,), hidden=(5,)).double(), data(3, (1, 4, 4))),
    ):
        exact = ggn_diagonal(module, x, likelihood, "exact")
        approx = ggn_diagonal(module, x, likelihood, "approx")
        for bottleneck in (None, "encoder"):
            h = ggn_diagonal(module, x, likelihood, "bottleneck", bottleneck=bottleneck)
            for name in h:
                assert_close(h[name], exact[name] if name.startswith("encoder") else approx[name])


def test_of_several_narrowest_layers_the_last_is_the_bottleneck():
    module, x = conv((1, 4, 4), 2, channels=(2, 2), hidden=(5,)).double(), data(3, (1, 4, 4))  # 2 features three times
    exact, h = (ggn_diagonal(module, x, method=m) for m in ("exact", "bottleneck"))
    for name in h:
        if name.startswith(("encoder", "decoder.0", "decoder.2")):
            assert_close(h[name], exact[name])


def test_bottleneck_may_be_named_where_the_narrowest_is_another():
    module = nn.Sequential(
        nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3), nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 6)
    ).double()
    x = data()
    exact = ggn_diagonal(module, x, method="exact")
    approx = ggn_diagonal(module, x, method="approx")
    h = ggn_diagonal(module, x, method="bottleneck", bottleneck="2")
    for name in h:
        assert_close(h[name], exact[name] if name.startswith(("0", "2")) else approx[name])
    assert_close(ggn_diagonal(module, x, method="bottleneck")["3.weight"], exact["3.weight"])
    with pytest.raises(ValueError, match="'code' names no layer: there are 0, 1"):
        ggn_diagonal(module, x, method="bottleneck", bottleneck="code")


def test_approx_is_exact_in_the_last_layer_and_in_the_last_two_of_a_dense_network():
    module, x = autoencoder(), data()
    for likelihood in LIKELIHOODS[:3]:
        exact = ggn_diagonal(module, x, likelihood, "exact")
        approx = ggn_diagonal(module, x, likelihood, "approx")
        last_two = ("decoder.4", "decoder.2")
        for name in exact:
            if name.startswith(last_two):
                assert_close(approx[name], exact[name])
            else:
                assert (approx[name] - exact[name]).norm() > 1e-3 * exact[name].norm()
    for case in SOME:
        module, x = case.module(), case.x()
        *_, last = (name for name, _ in module.named_parameters())
        exact, approx = (ggn_diagonal(module, x, Bernoulli(), m)[last] for m in ("exact", "approx"))
        assert_close(approx, exact)


@pytest.mark.parametrize("switch", [1, 6, 10_000])
def test_mixed_lies_between_approx_and_exact(switch):
    """With a switch below every layer it is approx, above every layer exact; in between, approx until it switches.

    Sizes are 7 7 2 2 6 6 5 5 8: with 6, all of M is carried below the last layer, where two layers do not tell.
    """
    module, x = nn.Sequential(dense(nn.Tanh), nn.Tanh(), nn.Linear(5, 8)).double(), data(4, (5,))
    exact, approx = (ggn_diagonal(module, x, method=m) for m in ("exact", "approx"))
    h = ggn_diagonal(module, x, method="mixed", switch=switch)
    if switch == 1:
        assert_close(h, approx)
    elif switch == 10_000:
        assert_close(h, exact)
    else:
        assert_close(h["2.weight"], approx["2.weight"])
        assert_close(h["0.6.weight"], approx["0.6.weight"])
        assert_close(h["0.4.weight"], approx["0.4.weight"])
        assert (h["0.0.weight"] - approx["0.0.weight"]).norm() > 1e-3 * approx["0.0.weight"].norm()


def test_methods_and_numbers_of_samples_are_checked():
    module, x = autoencoder(), data()
    with pytest.raises(ValueError, match="unknown method 'approximate': expected one of approx, exact"):
        ggn_diagonal(module, x, method="approximate")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="n_samples=0: expected at least 1"):
        ggn_diagonal(module, x, method="mc", n_samples=0)


@pytest.mark.parametrize("kind", ["residual", "sum"])
def test_approx_leaves_out_what_two_ways_have_in_common(kind):
    """For a diagonal M the pull through y = A x + B x is Σ_o m_o (A_oi + B_oi)²; its mixed term 2 Σ_o m_o A_oi B_oi is
    dropped; for a skip connection (A = I) it is 2 m_i B_ii, a sum over all ways through a branch of several layers."""
    torch.manual_seed(0)
    way = nn.Linear(5, 5, bias=False)
    other = None if kind == "residual" else nn.Linear(5, 5, bias=False)
    both = Residual(way) if other is None else Sum(other, way)
    module = nn.Sequential(nn.Linear(4, 5), both, nn.Linear(5, 3)).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    a, b = (torch.eye(5).double() if other is None else other.weight), way.weight
    m = as_a(nn.Linear, module[2]).weight.square().sum(0)  # diag(M) where the two ways have met
    h = ggn_diagonal(module, x)["0.bias"] / len(x)
    assert_close(h, m @ (a.square() + b.square()))
    whole = m @ (a + b).square()
    assert_close(whole - h, 2 * m @ (a * b))
    if kind == "residual":
        assert_close(whole - h, 2 * m * b.diagonal())
