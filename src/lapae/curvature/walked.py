"""The curvature of a network that was walked layer by layer: each method a few lines, put together from the walks."""

from __future__ import annotations

import torch
from torch import Tensor

from lapae.curvature.any_module import Sampling, check_code
from lapae.curvature.backward import approximate, data_per_chunk, exact, plan, pull_rows, push_tangents
from lapae.curvature.collect import Collect, CollectBlocks, CollectDiagonal, CollectFactors, Kronecker
from lapae.curvature.extract import row_floats
from lapae.curvature.forms import Dense, Diagonal, Form, Rows, random_rows, seed
from lapae.curvature.forward import Forward, leaves, n_features
from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.rules.base import Params, identity_rows


def diagonal(
    forward: Forward,
    likelihood: Likelihood,
    method: str,
    sampling: Sampling,
    bottleneck: str | None,
    switch: int,
    budget: int,
    forget: bool,
) -> Params:
    """The diagonal by every method but sketch. `budget` is in numbers; with `forget` layers are let go on the way."""
    collect, forward = CollectDiagonal(), forward.promoted()
    output, nodes, stop = forward.output.detach(), forward.nodes, forward.first_trainable
    if method == "approx":
        approximate(nodes, stop, likelihood.hessian_diag(output), collect, forget=forget)
    elif method == "exact":
        _exact(forward, len(nodes), seed(likelihood, output), collect, budget)
    elif method == "mc":
        _sampled(forward, likelihood, collect, *sampling, budget)
    elif method == "mixed":
        k = max(stop, _first_narrow(forward, switch))
        form = seed(likelihood, output)
        if k < len(nodes):
            form = Diagonal(approximate(nodes, k, likelihood.hessian_diag(output), collect, through=k > stop))
        if k > stop:
            _exact(forward, k, form, collect, budget)
    else:
        k = _bottleneck(forward, bottleneck)
        check_code(n_features(nodes[k - 1].y if k else nodes[0].x))
        approximate(nodes, max(k, stop), likelihood.hessian_diag(output), collect)
        if k > stop:
            _exact(forward, k, Dense(_latent_curvature(forward, k, likelihood)), collect, budget)
    return {name: collect.result[name] for name in forward.wanted}


def blocks(forward: Forward, likelihood: Likelihood, budget: int) -> Params:
    """The exact block of every layer."""
    collect, forward = CollectBlocks(), forward.promoted()
    _exact(forward, len(forward.nodes), seed(likelihood, forward.output.detach()), collect, budget)
    return {leaf.name: collect.result[leaf.name] for leaf in leaves(forward.nodes) if leaf.trainable}


def kfac(forward: Forward, likelihood: Likelihood, sampling: Sampling | None, budget: int) -> dict[str, Kronecker]:
    """Kronecker factors, with sampled or exact output factors."""
    forward = forward.promoted()
    collect = CollectFactors(forward.nodes)
    if sampling is None:
        _exact(forward, len(forward.nodes), seed(likelihood, forward.output.detach()), collect, budget)
    else:
        _sampled(forward, likelihood, collect, *sampling, budget)
    result = collect.result
    return {name: result[name] for name in forward.wanted}


def _exact(forward: Forward, end: int, form: Form, collect: Collect, budget: int) -> None:
    """Carry all of M from the output of node end - 1 to the first wanted layer, in chunks of data under the budget."""
    stop = forward.first_trainable
    nodes = forward.nodes[:end]
    size = data_per_chunk(plan(nodes, stop, form, collect, budget), budget)
    n_data = len(forward.output)
    for i in range(0, n_data, size):
        data = slice(i, i + size)
        part = nodes if size >= n_data else [node.part(data) for node in nodes]
        exact(part, stop, form if size >= n_data else form.part(data), collect, budget)


def _sampled(
    forward: Forward,
    likelihood: Likelihood,
    collect: Collect,
    n_samples: int,
    generator: torch.Generator | None,
    budget: int,
) -> None:
    """Pull back vectors v ~ N(0, H_out / n_samples), some at a time: E Σ v vᵀ = H_out."""
    output, stop, nodes = forward.output.detach(), forward.first_trainable, forward.nodes
    floats = max(row_floats(leaf.rule, leaf) for leaf in leaves(nodes)) * len(output)
    size = max(1, min(n_samples, budget // floats))
    for first in range(0, n_samples, size):
        n = min(size, n_samples - first)
        rows = Rows(random_rows(likelihood, output, n, generator, of=n_samples))
        pull_rows(nodes[stop:], rows, collect.rows, need_input=False)


def _latent_curvature(forward: Forward, k: int, likelihood: Likelihood) -> Tensor:
    """M at the output of node k - 1, exactly, from one tangent per latent dimension: (B, K, K)."""
    output = forward.output.detach()
    z = forward.nodes[k - 1].y if k else forward.nodes[0].x
    t = push_tangents(forward.nodes[k:], identity_rows(z))
    return torch.einsum("rb...,sb...->brs", t, likelihood.hessian_product(output, t))


def _bottleneck(forward: Forward, name: str | None) -> int:
    """Index of the first node after the code."""
    nodes = forward.nodes
    if name is None:
        sizes = [n_features(node.y) for node in nodes]
        return len(sizes) - sizes[::-1].index(min(sizes))  # the last of the narrowest: more layers are exact
    for i in range(len(nodes) - 1, -1, -1):
        if nodes[i].name == name or nodes[i].name.startswith(f"{name}."):
            return i + 1
    raise ValueError(f"bottleneck={name!r} names no layer: there are {', '.join(n.name for n in nodes)}")


def _first_narrow(forward: Forward, switch: int) -> int:
    """Number of nodes below the place where "mixed" goes from the diagonal to all of M, walking back.

    From there to the narrowest layer no output has more than `switch` features; 0 if that layer itself has more.
    """
    sizes = [n_features(node.y) for node in forward.nodes]
    k = sizes.index(min(sizes))
    while k < len(sizes) and sizes[k] <= switch:
        k += 1
    return k if min(sizes) <= switch else 0
