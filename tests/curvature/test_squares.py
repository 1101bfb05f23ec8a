"""`approx` against an independent formulation: plain autograd through a network with squared weights and inputs.

Each layer y = A x with A linear in its weights becomes y' = A² x², and an activation f becomes a multiplication by
f'(x)². The gradient of Σ m y' through such a network carries diag(M) as the paper's rule says (appendix E.3.1): with
respect to a layer's squared input it is diag(M) below the layer, with respect to its squared weight the diagonal of its
block. Nothing of the engine is used.
"""

from __future__ import annotations

import pytest
import torch
from cases import CASES, Case, seeded
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close

from lapae.curvature import Residual, Sum, ggn_diagonal
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian
from lapae.networks import mlp

AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
SELECTIONS = (nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ZeroPad1d, nn.ZeroPad2d, nn.MaxPool2d)


class Times(torch.autograd.Function):
    """Forward gives a made value, backward multiplies: the links of the squared network."""

    @staticmethod
    def forward(ctx, link: Tensor, value: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(factor)
        return value.clone()

    @staticmethod
    def backward(ctx, m: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        return m * ctx.saved_tensors[0], None, None


class Select(torch.autograd.Function):
    """Backward is that of the layer itself at its real input, applied to m."""

    @staticmethod
    def forward(ctx, link: Tensor, x: Tensor, layer: nn.Module) -> Tensor:
        ctx.layer, ctx.x = layer, x
        return layer(x).detach().clone()

    @staticmethod
    def backward(ctx, m: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        with torch.enable_grad():
            x = ctx.x.detach().requires_grad_()
            return torch.autograd.grad(ctx.layer(x), x, m)[0], None, None


def squared_pass(
    module: nn.Module, name: str, x: Tensor, link: Tensor, squares: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """The output and a tensor of its shape through which diag(M) flows back; squared weights go to `squares`."""
    if isinstance(module, nn.Sequential):
        for child_name, child in module.named_children():
            x, link = squared_pass(child, f"{name}{child_name}.", x, link, squares)
        return x, link
    if isinstance(module, Residual):
        y, inner = squared_pass(module.branch, f"{name}branch.", x, link, squares)
        return x + y, link + inner
    if isinstance(module, Sum):
        first, second = (squared_pass(way, f"{name}{key}.", x, link, squares) for key, way in module.named_children())
        return first[0] + second[0], first[1] + second[1]
    y = module(x)
    if isinstance(module, AFFINE):
        mine = {k: p.detach().square().requires_grad_() for k, p in module.named_parameters()}
        squares.update({name + k: p for k, p in mine.items()})
        # x² enters by value, m leaves by the link
        return y, functional_call(module, mine, (x.square() + link - link.detach(),))
    if isinstance(module, SELECTIONS):
        return y, Select.apply(link, x, module)
    ones = torch.ones_like(x)
    return y, Times.apply(link, y, torch.func.jvp(module, (x,), (ones,))[1].square())


def squared_network(module: nn.Module, x: Tensor, likelihood) -> dict[str, Tensor]:
    squares: dict[str, Tensor] = {}
    with torch.no_grad():
        m = likelihood.hessian_diag(module(x)).expand_as(module(x))
    x = x.clone()
    for p in module.parameters():
        p.requires_grad_(False)
    _, link = squared_pass(module, "", x, torch.zeros_like(x, requires_grad=True), squares)
    for p in module.parameters():
        p.requires_grad_(True)
    gradients = torch.autograd.grad(link, list(squares.values()), m)
    return dict(zip(squares, gradients, strict=True))


def covered(case: Case) -> bool:
    known = (*AFFINE, *SELECTIONS, nn.Sequential, Residual, Sum)

    def is_activation(layer: nn.Module) -> bool:
        return type(layer).__module__.endswith("activation") and not isinstance(layer, nn.Softmax | nn.LogSoftmax)

    return all(isinstance(m, known) or is_activation(m) for m in case.module().modules())


COVERED = [case for case in CASES if covered(case)]


def test_most_cases_are_covered():
    assert len(COVERED) > 50


@pytest.mark.parametrize("case", COVERED, ids=lambda case: case.name)
@pytest.mark.parametrize("likelihood", [Gaussian(0.5), Bernoulli(), Categorical()], ids=repr)
def test_approx_is_autograd_through_the_squared_network(case: Case, likelihood):
    module, x = case.module(), case.x()
    assert_close(ggn_diagonal(module, x, likelihood, "approx"), squared_network(module, x, likelihood))


def test_the_paper_s_network_in_float32():
    torch.manual_seed(0)
    module, x = mlp((1, 28, 28), 2, hidden=(512, 256)), torch.randn(8, 1, 28, 28, generator=seeded(0))
    expected = squared_network(module.double(), x.double(), Gaussian())
    for name, h in ggn_diagonal(module.float(), x, method="approx").items():
        assert_close(h, expected[name].float(), rtol=1e-4, atol=1e-4 * expected[name].abs().max().item())
