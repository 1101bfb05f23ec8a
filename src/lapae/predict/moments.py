"""One forward pass that carries a mean and a diagonal variance through every layer.

The mean is the network's at the mean weights. The variance of a feature comes from the variance v of the layer's
inputs and σ² of its weights, all taken as independent:

    linear, convolution   v_out = (W² + σ_W²) * v + σ_W² * x² + σ_b²      (exact for independent inputs and weights)
    any layer             v_out = Σ_i J_oi² v_i + Σ_w (∂y_o/∂w)² σ_w²     (first order)

The second line is the transpose of the curvature rule's `squared_backward`, so that every layer with a rule has it: as
that is linear in m, v_out is the gradient in m of ⟨v, m_in(m)⟩ + Σ_w ⟨σ_w², h_w(m)⟩.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lapae.curvature import Leaf, walk
from lapae.curvature.forward import Node, Skip, n_features
from lapae.curvature.methods import LARGEST_CODE
from lapae.curvature.rules.affine import Affine
from lapae.curvature.rules.linear_maps import LinearMap
from lapae.methods.laplace import Laplace
from lapae.predict.closed_form import ClosedForm, weight_variances

Variances = Mapping[str, Tensor]


def moments(method: Laplace, x: Tensor) -> ClosedForm:
    """Predict mean and variance of codes and outputs for a batch x (B, *shape)."""
    variances = weight_variances(method)
    with method.unfrozen():
        tape = walk(method.network, x)
    n_encoder = sum(node.name.startswith("encoder") for node in tape.nodes)
    z_var = push(tape.nodes[:n_encoder], None, variances)
    x_var = push(tape.nodes[n_encoder:], z_var, variances)
    z = tape.nodes[n_encoder - 1].y
    z_var = torch.zeros_like(z) if z_var is None else z_var
    x_var = torch.zeros_like(tape.output) if x_var is None else x_var
    z_cov = torch.diag_embed(z_var.flatten(1)) if n_features(z) <= LARGEST_CODE else None
    return ClosedForm(z, z_var, z_cov, tape.output, x_var)


def push(nodes: Sequence[Node], v: Tensor | None, variances: Variances) -> Tensor | None:
    """Push a variance through consecutive nodes.

    Args:
        nodes: recorded layers.
        v: variance at the input of the first node; None is zero.
        variances: variances of the weights, by name.

    Returns:
        The variance at the output of the last node; None is zero.
    """
    for node in nodes:
        if isinstance(node, Skip):
            first, second = (push(way, v, variances) for way in node.ways)
            v = first if second is None else second if first is None else first + second
        else:
            v = _push_leaf(node, v, {key: variances[f"{node.name}.{key}"] for key in node.params})
    return v


def _push_leaf(leaf: Leaf, v: Tensor | None, var: Variances) -> Tensor | None:
    if isinstance(leaf.rule, Affine):
        added = leaf.rule.apply(leaf.layer, dict(var), leaf.x.square())
        if v is None:
            return added
        return added.add_(leaf.rule.apply(leaf.layer, {"weight": leaf.params["weight"].square() + var["weight"]}, v))
    if v is not None and leaf.rule.positionwise and not var:
        return leaf.rule.squared_backward(leaf, v)[0]
    if v is None and not var:
        return None
    if v is not None and isinstance(leaf.rule, LinearMap) and leaf.rule.selects(leaf.layer):
        return leaf.rule.jvp(leaf, v[None])[0]
    with torch.enable_grad():
        m = torch.ones_like(leaf.y).requires_grad_()
        m_in, h = leaf.rule.squared_backward(leaf, m, need_input=v is not None)
        terms = [(h[key] * var[key]).sum() for key in var]
        if v is not None and m_in is not None:
            terms.append((m_in * v).sum())
        return torch.autograd.grad(torch.stack(terms).sum(), m)[0]
