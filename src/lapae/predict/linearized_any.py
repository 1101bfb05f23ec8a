"""The linearised predictive of a network that cannot be walked, or whose code is large, by per-sample gradients.

Rows at the code and at the output are pulled back to every parameter g, whose part of the variance is gᵀ Σ g. Weights
that encoder and decoder share count once, with the sum of their gradients. If a code has too many numbers for a
covariance matrix, rows of the output are pulled back all the way through the encoder instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lapae.curvature.call import Work
from lapae.curvature.forms import ranges
from lapae.curvature.methods import LARGEST_CODE
from lapae.curvature.per_sample import PerSample, Pulled, passes, per_sample, rows_of_gradients
from lapae.curvature.rules.base import identity_rows
from lapae.methods.laplace import Laplace
from lapae.predict.closed_form import ClosedForm, pull_mean


def of_any_module(method: Laplace, x: Tensor, outputs: bool, budget: int) -> ClosedForm:
    """Predict as `linearized` does.

    Args:
        method: a method with a posterior over weights.
        x: samples (B, *shape) in the model's space.
        outputs: whether to compute the variance of reconstructions.
        budget: maximum number of floats for rows and their gradients.
    """
    task = Work(method.network, None, tuple(method.posterior.shapes), x)
    one = per_sample(task.part(slice(0, 1)), "encoder")
    n_code, floats = one.code.numel(), one.row_floats()
    whole = n_code <= LARGEST_CODE
    size = max(1, budget // (floats * (n_code if whole else 1)))
    parts = [_of_part(method, at, outputs, whole, budget // floats) for at, _ in passes(task, size, "encoder")]
    codes, z_var, z_cov, output, x_var = zip(*parts, strict=True)
    shape = codes[0].shape[2:]  # drop the sample's own batch axis
    return ClosedForm(
        torch.cat(codes).reshape(len(x), *shape),
        torch.cat(z_var).reshape(len(x), *shape),
        torch.cat(z_cov) if whole else None,
        torch.cat(output),
        torch.cat(x_var) if outputs else None,
    )


def _of_part(method: Laplace, at: PerSample, outputs: bool, whole: bool, fit: int) -> tuple[Tensor, ...]:
    """Return codes, their variances and covariances, outputs and their variances, for samples processed together."""
    n_data, n_code = len(at.output), at.code[0].numel()
    if whole:
        z_cov = _covariance(method, at.pull(identity_rows(at.code), at.code), n_data)
        z_var = z_cov.diagonal(dim1=1, dim2=2)
    else:
        z_cov = at.output.new_empty(0)
        rows = (identity_rows(at.code, *span) for span in ranges(n_code, max(1, fit // n_data)))
        z_var = torch.cat([_variance(method, at.pull(v, at.code)) for v in rows]).T
    found = at.code.detach(), z_var, z_cov, at.output.detach()
    if not outputs:
        return *found, at.output.new_empty(0)

    apart = whole and not at.reaches(at.code) & at.reaches(at.output)
    x_var = []
    for span in ranges(at.output[0].numel(), max(1, fit // n_data)):
        rows = pull_mean(method.likelihood, at.output, identity_rows(at.output, *span))
        pulled, into_code = at.pull(rows), rows_of_gradients(at.output, [at.start], rows)[0]
        if into_code is None:  # the output does not depend on the code
            x_var.append(_variance(method, pulled))
        elif apart:
            flat = into_code.flatten(2)
            x_var.append(_variance(method, pulled) + torch.einsum("rbk,bkl,rbl->rb", flat, z_cov, flat))
        else:
            x_var.append(_variance(method, pulled + at.pull(into_code, at.code)))
    return *found, torch.cat(x_var).T.reshape(at.output.shape)


def _variance(method: Laplace, pulled: Pulled) -> Tensor:
    """Return the sum of gᵀ Σ g over layers, (R, B)."""
    n_data = len(pulled.at.output)
    zero = pulled.at.output.new_zeros(pulled.n_rows, n_data)
    return sum((w.square().sum(-1) for w in _whitened(method, pulled)), zero)


def _covariance(method: Laplace, pulled: Pulled, n_data: int) -> Tensor:
    """Return the sum of gᵀ Σ g' over layers for all pairs of rows, (B, R, R)."""
    zero = pulled.at.output.new_zeros(n_data, pulled.n_rows, pulled.n_rows)
    return sum((torch.einsum("rbn,sbn->brs", w, w) for w in _whitened(method, pulled)), zero)


def _whitened(method: Laplace, pulled: Pulled) -> Iterator[Tensor]:
    """Yield Σ^(1/2) applied to the gradients of each layer, (R, B, n)."""
    for leaf, v in pulled.layers(whole=True):
        gradients = leaf.rule.gradients(leaf, v)
        yield method.posterior.whiten({leaf.full_name(key): gradients[key].flatten(2) for key in leaf.trainable})
