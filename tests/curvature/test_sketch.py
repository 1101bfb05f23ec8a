"""The sketch against brute force, on modules that no rule covers."""

from __future__ import annotations

import math

import pytest
import torch
from cases import seeded
from narrow import as_a
from scipy import stats
from torch import Tensor, nn
from torch.testing import assert_close
from zoo import LIBRARIES, MODULES, Pair, build

from lapae.curvature import call, diagonal, ggn_diagonal, record, reference
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood

CHANCE = 1e-6
"""Of a statistical test to fail for another seed."""


def module_of(name: str) -> tuple[nn.Module, Tensor]:
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name][0], reason=f"{LIBRARIES[name][0]} is a test extra")
    return build(name)


class EveryDirection(Bernoulli):
    """Unit vectors in turn for random ones: their squares add up to what the squares of random ones have as a mean."""

    def hessian_factor(self, output: Tensor, eps: Tensor) -> Tensor:
        unit = torch.zeros_like(eps).flatten()
        unit[self.turn] = math.sqrt(unit.numel())
        self.turn += 1
        return super().hessian_factor(output, unit.reshape(eps.shape))


@pytest.mark.parametrize("name", [*MODULES, *LIBRARIES])
def test_every_direction_once_is_the_brute_force(name):
    module, x = module_of(name)
    likelihood = EveryDirection()
    object.__setattr__(likelihood, "__dict__", {**vars(likelihood), "turn": 0})
    n = reference.outputs(module, x).numel()
    h = ggn_diagonal(module, x, likelihood, "sketch", n_samples=n)
    assert_close(h, reference.ggn_diagonal(module, x, Bernoulli()))
    assert list(h) == [name for name, p in module.named_parameters() if p.requires_grad]


@pytest.mark.parametrize(
    ("name", "likelihood"),
    [("tied", Categorical()), ("vit", Bernoulli()), ("recurrent", Gaussian(0.5)), ("u-net", Gaussian(2.0))],
)
def test_it_is_unbiased(name, likelihood: Likelihood):
    """A Gaussian vector has Gaussian gradients, so that n times the ratio to the exact diagonal is χ² of n."""
    module, x = module_of(name)
    n = 1000
    h = ggn_diagonal(module, x, likelihood, "sketch", n_samples=n, generator=seeded(3))
    exact = reference.ggn_diagonal(module, x, likelihood)
    alive = torch.cat([exact[k].flatten() for k in exact])
    ratio = torch.cat([h[k].flatten() for k in exact])[alive > 1e-12] / alive[alive > 1e-12]
    low, high = stats.chi2.ppf([CHANCE / (2 * len(ratio)), 1 - CHANCE / (2 * len(ratio))], n) / n
    assert low < ratio.min()
    assert ratio.max() < high
    assert (torch.cat([h[k].flatten() for k in exact])[alive <= 1e-12] < 1e-9).all()


def test_other_weights_and_frozen_ones():
    (module, x), other = build("vit"), build("vit")[0]
    for p in other.parameters():
        p.data.mul_(1.5)
    state = {k: v.clone() for k, v in module.state_dict().items()}
    params = dict(other.named_parameters())
    h = ggn_diagonal(module, x, method="sketch", params=params, generator=seeded(1))
    assert_close(h, ggn_diagonal(other, x, method="sketch", generator=seeded(1)))
    assert_close(module.state_dict(), state, rtol=0, atol=0)
    assert not any(v.requires_grad for v in h.values())
    assert all(p.grad is None for p in (*module.parameters(), *other.parameters()))
    with pytest.raises(ValueError, match="params lacks"):
        ggn_diagonal(module, x, method="sketch", params={"token": params["token"]})
    module.token.requires_grad_(False)
    module.mlp.requires_grad_(False)
    rest = ggn_diagonal(module, x, method="sketch", params=params, generator=seeded(1))
    assert_close(rest, {k: v for k, v in h.items() if k != "token" and not k.startswith("mlp.")})


def test_a_loss_goes_back_through_the_same_graph():
    module, x = build("u-net")
    params = {k: p.detach().clone().requires_grad_() for k, p in module.named_parameters()}
    run = call(module, x, params)
    h = diagonal(run, Gaussian(), "sketch", generator=seeded(2))
    Gaussian().log_prob(run.output, x).sum().backward()
    assert_close(h, ggn_diagonal(module, x, method="sketch", generator=seeded(2)))
    expected = torch.autograd.grad(Gaussian().log_prob(module(x), x).sum(), list(module.parameters()))
    assert_close(tuple(p.grad for p in params.values()), expected)


@pytest.mark.parametrize("grad", [True, False])
def test_a_walked_forward_pass_serves_too(grad):
    pair, x = build("pair")
    module = nn.Sequential(as_a(Pair, pair).a, nn.Tanh(), as_a(Pair, pair).b)
    with torch.set_grad_enabled(grad):
        tape = record(module, x)
    h = diagonal(tape, Gaussian(), "sketch", generator=seeded(2))
    assert_close(h, ggn_diagonal(module, x, method="sketch", generator=seeded(2)))


def test_a_parameter_that_is_not_used_has_none():
    module, x = build("pair")
    module.idle = nn.Parameter(torch.ones(3, dtype=torch.float64))
    assert torch.equal(ggn_diagonal(module, x, method="sketch")["idle"], torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (nn.BatchNorm1d(5), "batch statistics couple the samples"),
        (nn.Dropout(0.1), "dropout is on"),
        (nn.LSTM(5, 5, num_layers=2, dropout=0.1), "dropout is on"),
    ],
)
def test_what_couples_data_or_is_random_is_refused(layer, reason):
    module = nn.Sequential(nn.Linear(5, 5), layer).double().train()
    with pytest.raises(ValueError, match=rf"layer '1', .*{reason}"):
        ggn_diagonal(module, torch.zeros(3, 5).double(), method="sketch")


def test_mistakes():
    with pytest.raises(ValueError, match="n_samples=0: expected at least 1"):
        ggn_diagonal(nn.Linear(2, 2), torch.zeros(2, 2), method="sketch", n_samples=0)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        ggn_diagonal(nn.Linear(2, 2).requires_grad_(False), torch.zeros(2, 2), method="sketch")
    with pytest.raises(ValueError, match="expected a batch of at least one sample"):
        ggn_diagonal(nn.Linear(2, 2), torch.zeros(2), method="sketch")


class Overlapping(nn.Module):
    """Gradients that share memory: of equal parameters, and of a part of another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(5))
        self.part, self.scale = nn.Parameter(torch.randn(2)), nn.Parameter(torch.randn(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (x + (self.a + self.b + torch.cat([self.b[:3], self.part])))


def test_gradients_that_share_memory():
    torch.manual_seed(0)
    module, x = Overlapping().double(), torch.randn(1, 5, dtype=torch.float64)
    h = ggn_diagonal(module, x, method="sketch", generator=seeded(4))
    v = torch.randn(1, 1, 5, dtype=torch.float64, generator=seeded(4))[0]
    expected = torch.autograd.grad(module(x), list(module.parameters()), v)
    assert_close(tuple(h.values()), tuple(g.square() for g in expected))
