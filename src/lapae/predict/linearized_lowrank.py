"""The linearised predictive of a low-rank posterior: by tangents of the network along drawn weights, for any module.

The network is linearised in its weights around their mean, so a draw θ + δ_s moves codes and outputs by J δ_s: this
takes one pass with tangents per draw, and the network is evaluated only at the mean. The variance over draws is
unbiased, with a relative standard deviation of √(2 / 64). The draws are the same for all samples, so the result for one
does not depend on the others. Outputs move by draws of all weights, codes by draws of the encoder given the decoder
(`posterior/lowrank.py` explains why). The closed form, by the rows W M⁻¹ of a low-rank posterior, takes five to ten
times as many passes; `LowRankPrecision.variance` computes it for single rows of the Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from lapae.curvature.chunking import is_out_of_memory
from lapae.curvature.dense import walk_dense
from lapae.curvature.forms import Rows
from lapae.curvature.forward import Forward, leaves
from lapae.curvature.rules.base import Leaf
from lapae.curvature.stateless import Stateless
from lapae.curvature.walked import pull_rows
from lapae.methods.laplace import Laplace
from lapae.networks import Autoencoder
from lapae.networks.adapt import in_eval_mode
from lapae.networks.threads import few_threads
from lapae.posterior import LowRankPrecision, Precision
from lapae.posterior.noise import fill_normal
from lapae.predict.closed_form import ClosedForm, pull_mean
from lapae.predict.dense import can_cast, in_precision, product, push_directions, slopes

DRAWS = 64
"""Number of draws of the weights for a variance."""
KEPT_FLOATS = 1 << 27
"""Maximum number of values in draws that are kept from one batch to the next."""
CACHED_FLOATS = 1 << 22
"""Maximum number of values in the tangents of linear layers at a time: more do not fit into the cache of a core."""
MOST_COVARIANCES = 128
"""Maximum size of a code whose covariances are computed."""
BACK_AT_ONCE = 512
"""Number of samples whose gradients are pulled back at a time."""
NEGLIGIBLE = 2e-5
"""Largest share of a variance, or of the mean one of a sample, by which single precision may change it."""
PROBES = 64
"""Number of samples with which this is checked."""

Outputs = tuple[Tensor, Tensor]
"""Codes and expected data, or tangents of them."""
Directions = Mapping[str, Tensor]
"""Directions of the weights, {parameter name: (n, *shape)}."""
Push = Callable[[Directions], Outputs]


def of_low_rank(method: Laplace, x: Tensor, outputs: bool, budget: int, codes: bool = True) -> ClosedForm:
    """Predict mean and variance of codes and reconstructions for a batch.

    Args:
        method: with a low-rank posterior.
        x: samples (B, *shape) in the model's space.
        outputs: whether the variance of reconstructions is wanted.
        budget: numbers in memory.
        codes: whether the variance of codes is wanted; else it is 0.
    """
    tape = walk_dense(method.network, x)
    if tape is None:
        z = method.network.encode(x)
        output = method.network.decode(z)
    else:
        z, output = tape.nodes[_n_encoder(tape) - 1].y, tape.output
    z_var, k = torch.zeros_like(z), z[0].numel()
    z_cov = z.new_zeros(len(z), k, k) if k <= MOST_COVARIANCES else None
    x_var = torch.zeros_like(output) if outputs else None
    if codes:
        for of_codes, _ in _tangents(method, x, tape, _drawn(method, x, tape, of_outputs=False), budget, outputs=False):
            z_var += of_codes.square().sum(0) / DRAWS
            if z_cov is not None:
                flat = of_codes.flatten(2)
                z_cov += torch.einsum("sbk,sbl->bkl", flat, flat) / DRAWS
    if x_var is not None:
        for _, of_outputs in _tangents(method, x, tape, _drawn(method, x, tape, of_outputs=True), budget):
            x_var += of_outputs.square().sum(0) / DRAWS
    return ClosedForm(z, z_var, z_cov, output, x_var)


@torch.no_grad()
def variance_of_values(method: Laplace, x: Tensor, at: Tensor) -> Tensor:
    """Return the variance over networks of one value of the reconstruction of each sample: (B,).

    Its gradient in the weights, pulled back once, is multiplied with all draws: half of what it takes to push them
    forward, and only the outputs that are wanted.

    Args:
        method: with a low-rank posterior.
        x: samples (B, D) in the model's space.
        at: the values, (B,).
    """
    weight = next(method.parameters())
    with in_eval_mode(method), few_threads(method, len(x)):
        every = zip(x.to(weight.device, weight.dtype).split(BACK_AT_ONCE), at.split(BACK_AT_ONCE), strict=True)
        return torch.cat([_variance_of_values(method, *some) for some in every]).cpu()


def _variance_of_values(method: Laplace, x: Tensor, at: Tensor) -> Tensor:
    with method.unfrozen():
        tape = walk_dense(method.network, x)
    if tape is None:
        found = of_low_rank(method, x, True, CACHED_FLOATS, codes=False).output_var
        assert found is not None
        return found.flatten(1).gather(1, at[:, None])[:, 0]
    gradients: list[tuple[str, Tensor, Tensor, Tensor | slice]] = []

    def read(leaf: Leaf, rows: Rows) -> None:
        used = rows.v[0].any(0).nonzero()[:, 0]  # of the last layer, few units belong to a value that is wanted
        if not len(used):
            return
        units = used if 2 * len(used) <= rows.v.shape[2] else slice(None)
        gradients.append((leaf.name, leaf.x, rows.v[0][:, units], units))

    v = torch.zeros_like(tape.output).scatter_(1, at[:, None], 1.0)
    v = pull_mean(method.likelihood, tape.output, v[None])
    pull_rows(tape.nodes, Rows(v), read, need_input=False)
    total = x.new_zeros(len(x))
    if not gradients:
        return total
    size = max(1, CACHED_FLOATS // (4 * len(x) * max(min(a.shape[1], g.shape[1]) for _, a, g, _ in gradients)))
    for some in _drawn(method, x, tape, of_outputs=True):
        of_layers = [of_layer for layer in gradients for of_layer in _directions(some, *layer)]
        n = len(next(iter(some.values())))
        for i in range(0, n, size):
            total += sum(_along(way[i : i + size], a, g) for way, a, g in of_layers).square().sum(1)  # pyright: ignore
    return total / DRAWS


def _directions(
    along: Directions, name: str, x: Tensor, g: Tensor, units: Tensor | slice
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield directions of a layer's weights, and of its bias, as n matrices, and what they are multiplied with.

    Args:
        along: directions of all weights, {name: (n, *shape)}.
        name: a linear layer.
        x: its input, (B, in).
        g: gradients at some of its outputs, (B, out).
        units: which outputs these are.

    Yields:
        Directions (n, p, q), factors (B, q) and (B, p), with p <= q.
    """
    weight, bias = along[f"{name}.weight"][:, units], along.get(f"{name}.bias")
    x, g = x.to(weight.dtype), g.to(weight.dtype)
    yield (weight, x, g) if g.shape[1] <= x.shape[1] else (weight.mT.contiguous(), g, x)
    if bias is not None:
        yield bias[:, None, units], g, g.new_ones(len(g), 1)


def _along(way: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the products (B, n) bᵀ way_s a of matrices (n, p, q) with factors a (B, q) and b (B, p)."""
    moved = product(a, way.flatten(0, 1))
    return moved * b if way.shape[1] == 1 else (moved.unflatten(1, way.shape[:2]) @ b[:, :, None])[..., 0]


def _drawn(method: Laplace, x: Tensor, tape: Forward | None, *, of_outputs: bool) -> Iterator[Directions]:
    """Yield draws of all weights, or of the encoder given the decoder: in single precision if that changes variances by
    no more than `NEGLIGIBLE`, which is checked once.

    The change is largest where the terms of a sum cancel most: where the data say much about the network, as at its own
    reconstructions.
    """
    precision = method.posterior if of_outputs else method.posterior_of_codes()

    def along(dtype: torch.dtype) -> Iterator[Directions]:
        for part in draws(precision, range(DRAWS)):
            yield {name: value.to(dtype).contiguous() for name, value in method.posterior.split(part).items()}

    def variance(probe: Tensor, dtype: torch.dtype) -> Tensor:
        moves = _tangents(
            method, probe, walk_dense(method.network, probe), along(dtype), CACHED_FLOATS, outputs=of_outputs
        )
        return torch.stack([move[of_outputs].double().square().sum(0) for move in moves]).sum(0)

    def made() -> Iterator[Tensor]:
        noise = torch.randn(PROBES, *x.shape[1:], dtype=x.dtype, generator=torch.Generator().manual_seed(0))
        probe = method.likelihood.mean(method.network(noise)).reshape(noise.shape)
        double, single = variance(probe, torch.float64), variance(probe, torch.float32)
        mean = double.flatten(1).mean(1).reshape(-1, *(1 for _ in double.shape[1:]))
        if ((single - double).abs() <= NEGLIGIBLE * torch.maximum(double, mean)).all():
            yield from (value for part in along(torch.float32) for value in part.values())

    kept: list[Tensor] = []
    castable = tape is not None and can_cast(tape) and x.dtype == torch.float64 and x.device.type == "cpu"
    if castable and isinstance(precision, LowRankPrecision) and DRAWS * precision.n_weights <= KEPT_FLOATS:
        name = f"single draws {DRAWS} at {precision.temperature}, of outputs: {of_outputs}"
        kept = list(precision.kept(name, KEPT_FLOATS, made))
    if kept:
        yield dict(zip(method.posterior.shapes, kept, strict=True))
    else:
        yield from map(method.posterior.split, draws(precision, range(DRAWS)))


def draws(precision: Precision, seeds: range) -> Iterator[Tensor]:
    """Draw δ ~ N(0, covariance), some (n, P) at a time, each from its own seed."""

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
    """Yield the derivatives of codes and expected data for a batch along directions of the weights, at the mean.

    Args:
        method: the method, with network, likelihood and the order of the weights.
        x: a batch (B, *shape).
        stacked: directions, some (n, P) at a time.
        budget: maximum number of values in memory, which limits the number of directions at a time.
        outputs: whether expected data are wanted, or only codes.

    Yields:
        Tangents (n, B, *code) and (n, B, *shape); the latter are those of the codes again if not `outputs`.
    """
    yield from _tangents(
        method, x, walk_dense(method.network, x), map(method.posterior.split, stacked), budget, outputs=outputs
    )


def _tangents(
    method: Laplace,
    x: Tensor,
    tape: Forward | None,
    stacked: Iterator[Directions],
    budget: int,
    *,
    outputs: bool = True,
) -> Iterator[Outputs]:
    """Yield `tangents`, in the precision of the directions, of a batch that `tape` records if its network is dense."""

    def through_weights(along: Directions) -> Outputs:
        return of_both({f"network.{name}": t for name, t in along.items()})

    @cache
    def pushing_in(dtype: torch.dtype) -> Push:
        return through_weights if tape is None else of_dense(method, in_precision(tape, dtype), outputs)

    if tape is not None:
        width, budget = max(leaf.y.shape[1] for leaf in leaves(tape.nodes)), min(budget, CACHED_FLOATS)
    else:
        both = Stateless(_Both(method.network, method.likelihood.mean if outputs else None))
        mean = {f"network.{name}": p.detach() for name, p in method.network.named_parameters()}
        of_both, width = pushing(lambda values: both(values, (x,)), mean), _width(method.network, x)
    size = max(1, budget // (4 * len(x) * width))
    for some in stacked:
        first = next(iter(some.values()))
        push = pushing_in(first.dtype)
        for start in range(0, len(first), size):
            yield push({name: value[start : start + size] for name, value in some.items()})


def _n_encoder(tape: Forward) -> int:
    return sum(node.name.startswith("encoder") for node in tape.nodes)


def of_dense(method: Laplace, tape: Forward, outputs: bool) -> Push:
    """Return the tangents of a network of linear layers as a function of n stacked directions {name: (n, *shape)}.

    Args:
        method: gives the likelihood.
        tape: its network on a batch, as `walk_dense` records it.
        outputs: as for `tangents`.
    """
    n_encoder, steep = _n_encoder(tape), slopes(tape)

    def push(along: Directions) -> Outputs:
        codes = push_directions(tape.nodes[:n_encoder], along, steep)
        if codes is None:  # no weight comes before the code
            z = tape.nodes[n_encoder - 1].y
            codes = z.new_zeros(len(z), len(next(iter(along.values()))), *z.shape[1:])
        if not outputs:
            return codes.transpose(0, 1), codes.transpose(0, 1)
        found = push_directions(tape.nodes[n_encoder:], along, steep, codes)
        assert found is not None
        return codes.transpose(0, 1), method.likelihood.tangent_of_mean(tape.output, found.transpose(0, 1))

    return push


def pushing(f: Callable[[Mapping[str, Tensor]], Outputs], at: Mapping[str, Tensor]) -> Push:
    """The derivative of f at weights, as a function of n stacked directions {name: (n, *shape)}: (n, …) each.

    The gradient Jᵀw is linear in w, and its own gradient along a direction t is J t: one graph serves all directions,
    and nothing is imported, as forward-mode differentiation does for seconds. That is taken where an operation has no
    second derivative.
    """

    def forward_mode(along: Mapping[str, Tensor]) -> Outputs:
        with written_out_attention():
            return vmap(lambda t: jvp(f, (dict(at),), (t,))[1])(dict(along))

    with torch.enable_grad(), written_out_attention():
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


@contextmanager
def written_out_attention() -> Generator[None]:
    """Compute attention by its steps: torch's shortcuts have no second derivatives, some of them no derivatives."""
    shortcut = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(shortcut)


class _Both(nn.Module):
    """A network that returns codes and expected data together."""

    def __init__(self, network: Autoencoder, mean: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.network, self.mean = network, mean

    def forward(self, x: Tensor) -> Outputs:
        z = self.network.encode(x)
        return z, z if self.mean is None else self.mean(self.network.decode(z))


def _width(network: nn.Module, x: Tensor) -> int:
    """Return the number of values in the widest layer for one sample."""
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
