"""Convolutions with shapes and options that hypothesis draws, against the brute force."""

from __future__ import annotations

import pytest
import torch
from cases import seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from lapae.curvature import ggn_blocks, ggn_diagonal, ggn_kfac, reference
from lapae.curvature.likelihoods import Bernoulli

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@st.composite
def networks(draw) -> tuple[nn.Sequential, torch.Tensor]:
    """A drawn convolution among three more parametric layers."""
    dims = draw(st.integers(1, 3))
    each = {1: 6, 2: 3, 3: 2}[dims]

    def per_dim(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    groups = draw(st.sampled_from([1, 1, 2]))
    n_in, n_out = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel, stride, dilation = per_dim(1, 3), per_dim(1, 3), per_dim(1, 2)
    size = per_dim(2, each + 1)
    bias = draw(st.booleans())
    if draw(st.booleans()):
        extra = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
        lengths = [
            (n - 1) * s + d * (k - 1) + 1 + e
            for n, s, d, k, e in zip(size, stride, dilation, kernel, extra, strict=True)
        ]
        padding = tuple(draw(st.integers(0, min(2, (n - 1) // 2))) for n in lengths)
        layer = TRANSPOSED[dims](n_in, n_out, kernel, stride, padding, extra, groups, bias, dilation)
    elif draw(st.booleans()):
        layer = CONV[dims](
            n_in, n_out, kernel, padding=draw(st.sampled_from(["same", "valid"])), dilation=1, groups=groups, bias=bias
        )
        size = tuple(max(n, k) for n, k in zip(size, kernel, strict=True))
    else:
        padding = per_dim(0, 2)
        size = tuple(
            max(n, d * (k - 1) + 1 - 2 * p) for n, d, k, p in zip(size, dilation, kernel, padding, strict=True)
        )
        layer = CONV[dims](n_in, n_out, kernel, stride, padding, dilation, groups, bias)
    torch.manual_seed(draw(st.integers(0, 99)))
    layer.reset_parameters()
    module = nn.Sequential(
        CONV[dims](1, n_in, 1), nn.Tanh(), layer, nn.Tanh(), CONV[dims](n_out, 2, 1), nn.Tanh(), CONV[dims](2, 1, 1)
    ).double()
    x = torch.randn(draw(st.integers(1, 3)), 1, *size, dtype=torch.float64, generator=seeded(0))
    return module, x


@settings(max_examples=80, deadline=None, derandomize=True)
@given(networks(), st.sampled_from([1, 1 << 30]))
def test_drawn_convolutions(drawn, flip_floats):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lapae.curvature.rules.convolution.FLIP_FLOATS", flip_floats)
        check(*drawn)


def check(module: nn.Sequential, x: torch.Tensor) -> None:
    expected = reference.ggn_diagonal(module, x, Bernoulli())
    assert_close(ggn_diagonal(module, x, Bernoulli(), "exact"), expected)
    assert_close(ggn_blocks(module, x, Bernoulli()), reference.ggn_blocks(module, x, Bernoulli()))
    last = ggn_diagonal(module, x, Bernoulli(), "approx")
    assert_close({k: last[k] for k in ("6.weight", "6.bias")}, {k: expected[k] for k in ("6.weight", "6.bias")})
    if module[2].groups == 1:
        factors = ggn_kfac(module, x, Bernoulli(), n_samples=None)
        layer = module[2]
        y = layer(module[:2](x))
        # the input factor by its definition: the Jacobian of one output channel, a position and a sample, by the weight
        jacobian = torch.func.vmap(
            torch.func.jacrev(
                lambda w, x: torch.func.functional_call(layer, {"weight": w}, (x[None],))[0, 0].flatten()
            ),
            in_dims=(None, 0),
        )(layer.weight, module[:2](x))  # (B, P, *weight)
        channel = jacobian[:, :, :, 0] if isinstance(layer, tuple(TRANSPOSED.values())) else jacobian[:, :, 0]
        columns = channel.flatten(2).flatten(0, 1)
        assert factors["2.weight"].n == len(columns) == len(x) * y[0, 0].numel()
        assert_close(factors["2.weight"].a, columns.T @ columns)
