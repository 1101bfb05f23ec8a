"""The generalised Gauss-Newton matrix of any network, in every approximation of the paper and three more.

All functions sum over the batch and leave the module unchanged. `method` of `ggn_diagonal`:

| method     | M that travels                              | result                         | cost                  |
|------------|---------------------------------------------|--------------------------------|-----------------------|
| exact      | all of it                                   | the exact diagonal             | quadratic in features |
| approx     | its diagonal                                | the paper's diagonal           | a backward pass       |
| mixed      | its diagonal, all from `switch` features on | between the two                | linear                |
| mc         | `n_samples` vectors with covariance H_out   | an unbiased estimate of exact  | a backward pass each  |
| sketch     | one such vector, summed over the batch      | likewise, noisier              | a backward pass each  |
| bottleneck | encoder: K rows; decoder: its diagonal      | exact encoder, approx decoder  | about K more passes   |

A network that can be walked (nested `Sequential`, `Residual` and `Sum` of layers with rules) is walked: `walked.py`.
Any other module uses gradients per sample: `per_sample.py`. "approx" and "mixed" need rules, and say which one is
missing; for such modules "bottleneck" uses random vectors in the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from lapae.curvature import methods
from lapae.curvature.call import Work, call
from lapae.curvature.chunking import within_memory
from lapae.curvature.collect import CollectBlocks, CollectDiagonal, CollectFactors, Kronecker, S, add
from lapae.curvature.forward import Forward, begin, walk
from lapae.curvature.likelihoods import Gaussian, Likelihood
from lapae.curvature.rules.base import Params
from lapae.curvature.sketch import sketch
from lapae.curvature.walked import Walk

DiagonalMethod = Literal["approx", "exact", "mixed", "mc", "sketch", "bottleneck"]
MEMORY_BUDGET = 1 << 30
"""Maximum number of bytes that exact methods use for M and the gradients of its rows, by working in chunks."""
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
    """Return the diagonal of the GGN of -log p(· | module(x)), summed over the batch.

    Args:
        module: any module that treats samples independently; parameters that require no gradient are left out.
        x: inputs (B, *in).
        likelihood: gives the Hessian at the output; `Gaussian()` by default.
        method: see the table above.
        params: weights to evaluate at, by the names of `named_parameters()`; the module's own by default.
        n_samples: vectors drawn by "mc" and "sketch", and in the decoder by "bottleneck" where it cannot be walked.
        generator: source of randomness of these vectors; torch's own by default.
        bottleneck: name of the layer or container whose output is the code; the narrowest layer by default.
        switch: number of features from which on "mixed" carries all of M.
        memory_budget: bytes for methods that hold more than a backward pass does.

    Returns:
        {parameter name: tensor of its shape}.
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
    """Return `ggn_diagonal` of a forward pass that was already recorded, and may be used for the loss as well.

    A sketch goes back through the graph of the output, and leaves it for the loss. `forward` is what `record` returned;
    with `forget`, it is consumed if that saves memory, and must not be used again.
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
    """Return the exact block of every layer (a module with its own parameters).

    Args:
        module: any module that treats samples independently; parameters that require no gradient are left out.
        x: inputs (B, *in).
        likelihood: gives the Hessian at the output; `Gaussian()` by default.
        params: weights to evaluate at, by the names of `named_parameters()`; the module's own by default.
        memory_budget: bytes for M and the gradients of its rows.

    Returns:
        {layer name: (P, P)}, over the layer's parameters flattened in their order (weight, bias).
    """
    likelihood = likelihood or Gaussian()

    @torch.no_grad()
    def of(part: Tensor, share: float) -> Params:
        return blocks(begin(module, part, params, lean=True), likelihood, memory_budget=int(memory_budget * share))

    return summed(of, x, "the blocks of the curvature")


@torch.no_grad()
def blocks(forward: Work, likelihood: Likelihood, *, memory_budget: int = MEMORY_BUDGET) -> Params:
    """Return `ggn_blocks` of a forward pass that `record` returned."""
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
    """Return Kronecker factors of the block of every parameter.

    Parameters other than weights of linear layers and convolutions have their whole block.

    Args:
        module: any module that treats samples independently; parameters that require no gradient are left out.
        x: inputs (B, *in).
        likelihood: gives the Hessian at the output; `Gaussian()` by default.
        params: weights to evaluate at, by the names of `named_parameters()`; the module's own by default.
        n_samples: vectors with covariance H_out that the output factor is made of; None for the exact factor.
        generator: source of randomness of these vectors; torch's own by default.
        memory_budget: bytes for M and the gradients of its rows.

    Returns:
        {parameter name: Kronecker}.
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
    """Return `ggn_kfac` of a forward pass that `record` returned."""
    if n_samples is not None:
        check_samples(n_samples)
    budget, collect = _numbers(memory_budget, forward), CollectFactors()
    if n_samples is None:
        methods.exact(forward, likelihood, collect, budget)
    else:
        methods.sampled(forward, likelihood, (n_samples, generator), collect, budget)
    return collect.of(forward)


def summed(of: Callable[[X, float], dict[str, S]], data: X, what: str) -> dict[str, S]:
    """Return the curvature of a batch, in smaller parts if it does not fit into memory: it is a sum over samples.

    Args:
        of: computes the curvature of a part within a share of the memory budget.
        data: inputs (B, *in), or a recorded forward pass.
        what: name of the result, for messages.

    Returns:
        {name: curvature}.
    """
    n_batch = len(data)

    def attempt(size: int) -> dict[str, S]:
        if size >= n_batch:
            return of(data, 1.0)
        total: dict[str, S] = {}
        for part in data.split(size):
            for name, h in of(part, size / n_batch).items():  # pyright: ignore[reportArgumentType]
                add(total, name, h)
        return total

    return within_memory(attempt, n_batch, f"{what} (samples)", ADVICE)[0]


def check_samples(n_samples: int) -> None:
    """Raise a ValueError for a number below 1."""
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples}: expected at least 1")


def _numbers(n_bytes: int, forward: Work) -> int:
    """Return a budget in bytes as one in numbers."""
    parameter = next(forward.module.parameters(), forward.x)
    return n_bytes // parameter.element_size()
