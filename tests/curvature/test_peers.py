"""The same numbers as other people's code, where it supports the network.

Their losses are sums of squared errors, whose Hessian is twice that of a unit Gaussian, and of cross-entropies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import seeded
from narrow import sure
from torch import Tensor, nn
from torch.testing import assert_close

from lapae.curvature import Kronecker, ggn_diagonal, ggn_kfac, reference
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian

backpack = pytest.importorskip("backpack", reason="BackPACK is an optional oracle")
backpack_extensions = pytest.importorskip(
    "backpack.extensions", reason="BackPACK is one of the peers that `make test` installs"
)


@pytest.fixture(autouse=True)
def double_by_default():
    """BackPACK unfolds with a kernel of the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def dense_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2), nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 5), nn.Sigmoid(),
        nn.Linear(5, 4),
    )  # fmt: skip


def convolutional_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2, stride=2, bias=False), nn.ELU(),
        nn.ConvTranspose2d(2, 2, 2, stride=2), nn.Sigmoid(), nn.AvgPool2d(2), nn.Conv2d(2, 2, 1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip


def plain_convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 2, stride=2), nn.Tanh(),
        nn.Conv2d(2, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(32, 4), nn.Tanh(), nn.Linear(4, 4),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "dense": (dense_network, (5,)),
    "convolutional": (convolutional_network, (1, 8, 8)),
    "convolutions alone": (plain_convolutions, (1, 8, 8)),
}


def made(name: str) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    return build().double(), torch.randn(3, *shape, dtype=torch.float64, generator=seeded(1))


def targets(loss: nn.Module, output: Tensor) -> Tensor:
    if isinstance(loss, nn.CrossEntropyLoss):
        return torch.randint(output.shape[1], (len(output),), generator=seeded(2))
    return torch.rand(output.shape, dtype=output.dtype, generator=seeded(2)).round()


def with_backpack(module: nn.Module, x: Tensor, loss: nn.Module, *extensions) -> nn.Module:
    """An extended copy (hooks stay on what is extended) with the extensions' results on its parameters."""
    module = backpack.extend(copy.deepcopy(module))
    output = module(x)
    value = backpack.extend(copy.deepcopy(loss))(output, targets(loss, output.detach()))
    with backpack.backpack(*extensions):
        value.backward()
    return module


def found_by(module: nn.Module, extension: str) -> dict[str, Any]:
    """What an extension of BackPACK has left on each parameter."""
    return {name: getattr(p, extension) for name, p in module.named_parameters()}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    ("likelihood", "loss", "factor"),
    [(Gaussian(), nn.MSELoss(reduction="sum"), 2), (Categorical(), nn.CrossEntropyLoss(reduction="sum"), 1)],
)
def test_exact_is_backpack_s(name, likelihood, loss, factor):
    module, x = made(name)
    theirs = with_backpack(module, x, loss, backpack_extensions.DiagGGNExact())
    h = ggn_diagonal(module, x, likelihood, "exact")
    assert_close({k: v * factor for k, v in h.items()}, found_by(theirs, "diag_ggn_exact"))


@pytest.mark.parametrize("name", ["dense", "convolutions alone"])
def test_exact_is_laplace_torch_s(name):
    curvature = pytest.importorskip("laplace.curvature", reason="laplace-torch is an optional oracle")
    module, x = made(name)
    for likelihood, task, target in (
        (Gaussian(), "regression", module(x).detach() + 1),
        (Categorical(), "classification", torch.tensor([0, 1, 3])),
    ):
        _, theirs = curvature.BackPackGGN(copy.deepcopy(module), task).diag(x, target)
        ours = torch.cat([h.flatten() for h in ggn_diagonal(module, x, likelihood, "exact").values()])
        assert_close(ours, theirs)


def positions(module: nn.Module, x: Tensor) -> dict[str, int]:
    """Output positions of each layer."""
    found: dict[str, int] = {}
    for name, layer in module.named_children():
        x = layer(x)
        found[name] = x[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1
    return found


def as_backpack(factors: dict[str, Kronecker], name: str, n_data: int) -> Tensor:
    """Our factors put together as BackPACK does.

    For a convolution it takes the block of the bias as output factor (a sum over positions inside the outer product:
    Grosse and Martens, curvlinops and we sum over positions outside) and does not divide by their number.
    """
    if name.endswith("bias"):
        return factors[name].g
    return torch.kron(factors[name.replace("weight", "bias")].g, sure(factors[name].a) / n_data)


def block_of(factors: list[Tensor]) -> Tensor:
    return factors[0] if len(factors) == 1 else torch.kron(factors[0], factors[1])


@pytest.mark.parametrize("name", ["dense", "convolutions alone"])
@pytest.mark.parametrize(
    ("likelihood", "loss", "factor"),
    [(Gaussian(), nn.MSELoss(reduction="sum"), 2), (Categorical(), nn.CrossEntropyLoss(reduction="sum"), 1)],
)
def test_kfac_with_the_exact_output_factor_is_backpack_s_kflr(name, likelihood, loss, factor):
    module, x = made(name)
    theirs = with_backpack(module, x, loss, backpack_extensions.KFLR())
    ours = ggn_kfac(module, x, likelihood, n_samples=None)
    for k in ours:
        assert_close(as_backpack(ours, k, len(x)) * factor, block_of(found_by(theirs, "kflr")[k]))
        if name == "dense":
            assert_close(as_backpack(ours, k, len(x)), ours[k].block())


@pytest.mark.parametrize("name", ["dense", "convolutions alone"])
def test_sampled_kfac_is_backpack_s_in_expectation(name):
    """Both sample the output factor: their means agree with the exact one, ours within its standard error."""
    module, x = made(name)
    exact = ggn_kfac(module, x, n_samples=None)
    n_draws = 40
    draws = [ggn_kfac(module, x, n_samples=50, generator=seeded(s)) for s in range(n_draws)]
    torch.manual_seed(0)
    theirs = with_backpack(module, x, nn.MSELoss(reduction="sum"), backpack_extensions.KFAC(mc_samples=4000))
    for k, factors in exact.items():
        g = torch.stack([draw[k].g for draw in draws])
        assert ((g.mean(0) - factors.g).abs() <= 6 * g.std(0) / n_draws**0.5 + 1e-12).all()
        expected = as_backpack(exact, k, len(x))
        assert (block_of(found_by(theirs, "kfac")[k]) / 2 - expected).norm() < 0.1 * expected.norm()
        assert draws[0][k].a is None or torch.equal(sure(draws[0][k].a), sure(factors.a))


@pytest.mark.parametrize("name", ["dense", "convolutions alone"])
@pytest.mark.parametrize(
    ("likelihood", "loss", "factor"),
    [(Gaussian(), nn.MSELoss(reduction="sum"), 2), (Categorical(), nn.CrossEntropyLoss(reduction="sum"), 1)],
)
def test_kfac_is_curvlinops_s(name, likelihood, loss, factor):
    """Their operator has one block per parameter, in order, for weights and biases apart."""
    kfac = pytest.importorskip("curvlinops.kfac", reason="curvlinops is an optional oracle")
    module, x = made(name)
    module_copy = copy.deepcopy(module)
    batches = [(x, targets(loss, module(x).detach()))]
    operator = kfac.KFACLinearOperator(
        module_copy, loss, list(module_copy.parameters()), batches, fisher_type="type-2", check_deterministic=False
    )
    theirs = operator @ torch.eye(operator.shape[1], dtype=x.dtype)
    ours = ggn_kfac(module, x, likelihood, n_samples=None)
    first = 0
    for k, factors in ours.items():
        size = module.get_parameter(k).numel()
        block = theirs[first : first + size, first : first + size]
        if k.endswith("weight") or positions(module, x)[k.removesuffix(".bias")] == 1:
            assert_close(factors.block() * factor, block)
        else:  # ours is the exact block; theirs leaves out products between positions
            exact = reference.ggn_blocks(module, x, likelihood)[k.removesuffix(".bias")][-size:, -size:]
            assert_close(factors.block(), exact)
        first += size


def test_bernoulli_is_backpack_s():
    """They take one output only."""
    module, x = made("dense")
    module = nn.Sequential(*module, nn.Tanh(), nn.Linear(4, 1)).double()
    theirs = with_backpack(module, x, nn.BCEWithLogitsLoss(reduction="sum"), backpack_extensions.DiagGGNExact())
    h = ggn_diagonal(module, x, Bernoulli(), "exact")
    assert_close(h, found_by(theirs, "diag_ggn_exact"))


def test_factors_add_up_over_batches():
    module, x = made("convolutions alone")
    whole = ggn_kfac(module, x, n_samples=None)
    first, second = ggn_kfac(module, x[:2], n_samples=None), ggn_kfac(module, x[2:], n_samples=None)
    for k in whole:
        total: Kronecker = first[k] + second[k]
        assert_close(total.block(), whole[k].block())
