"""The linearised predictive of networks that no rule covers, and of large codes, against J Σ Jᵀ by brute force."""

from __future__ import annotations

import sys

import pytest
import torch
from explicit import EVERY, whole_root
from test_linearized import NETWORKS, brute_force, method_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from lapae.curvature.likelihoods import Categorical, Gaussian
from lapae.networks import Autoencoder
from lapae.predict import linearized, predict


class Attending(nn.Module):
    """A token that looks at three others."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 2))
        self.qkv, self.norm, self.out = nn.Linear(2, 6), nn.LayerNorm(2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.token.expand(len(x), 1, 2), x], 1)
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v)[:, 0])


class Unrolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(2, 3), nn.Linear(3, 2)

    def forward(self, z: Tensor) -> Tensor:
        h, out = z.new_zeros(len(z), 3), []
        for _ in range(3):
            h = self.cell(z, h)
            out.append(self.head(h))
        return torch.stack(out, 1)


def attending() -> Autoencoder:
    return Autoencoder(Attending(), Unrolled())


def spatial() -> Autoencoder:
    """A code of (1, 2, 1), by layers with rules."""
    encoder = nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Conv2d(1, 1, 2), nn.Tanh())
    return Autoencoder(encoder, nn.Sequential(nn.ConvTranspose2d(1, 1, 2), nn.Flatten(1, 2)))


@pytest.fixture(autouse=True)
def every_direction(monkeypatch):
    """Have the variance of a low-rank posterior from a root of its covariance: exact, where draws are unbiased."""
    monkeypatch.setattr("lapae.predict.linearized_lowrank.draws", whole_root)


@pytest.mark.parametrize("form", sorted(EVERY))
@pytest.mark.parametrize("likelihood", [Gaussian(0.7), Categorical()], ids=repr)
def test_variances_are_those_of_the_definition(form, likelihood):
    method, x = method_of(attending, (3, 2), likelihood, form)
    z_cov, x_var = brute_force(method, x)
    with torch.no_grad():
        for budget in (1, 3_000, 1 << 28):
            found = linearized(method, x, memory_budget=budget)
            assert_close(found.z_mean, method.network.encode(x))
            assert_close(found.output, method.network(x))
            assert_close(found.z_cov, z_cov)
            assert_close(found.z_var, z_cov.diagonal(dim1=1, dim2=2))
            assert_close(found.output_var, x_var)
        codes = linearized(method, x, outputs=False)
        assert codes.output_var is None
        assert_close(codes.z_cov, z_cov)


def test_a_trained_transformer_has_tangents():
    """In evaluation mode torch computes it by a shortcut that has no derivatives."""

    def transformer() -> Autoencoder:
        layer = nn.TransformerEncoderLayer(2, 1, 4, dropout=0.0, batch_first=True)
        return Autoencoder(nn.Sequential(layer, nn.Flatten(1), nn.Linear(6, 2)), Unrolled())

    method, x = method_of(transformer, (3, 2), Gaussian(0.7))
    method.eval()
    with torch.no_grad():
        found = linearized(method, x)
        shortcut = torch.backends.mha.get_fastpath_enabled()
    assert shortcut
    z_cov, x_var = brute_force(method.train(), x)
    assert_close(found.z_cov, z_cov)
    assert_close(found.output_var, x_var)


@pytest.mark.parametrize("network", [attending, spatial, NETWORKS["dense"][0]])
def test_large_codes_have_no_matrix(network, monkeypatch):
    method, x = method_of(network, (3, 2), Gaussian(0.7))
    z_cov, x_var = brute_force(method, x)
    with torch.no_grad():
        before = linearized(method, x)
        assert_close(before.z_cov, z_cov)
        for name in ("linearized", "linearized_any"):
            monkeypatch.setattr(sys.modules[f"lapae.predict.{name}"], "LARGEST_CODE", 1)
        for budget in (1, 1 << 28):
            found = linearized(method, x, memory_budget=budget)
            assert found.z_cov is None
            assert_close(found.z_var, before.z_var)
            assert_close(found.output_var, x_var)
        assert "z_cov" not in predict(method, x, predictive="linearized", want=("codes", "covariance")).values
