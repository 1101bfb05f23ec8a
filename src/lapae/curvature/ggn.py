"""The generalised Gauss-Newton matrix of any network, in every approximation of the paper and three more.

All functions sum over the batch and leave the module as it was. `method` of `ggn_diagonal`:

| method     | M that travels                              | result                         | cost                  |
|------------|---------------------------------------------|--------------------------------|-----------------------|
| exact      | all of it                                   | the exact diagonal             | quadratic in features |
| approx     | its diagonal                                | the paper's diagonal           | a backward pass       |
| mixed      | its diagonal, all from `switch` features on | between the two                | linear                |
| mc         | `n_samples` vectors with covariance H_out   | an unbiased estimate of exact  | a backward pass each  |
| sketch     | one such vector, summed over the batch      | likewise, noisier              | a backward pass each  |
| bottleneck | encoder: K rows; decoder: its diagonal      | exact encoder, approx decoder  | about K more passes   |

A network that can be walked (nested `Sequential`, `Residual` and `Sum` of layers with rules) is walked: `walked.py`.
Any other module goes by gradients per datum, `any_module.py`; "approx" and "mixed" need rules and say which is missing,
and in "bottleneck" one random vector stands for the diagonal in the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from lapae.curvature import methods
from lapae.curvature.call import Work, call
from lapae.curvature.collect import CollectBlocks, CollectDiagonal, CollectFactors, Kronecker, S, add
from lapae.curvature.forward import Forward, begin, walk
from lapae.curvature.likelihoods import Gaussian, Likelihood
from lapae.curvature.memory import within_memory
from lapae.curvature.rules.base import Params
from lapae.curvature.sketch import sketch
from lapae.curvature.walked import Walk

DiagonalMethod = Literal["approx", "exact", "mixed", "mc", "sketch", "bottleneck"]
MEMORY_BUDGET = 1 << 30
"""Bytes that exact methods may use for M and the gradients of its rows; they work in chunks under it."""
ADVICE = "hessian approx or sketch, whose memory is linear, a smaller batch or a smaller network"
X = TypeVar("X", bound=Tensor | Work)


def ggn_diagonal(
    module: nn.Module,
    x: Tensor,
    likelihood: Likelihood | None = None,
    method: DiagonalMethod = "approx",
    params: Mapping[str, Tensor] | None = None,
    *,
    n_samples: int = 1,
    generator: torch.Generator | None = None,
    bottleneck: str | None = None,
    switch: int = 1024,
    memory_budget: int = MEMORY_BUDGET,
) -> Params:
    """Diagonal of the GGN of -log p(· | module(x)), summed over the batch: {parameter name: tensor of its shape}.

    Args:
        module: any module that treats data independently; parameters that require no gradient are left out.
        x: inputs (B, *in).
        likelihood: gives the Hessian at the output; `Gaussian()` by default.
        method: see the table above.
        params: weights to evaluate at instead of the module's, by the names of `named_parameters()`.
        n_samples: vectors drawn by "mc" and "sketch", and in the decoder by "bottleneck" where it cannot be walked.
        generator: source of randomness of these.
        bottleneck: name of the layer (or container) whose output is the code, where it is not the narrowest.
        switch: number of features from which on "mixed" carries all of M.
        memory_budget: bytes for methods that hold more than a backward pass does.
    """
    likelihood = likelihood or Gaussian()
    what = f"the {method} curvature"
    if method == "sketch":
        check_samples(n_samples)
        once = partial(sketch, likelihood=likelihood, n_samples=n_samples, generator=generator, keep_graph=False)
        return summed(lambda part, _: once(call(module, part, params)), x, what)
    options: dict[str, Any] = {"n_samples": n_samples, "generator": generator}
    options |= {"bottleneck": bottleneck, "switch": switch, "forget": True}

    @torch.no_grad()
    def of(part: Tensor, share: float) -> Params:
        start = walk if method in ("approx", "mixed") else begin
        forward = start(module, part, params, lean=True)
        return diagonal(forward, likelihood, method, memory_budget=int(memory_budget * share), **options)

    return summed(of, x, what)


@torch.no_grad()
def diagonal(
    forward: Work,
    likelihood: Likelihood,
    method: DiagonalMethod = "approx",
    *,
    n_samples: int = 1,
    generator: torch.Generator | None = None,
    bottleneck: str | None = None,
    switch: int = 1024,
    memory_budget: int = MEMORY_BUDGET,
    forget: bool = False,
) -> Params:
    """`ggn_diagonal` of a forward pass that was already recorded (and may serve the loss as well).

    A sketch goes back through the graph of its output, and leaves it for the loss. With `forget`, the record is used up
    where that saves memory: it may not be used again.
    """
    if method not in get_args(DiagonalMethod):
        raise ValueError(f"unknown method {method!r}: expected one of {', '.join(get_args(DiagonalMethod))}")
    check_samples(n_samples)
    sampling = n_samples, generator
    if method == "sketch":
        return sketch(forward.call(), likelihood, n_samples, generator)
    budget, collect = _numbers(memory_budget, forward), CollectDiagonal()
    if method == "exact":
        methods.exact(forward, likelihood, collect, budget)
    elif method == "mc":
        methods.sampled(forward, likelihood, sampling, collect, budget)
    elif method == "bottleneck":
        methods.bottleneck(forward, likelihood, bottleneck, sampling, collect, budget)
    else:
        if not isinstance(forward, Forward):
            forward = walk(forward.module, forward.x, forward.values, lean=True)
        at = Walk.of(forward)
        if method == "approx":
            at.approx(likelihood, collect, forget)
        else:
            at.mixed(likelihood, switch, collect, budget)
    return collect.of(forward)


def ggn_blocks(
    module: nn.Module,
    x: Tensor,
    likelihood: Likelihood | None = None,
    params: Mapping[str, Tensor] | None = None,
    *,
    memory_budget: int = MEMORY_BUDGET,
) -> Params:
    """Exact block of every layer: {layer name: (P, P)}, over its parameters flattened in their order (weight, bias).

    A layer is a module with parameters of its own; see `ggn_diagonal` for the arguments.
    """
    likelihood = likelihood or Gaussian()

    @torch.no_grad()
    def of(part: Tensor, share: float) -> Params:
        return blocks(begin(module, part, params, lean=True), likelihood, memory_budget=int(memory_budget * share))

    return summed(of, x, "the blocks of the curvature")


@torch.no_grad()
def blocks(forward: Work, likelihood: Likelihood, *, memory_budget: int = MEMORY_BUDGET) -> Params:
    """`ggn_blocks` of a forward pass that was already recorded."""
    collect = CollectBlocks()
    methods.exact(forward, likelihood, collect, _numbers(memory_budget, forward))
    return collect.of(forward)


def ggn_kfac(
    module: nn.Module,
    x: Tensor,
    likelihood: Likelihood | None = None,
    params: Mapping[str, Tensor] | None = None,
    *,
    n_samples: int | None = 1,
    generator: torch.Generator | None = None,
    memory_budget: int = MEMORY_BUDGET,
) -> dict[str, Kronecker]:
    """Kronecker factors of every weight's and bias's block: {parameter name: Kronecker}.

    The output factor is sampled from `n_samples` vectors with covariance H_out, or exact with `n_samples=None`.
    Parameters other than weights of linear layers and convolutions have their whole block; see `ggn_diagonal` for the
    arguments.
    """
    likelihood = likelihood or Gaussian()

    @torch.no_grad()
    def of(part: Tensor, share: float) -> dict[str, Kronecker]:
        forward = begin(module, part, params, lean=True)
        budget = int(memory_budget * share)
        return kfac(forward, likelihood, n_samples=n_samples, generator=generator, memory_budget=budget)

    return summed(of, x, "the kfac curvature")


@torch.no_grad()
def kfac(
    forward: Work,
    likelihood: Likelihood,
    *,
    n_samples: int | None = 1,
    generator: torch.Generator | None = None,
    memory_budget: int = MEMORY_BUDGET,
) -> dict[str, Kronecker]:
    """`ggn_kfac` of a forward pass that was already recorded."""
    if n_samples is not None:
        check_samples(n_samples)
    budget, collect = _numbers(memory_budget, forward), CollectFactors()
    if n_samples is None:
        methods.exact(forward, likelihood, collect, budget)
    else:
        methods.sampled(forward, likelihood, (n_samples, generator), collect, budget)
    return collect.of(forward)


def summed(of: Callable[[X, float], dict[str, S]], data: X, what: str) -> dict[str, S]:
    """The curvature of a batch, or of a recorded one, in parts where it does not fit into memory: a sum over data.

    `of` makes that of a part in a share of the memory budget.
    """
    n_data = len(data)

    def attempt(size: int) -> dict[str, S]:
        if size >= n_data:
            return of(data, 1.0)
        total: dict[str, S] = {}
        for part in data.split(size):
            for name, h in of(part, size / n_data).items():  # pyright: ignore[reportArgumentType]
                add(total, name, h)
        return total

    return within_memory(attempt, n_data, f"{what} (data)", ADVICE)[0]


def check_samples(n_samples: int) -> None:
    """ValueError for none."""
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples}: expected at least 1")


def _numbers(n_bytes: int, forward: Work) -> int:
    """A budget in bytes as one in numbers."""
    parameter = next(forward.module.parameters(), forward.x)
    return n_bytes // parameter.element_size()
