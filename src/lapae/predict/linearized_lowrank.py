"""The linearised predictive of a low-rank posterior: by tangents of the network, for any module.

The covariance of the weights is that of a diagonal less T directions, C⁻¹ = M⁻¹ - BᵀB with B = L⁻¹ W M⁻¹ (T, P) and
L Lᵀ = I + K, so that for a row J of the Jacobian

    Var = J M⁻¹ Jᵀ - |L⁻¹ W M⁻¹ Jᵀ|²

The first term is the linearised predictive of a diagonal posterior, which is known. The second takes the tangents of
the encoder along the T rows of W M⁻¹: matrix products where all weights are those of linear layers
(`curvature/dense.py`), else one pass each. Codes are few, and theirs is this exact variance. That of outputs, which are
more, is of the tangents J δ_s of drawn weights θ + δ_s, far fewer passes: it is unbiased, and its relative
standard deviation √(2 / 64). The network is evaluated at the mean weights alone.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from lapae.curvature.chunking import is_out_of_memory
from lapae.curvature.dense import RowProducts, walk_dense
from lapae.curvature.forward import Forward, leaves
from lapae.curvature.rules.base import identity_rows
from lapae.curvature.stateless import Stateless
from lapae.methods.laplace import Laplace
from lapae.networks import Autoencoder
from lapae.posterior import DiagonalPrecision, LowRankPrecision, Precision
from lapae.posterior.noise import fill_normal
from lapae.predict.closed_form import ClosedForm, pull_mean

MOST_OUTPUTS = 128
"""Outputs up to which rows of the Jacobian take directions of linear layers to them."""
DRAWS = 64
"""Draws of the weights for the variance of outputs."""
KEPT_FLOATS = 1 << 27
"""Numbers of directions or draws that are kept from one batch to the next."""

Outputs = tuple[Tensor, Tensor]
"""Codes and expected data, or tangents of them."""
Push = Callable[[Mapping[str, Tensor]], Outputs]


def of_low_rank(
    method: Laplace,
    x: Tensor,
    codes: bool,
    outputs: bool,
    budget: int,
    diagonal: Callable[[Laplace, Tensor], ClosedForm],
) -> ClosedForm:
    """Predict mean and variance of codes and reconstructions for a batch.

    Args:
        method: with a low-rank posterior.
        x: samples (B, *shape) in the model's space.
        codes: whether the variance of codes is wanted.
        outputs: whether that of reconstructions is.
        budget: numbers in memory.
        diagonal: the linearised predictive of the codes of a method with a diagonal posterior.
    """
    precision = method.posterior
    assert isinstance(precision, LowRankPrecision)
    z = method.network.encode(x)
    z_var, z_cov, x_var = torch.zeros_like(z), None, None
    if codes:
        found = diagonal(with_base(method), x)
        z_var, z_cov = found.z_var.clone(), found.z_cov
    if codes and precision.n_vectors:
        along = precision.kept("over base", KEPT_FLOATS, lambda: precision.over_base(KEPT_FLOATS))
        of_codes = torch.cat([part for part, _ in tangents(method, x, along, budget, outputs=False)])
        of_codes = precision.solve(of_codes.flatten(1)).reshape(of_codes.shape)
        z_var -= of_codes.square().sum(0) * precision.temperature
        if z_cov is not None:
            flat = of_codes.flatten(2)
            z_cov = z_cov - torch.einsum("tbk,tbl->bkl", flat, flat) * precision.temperature
    output = method.network.decode(z)
    if outputs:
        x_var = torch.zeros_like(output)
        for _, y in tangents(method, x, draws(precision, range(DRAWS)), budget):
            x_var += y.square().sum(0) / DRAWS
    return ClosedForm(z, z_var.clamp_min_(0), z_cov, output, x_var)  # a difference, which may round to below zero


def with_base(method: Laplace) -> Laplace:
    """The method with the diagonal part M of its posterior alone; network and noise are shared."""
    precision = method.posterior
    assert isinstance(precision, LowRankPrecision)
    alone = DiagonalPrecision(precision.shapes, 1.0, precision.temperature).to(precision.prior)
    alone.prior.copy_(precision.prior)
    alone.h.copy_(precision.base() - precision.flat_prior())
    found = copy.copy(method)
    found._modules = method._modules | {"posterior": alone}
    return found


def draws(precision: Precision, seeds: range) -> Iterator[Tensor]:
    """Draw δ ~ N(0, covariance), some (n, P) at a time, each from a seed of its own."""

    def made() -> Iterator[Tensor]:
        size = max(1, KEPT_FLOATS // precision.n_weights)
        for first in range(seeds.start, seeds.stop, size):
            some = range(first, min(first + size, seeds.stop))
            prior = precision.prior
            eps = torch.empty(len(some), precision.n_weights, dtype=prior.dtype, device=prior.device)
            yield precision.scale_noise(fill_normal(eps, some))

    if isinstance(precision, LowRankPrecision):
        yield from precision.kept(f"draws {seeds} at {precision.temperature}", KEPT_FLOATS, made)
    else:
        yield from made()


def tangents(
    method: Laplace, x: Tensor, stacked: Iterator[Tensor], budget: int, *, outputs: bool = True
) -> Iterator[Outputs]:
    """Derivatives of codes and expected data for a batch along directions of the weights, at the mean.

    Args:
        method: gives network, likelihood and the order of the weights.
        x: a batch (B, *shape).
        stacked: directions, some (n, P) at a time.
        budget: numbers in memory, which bounds the directions that go at once.
        outputs: whether expected data are wanted, or codes alone.

    Yields:
        Tangents (n, B, *code) and (n, B, *shape); the latter are those of the codes again if not `outputs`.
    """
    with method.unfrozen():
        tape = walk_dense(method.network, x) if x[0].numel() <= MOST_OUTPUTS else None
    if tape is not None:
        push, width = of_dense(method, tape, outputs), max(leaf.y.shape[1] for leaf in leaves(tape.nodes))
    else:
        both = Stateless(_Both(method.network, method.likelihood.mean if outputs else None))
        mean = {f"network.{name}": p.detach() for name, p in method.network.named_parameters()}
        of_both, width = pushing(lambda values: both(values, (x,)), mean), _width(method.network, x)

        def push(along: Mapping[str, Tensor], /) -> Outputs:
            return of_both({f"network.{name}": t for name, t in along.items()})

    size = max(1, budget // (4 * len(x) * width))
    for some in stacked:
        for part in some.split(size):
            yield push(method.posterior.split(part))


def of_dense(method: Laplace, tape: Forward, outputs: bool) -> Push:
    """The tangents of a network of linear layers as a function of n stacked directions {name: (n, *shape)}.

    Args:
        method: gives the likelihood.
        tape: its network on a batch, as `walk_dense` records it.
        outputs: as for `tangents`.
    """
    n_encoder = sum(node.name.startswith("encoder") for node in tape.nodes)
    z = tape.nodes[n_encoder - 1].y
    to_code = RowProducts.of(tape.nodes[:n_encoder], identity_rows(z), need_input=False)
    rows = pull_mean(method.likelihood, tape.output, identity_rows(tape.output)) if outputs else None
    to_output = None if rows is None else RowProducts.of(tape.nodes[n_encoder:], rows, need_input=True)

    def push(along: Mapping[str, Tensor]) -> Outputs:
        of_code = to_code(along)  # (B, n, K)
        codes = of_code.transpose(0, 1).reshape(-1, *z.shape)
        if to_output is None:
            return codes, codes
        found = torch.baddbmm(to_output(along), of_code, to_output.into.flatten(2).permute(1, 2, 0))
        return codes, found.transpose(0, 1).reshape(-1, *tape.output.shape)

    return push


def pushing(f: Callable[[Mapping[str, Tensor]], Outputs], at: Mapping[str, Tensor]) -> Push:
    """The derivative of f at weights, as a function of n stacked directions {name: (n, *shape)}: (n, …) each.

    The gradient Jᵀw is linear in w, and its own gradient along a direction t is J t: one graph serves all directions,
    and nothing is imported, as forward-mode differentiation does for seconds. That is taken where an operation has no
    second derivative.
    """

    def forward_mode(along: Mapping[str, Tensor]) -> Outputs:
        return vmap(lambda t: jvp(f, (dict(at),), (t,))[1])(dict(along))

    with torch.enable_grad():
        free = {name: value.detach().requires_grad_() for name, value in at.items()}
        found = f(free)
        w = [torch.zeros_like(y, requires_grad=True) for y in found]
        try:
            back = torch.autograd.grad(found, list(free.values()), w, create_graph=True, materialize_grads=True)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            return forward_mode
    used = [(name, g) for name, g in zip(free, back, strict=True) if g.requires_grad]

    def push(along: Mapping[str, Tensor]) -> Outputs:
        known = [along[name] for name, _ in used]
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        try:
            return torch.autograd.grad([g for _, g in used], w, known, is_grads_batched=True, **options)  # pyright: ignore
        except RuntimeError as error:  # an operation that does not let itself be mapped
            if is_out_of_memory(error):
                raise
        try:
            rows = [torch.autograd.grad([g for _, g in used], w, row, **options) for row in zip(*known, strict=True)]
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            return forward_mode(along)
        return tuple(torch.stack(parts) for parts in zip(*rows, strict=True))  # pyright: ignore[reportReturnType]

    return push


class _Both(nn.Module):
    """A network that gives codes and expected data together."""

    def __init__(self, network: Autoencoder, mean: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.network, self.mean = network, mean

    def forward(self, x: Tensor) -> Outputs:
        z = self.network.encode(x)
        return z, z if self.mean is None else self.mean(self.network.decode(z))


def _width(network: nn.Module, x: Tensor) -> int:
    """Numbers of the widest layer for one sample."""
    widest = x[0].numel()

    def see(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal widest
        if isinstance(output, Tensor) and len(output):
            widest = max(widest, output[0].numel())

    hooks = [layer.register_forward_hook(see) for layer in network.modules()]
    try:
        network(x[:1])
    finally:
        for hook in hooks:
            hook.remove()
    return widest
