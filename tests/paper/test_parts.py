"""The mathematics that experiments bring along, against what is known in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lapae.config import MethodConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.methods import build
from lapae.methods.laplace import Laplace
from lapae.networks.builtin import mlp
from lapae_paper.experiments.base import decide
from lapae_paper.experiments.imputation import calibration
from lapae_paper.experiments.linearization import GRID, along
from lapae_paper.experiments.vae_variance import START, component_log_densities, learn_variances


def posterior(uncertain: str) -> Laplace:
    """A posterior of a fitted kind without training: unit precision, over all weights or the decoder's alone."""
    torch.manual_seed(0)
    config = MethodConfig(method="online", hessian="approx", uncertain=uncertain, initial_precision="prior")
    method = build(config, lambda: mlp((6,), 2, hidden=()), Gaussian(), 100)
    assert isinstance(method, Laplace)
    return method


def test_a_network_linear_in_its_uncertain_weights_has_no_linearisation_error() -> None:
    method = posterior("decoder")
    found = along(method, torch.randn(5, 6), seed=1)
    assert found.tangent.norm(dim=1).min() > 0.1
    torch.testing.assert_close(found.moved, found.linear, rtol=1e-4, atol=1e-5)
    assert found.relative_error().max() < 1e-3


def test_of_encoder_and_decoder_together_the_error_is_the_product_of_both_moves() -> None:
    """x̂ = D(E x) is bilinear: f(s) - f_lin(s) = s² dD dE x."""
    method, x = posterior("all"), torch.randn(5, 6)
    found = along(method, x, seed=1)
    gap = found.moved - found.linear
    s = torch.as_tensor(GRID, dtype=gap.dtype)
    scaled = gap / s[:, None, None].square()
    torch.testing.assert_close(scaled, scaled[-1:].expand_as(scaled), rtol=1e-2, atol=1e-3)
    assert found.relative_error().min() > 0.01


def test_the_density_of_the_mixture_is_that_of_torch() -> None:
    means, log_deviation, x = torch.randn(4, 2), 0.3 * torch.randn(4), torch.randn(7, 2)
    components = torch.distributions.Independent(
        torch.distributions.Normal(means, log_deviation.exp()[:, None].expand(4, 2)), 1
    )
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=torch.zeros(4)), components)
    found = component_log_densities(x, means, log_deviation).logsumexp(1)
    torch.testing.assert_close(found, mixture.log_prob(x))


@pytest.mark.parametrize("distance", [0.0, 2.0, 5.0])
def test_a_single_component_learns_the_mean_square_distance_to_the_data(distance: float) -> None:
    x = torch.randn(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = torch.tensor([[distance, 0.0]], dtype=torch.float64)
    (first, last), (before, after) = learn_variances(x, mean, (0, 200))
    assert first.item() == pytest.approx(START)
    assert last.square().item() == pytest.approx(float((x - mean).square().sum(1).mean() / 2), rel=1e-3)
    assert after > before


def test_variances_of_the_mixture_end_where_the_likelihood_is_flat() -> None:
    generator = torch.Generator().manual_seed(0)
    x, means = (torch.randn(n, 2, dtype=torch.float64, generator=generator) for n in (100, 9))
    (early, last), (before, after) = learn_variances(x, 3 * means, (3, 2000))
    gradients = []
    for sigma in (early, last):
        log_deviation = sigma.log().requires_grad_()
        likelihood = component_log_densities(x, 3 * means, log_deviation).logsumexp(1).mean()
        gradients.append(torch.autograd.grad(likelihood, log_deviation)[0].abs().max().item())
    assert gradients[1] < 1e-4 * gradients[0]
    assert after > before


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([1.0, 2.0, 3.0], ("+2.0 ± 0.6", "undecided")),  # t of 2.5 and two degrees of freedom is 4.3 standard errors
        ([1.5, 2.0, 2.5], ("+2.0 ± 0.3", "yes")),
        ([-1.5, -2.0, -2.5], ("-2.0 ± 0.3", "no")),
        ([0.25], ("+0.2", "one model")),
    ],
)
def test_a_gain_is_decided_by_students_t(gains: list[float], expected: tuple[str, str]) -> None:
    from scipy.stats import ttest_1samp

    assert decide(gains) == expected
    if len(gains) > 1:
        found: Any = ttest_1samp(gains, 0.0)
        assert (found.pvalue < 0.05) == (expected[1] != "undecided")


def test_calibration_is_the_mean_over_classifiers() -> None:
    """A classifier that is always sure of the right class, and one that is never: ECE 0 and 1."""

    class Sure(nn.Module):
        def __init__(self, shift: int) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.tensor(float(shift)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 1e3 * nn.functional.one_hot((x[:, 0] + self.shift).long() % 3, 3).float()

    y = np.arange(30) % 3
    samples = torch.as_tensor(y, dtype=torch.float32)[None, :, None]
    found = calibration([Sure(0).eval(), Sure(1).eval()], samples, y)
    assert found["accuracy"] == found["ece"] == 0.5
