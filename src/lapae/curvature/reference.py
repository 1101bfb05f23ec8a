"""Brute force: the GGN by its definition, Σ_b J_bᵀ H_b J_b, with Jacobians from `torch.func`.

It is deliberately simple, and therefore slow, and independent of the rules: the Hessian at the output is that of the
negative log density by automatic differentiation. It is public so that you can check a layer of your own. Use float64
and small networks. The arguments are those of the functions of the same names in `lapae.curvature`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import hessian, jacrev, vmap

from lapae.curvature.call import by_layer, tensor_of
from lapae.curvature.likelihoods import Gaussian, Likelihood
from lapae.curvature.rules.base import Params
from lapae.curvature.stateless import functional_call


def output_hessian(likelihood: Likelihood, output: Tensor) -> Tensor:
    """Return the Hessian of -log p at each output.

    Args:
        likelihood: gives the density; its target is the mean, on which the Hessian does not depend.
        output: of the network, (B, *out).

    Returns:
        (B, D, D), with D the numbers of an output.
    """
    flat = output.flatten(1)
    if not likelihood.exponential:  # there the expected Hessian is meant, which depends on no data
        n = flat.shape[1]
        eye = torch.eye(n, dtype=flat.dtype, device=flat.device).reshape(n, 1, *output.shape[1:])
        return likelihood.hessian_product(output, eye.expand(n, *output.shape)).flatten(2).movedim(0, 1)

    def negative_log_prob(f: Tensor, target: Tensor) -> Tensor:
        return -likelihood.log_prob(f.reshape(1, *output.shape[1:]), target[None])[0]

    return vmap(hessian(negative_log_prob))(flat, likelihood.mean(output))


def outputs(module: nn.Module, x: Tensor, params: Mapping[str, Tensor] | None = None) -> Tensor:
    """Run any module on inputs (B, *in), at its own weights or others: (B, *out)."""
    values = dict(module.named_parameters()) if params is None else params
    return tensor_of(functional_call(module, {k: v.detach() for k, v in values.items()}, (x,)))


def jacobians(module: nn.Module, x: Tensor, params: Mapping[str, Tensor] | None = None) -> Params:
    """Return ∂output/∂parameter of each sample, for parameters that require a gradient.

    By `torch.func` for the whole batch; one number at a time for a module that cannot be mapped.

    Args:
        module: any module that treats samples independently.
        x: inputs (B, *in).
        params: weights to evaluate at; the module's own by default.

    Returns:
        {parameter name: (B, D, *parameter shape)}.
    """
    own = dict(module.named_parameters())
    values = own if params is None else dict(params)
    wanted = {k: values[k].detach() for k, p in own.items() if p.requires_grad}
    fixed = {k: values[k].detach() for k, p in own.items() if not p.requires_grad}

    def output(wanted: Params, x: Tensor) -> Tensor:
        return tensor_of(functional_call(module, {**fixed, **wanted}, (x[None],)))[0].flatten()

    try:
        return vmap(jacrev(output), in_dims=(None, 0))(wanted, x)
    except (RuntimeError, ValueError):
        rows = [_rows(output, wanted, row) for row in x]
    return {name: torch.stack([row[name] for row in rows]) for name in wanted}


def _rows(output: Callable[[Params, Tensor], Tensor], wanted: Params, x: Tensor) -> Params:
    """Return the Jacobian of one sample, {name: (D, *parameter shape)}, by one backward pass per output."""
    leaves = {name: value.clone().requires_grad_() for name, value in wanted.items()}
    with torch.enable_grad():
        y = output(leaves, x)
        rows = [torch.autograd.grad(f, list(leaves.values()), retain_graph=True, materialize_grads=True) for f in y]
    return {name: torch.stack([row[i] for row in rows]) for i, name in enumerate(leaves)}


def ggn_blocks(
    module: nn.Module,
    x: Tensor,
    likelihood: Likelihood | None = None,
    params: Mapping[str, Tensor] | None = None,
) -> Params:
    """Return the exact block of every layer, `lapae.curvature.ggn_blocks` by brute force: {layer name: (P, P)}."""
    h = _seed(module, x, likelihood, params)
    found = jacobians(module, x, params)
    blocks = {}
    for layer, names in by_layer(found).items():
        j = torch.cat([found[name].reshape(*h.shape[:2], -1) for name in names], dim=2)
        blocks[layer] = torch.einsum("bdp,bde,beq->pq", j, h, j)
    return blocks


def ggn_diagonal(
    module: nn.Module,
    x: Tensor,
    likelihood: Likelihood | None = None,
    params: Mapping[str, Tensor] | None = None,
) -> Params:
    """Return the exact diagonal, `lapae.curvature.ggn_diagonal` by brute force: {parameter name: its shape}."""
    h = _seed(module, x, likelihood, params)
    return {name: torch.einsum("bd...,bde,be...->...", j, h, j) for name, j in jacobians(module, x, params).items()}


def _seed(module: nn.Module, x: Tensor, likelihood: Likelihood | None, params: Mapping[str, Tensor] | None) -> Tensor:
    """Return the Hessian at the outputs of x, (B, D, D)."""
    return output_hessian(likelihood or Gaussian(), outputs(module, x, params))
