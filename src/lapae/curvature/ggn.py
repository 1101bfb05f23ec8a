"""The generalised Gauss-Newton matrix of a network, in every approximation of the paper and two more.

All functions sum over the batch and leave the module as it was. `method` of `ggn_diagonal`:

| method     | M that travels                            | result                         | cost                  |
|------------|-------------------------------------------|--------------------------------|-----------------------|
| exact      | all of it                                 | the exact diagonal             | quadratic in features |
| approx     | its diagonal                              | the paper's diagonal           | a backward pass       |
| mixed      | its diagonal, all from `switch` features on | between the two              | linear                |
| mc         | `n_samples` vectors with covariance H_out | an unbiased estimate of exact  | a backward pass each  |
| sketch     | one such vector, summed over the batch    | likewise, noisier; any module  | a backward pass each  |
| bottleneck | decoder: its diagonal; encoder: K rows    | exact encoder, approx decoder  | about K more passes   |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from lapae.curvature.backward import Reader, approximate, data_per_chunk, exact, plan, pull_rows, push_tangents
from lapae.curvature.call import Call, call
from lapae.curvature.extract import BlockReader, DiagonalReader, Kronecker, KroneckerReader, full_name
from lapae.curvature.forms import Dense, Diagonal, Message, Rows, seed
from lapae.curvature.forward import Tape, leaves, n_features, record
from lapae.curvature.likelihoods import Gaussian, Likelihood
from lapae.curvature.memory import within_memory
from lapae.curvature.rules import Params, identity_rows
from lapae.curvature.sketch import sketch

DiagonalMethod = Literal["approx", "exact", "mixed", "mc", "sketch", "bottleneck"]
MEMORY_BUDGET = 1 << 30
"""Bytes that exact methods may use for M and the gradients of its rows; they work in chunks under it."""
ADVICE = "hessian approx, whose memory is linear, a smaller batch or a smaller network"
S = TypeVar("S", Tensor, Kronecker)
X = TypeVar("X", bound=Tensor | Tape | Call)


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
        module: plain `torch.nn` layers in (nested) `Sequential` and `Residual`; frozen parameters are left out.
        x: inputs (B, *in).
        likelihood: gives the Hessian at the output; `Gaussian()` by default.
        method: see the table above.
        params: weights to evaluate at instead of the module's, by the names of `named_parameters()`.
        n_samples: vectors drawn by "mc" and "sketch".
        generator: source of randomness of "mc" and "sketch".
        bottleneck: name of the layer (or container) whose output is the code, where it is not the narrowest.
        switch: number of features from which on "mixed" carries all of M.
        memory_budget: bytes for "exact" and "mixed".
    """
    likelihood = likelihood or Gaussian()
    if method == "sketch":
        check_samples(n_samples)
        return summed(
            lambda part, _: sketch(call(module, part, params), likelihood, n_samples, generator, keep_graph=False),
            x,
            "the sketch of the curvature",
        )

    @torch.no_grad()
    def of(part: Tensor, share: float) -> Params:
        return diagonal(
            record(module, part, params, lean=True),
            likelihood,
            method,
            n_samples=n_samples,
            generator=generator,
            bottleneck=bottleneck,
            switch=switch,
            memory_budget=int(memory_budget * share),
            forget=True,
        )

    return summed(of, x, f"the {method} curvature")


@torch.no_grad()
def diagonal(
    tape: Tape | Call,
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

    With `forget`, the tape is used up where that saves memory: it may not be used again.
    """
    if method == "sketch":
        check_samples(n_samples)
        return sketch(tape if isinstance(tape, Call) else tape.call(), likelihood, n_samples, generator)
    assert isinstance(tape, Tape), "all but the sketch go layer by layer: use record"
    read, tape = DiagonalReader(), tape.promoted()
    names, stop = _names(tape), tape.first_trainable
    output = tape.output.detach()
    budget = memory_budget // output.element_size()
    if method == "approx":
        approximate(tape.nodes, stop, likelihood.hessian_diag(output), read, forget=forget)
    elif method == "exact":
        _exact(tape, len(tape.nodes), seed(likelihood, output), read, budget)
    elif method == "mc":
        _sampled(tape, likelihood, read, n_samples, generator, budget)
    elif method == "mixed":
        k = max(stop, _first_narrow(tape, switch))
        message = seed(likelihood, output)
        if k < len(tape.nodes):
            m = approximate(tape.nodes, k, likelihood.hessian_diag(output), read, through=k > stop)
            message = Diagonal(m)
        if k > stop:
            _exact(tape, k, message, read, budget)
    elif method == "bottleneck":
        k = _bottleneck(tape, bottleneck)
        approximate(tape.nodes, max(k, stop), likelihood.hessian_diag(output), read)
        if k > stop:
            _exact(tape, k, Dense(_latent_curvature(tape, k, likelihood)), read, budget)
    else:
        raise ValueError(f"unknown method {method!r}: expected one of {', '.join(get_args(DiagonalMethod))}")
    return {name: read.result[name] for name in names}


def ggn_blocks(
    module: nn.Module,
    x: Tensor,
    likelihood: Likelihood | None = None,
    params: Mapping[str, Tensor] | None = None,
    *,
    memory_budget: int = MEMORY_BUDGET,
) -> Params:
    """Exact block of every layer: {layer name: (P, P)}, over its parameters flattened in their order (weight, bias)."""
    likelihood = likelihood or Gaussian()

    @torch.no_grad()
    def of(part: Tensor, share: float) -> Params:
        return blocks(record(module, part, params, lean=True), likelihood, memory_budget=int(memory_budget * share))

    return summed(of, x, "the blocks of the curvature")


@torch.no_grad()
def blocks(tape: Tape, likelihood: Likelihood, *, memory_budget: int = MEMORY_BUDGET) -> Params:
    """`ggn_blocks` of a forward pass that was already recorded."""
    read, tape = BlockReader(), tape.promoted()
    output = tape.output.detach()
    _exact(tape, len(tape.nodes), seed(likelihood, output), read, memory_budget // output.element_size())
    return {leaf.name: read.result[leaf.name] for leaf in leaves(tape.nodes) if leaf.trainable}


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
    """
    likelihood = likelihood or Gaussian()

    @torch.no_grad()
    def of(part: Tensor, share: float) -> dict[str, Kronecker]:
        tape = record(module, part, params, lean=True)
        budget = int(memory_budget * share)
        return kfac(tape, likelihood, n_samples=n_samples, generator=generator, memory_budget=budget)

    return summed(of, x, "the kfac curvature")


@torch.no_grad()
def kfac(
    tape: Tape,
    likelihood: Likelihood,
    *,
    n_samples: int | None = 1,
    generator: torch.Generator | None = None,
    memory_budget: int = MEMORY_BUDGET,
) -> dict[str, Kronecker]:
    """`ggn_kfac` of a forward pass that was already recorded."""
    read, tape = KroneckerReader(), tape.promoted()
    read.inputs(tape.nodes)
    budget = memory_budget // tape.output.element_size()
    if n_samples is None:
        _exact(tape, len(tape.nodes), seed(likelihood, tape.output.detach()), read, budget)
    else:
        _sampled(tape, likelihood, read, n_samples, generator, budget)
    result = read.result
    return {name: result[name] for name in _names(tape)}


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
                total[name] = total[name] + h if name in total else h
        return total

    return within_memory(attempt, n_data, f"{what} (data)", ADVICE)[0]


def _exact(tape: Tape, end: int, message: Message, read: Reader, budget: int) -> None:
    """Carry all of M from the output of node end - 1 to the first wanted layer, in chunks of data under the budget."""
    stop = tape.first_trainable
    nodes = tape.nodes[:end]
    size = data_per_chunk(plan(nodes, stop, message, read, budget), budget)
    n_data = len(tape.output)
    for i in range(0, n_data, size):
        data = slice(i, i + size)
        part = nodes if size >= n_data else [node.part(data) for node in nodes]
        exact(part, stop, message if size >= n_data else message.part(data), read, budget)


def _sampled(
    tape: Tape, likelihood: Likelihood, read: Reader, n_samples: int, generator: torch.Generator | None, budget: int
) -> None:
    """Pull back vectors v ~ N(0, H_out / n_samples), some at a time: E Σ v vᵀ = H_out."""
    check_samples(n_samples)
    output, stop = tape.output.detach(), tape.first_trainable
    floats = max(leaf.rule.row_floats(leaf) for leaf in leaves(tape.nodes)) * len(output)
    size = max(1, min(n_samples, budget // floats))
    for first in range(0, n_samples, size):
        n = min(size, n_samples - first)
        eps = torch.randn(n, *output.shape, dtype=output.dtype, device=output.device, generator=generator)
        rows = Rows(likelihood.hessian_factor(output, eps * n_samples**-0.5))
        for k in range(len(tape.nodes) - 1, stop - 1, -1):
            rows = pull_rows(tape.nodes[k], rows, read, need_input=k > stop)


def check_samples(n_samples: int) -> None:
    """ValueError for none."""
    if n_samples < 1:
        raise ValueError(f"n_samples={n_samples}: expected at least 1")


def _latent_curvature(tape: Tape, k: int, likelihood: Likelihood) -> Tensor:
    """M at the output of node k - 1, exactly, from one tangent a latent dimension: (B, K, K)."""
    output = tape.output.detach()
    z = tape.nodes[k - 1].y if k else tape.nodes[0].x
    t = push_tangents(tape.nodes[k:], identity_rows(z))
    return torch.einsum("rb...,sb...->brs", t, likelihood.hessian_product(output, t))


def _bottleneck(tape: Tape, name: str | None) -> int:
    """Index of the first node after the code."""
    if name is None:
        sizes = [n_features(node.y) for node in tape.nodes]
        return len(sizes) - sizes[::-1].index(min(sizes))  # the last of the narrowest: more layers are exact
    for i in range(len(tape.nodes) - 1, -1, -1):
        if tape.nodes[i].name == name or tape.nodes[i].name.startswith(f"{name}."):
            return i + 1
    raise ValueError(f"bottleneck={name!r} names no layer: there are {', '.join(n.name for n in tape.nodes)}")


def _first_narrow(tape: Tape, switch: int) -> int:
    """Number of nodes below the place where "mixed" goes from the diagonal to all of M, walking back.

    From there to the narrowest layer no output has more than `switch` features; 0 if that layer itself has more.
    """
    sizes = [n_features(node.y) for node in tape.nodes]
    k = sizes.index(min(sizes))
    while k < len(sizes) and sizes[k] <= switch:
        k += 1
    return k if min(sizes) <= switch else 0


def _names(tape: Tape) -> list[str]:
    """Full names of all wanted parameters, in the order of the layers."""
    return [full_name(leaf, key) for leaf in leaves(tape.nodes) for key in leaf.trainable]
