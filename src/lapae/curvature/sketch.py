"""The sketch: one random vector per datum, one ordinary backward pass for the whole batch.

With independent v_b ~ N(0, H_b), H_b the Hessian at output b,

    E (Σ_b J_bᵀ v_b)² = Σ_b diag(J_bᵀ H_b J_b)

as the terms between two data vanish in the mean. So the square of the gradient of Σ_b v_b · f(x_b) is an unbiased
estimate of the diagonal: of any module, without rules and without gradients per datum. A single sample is noisy (each
entry is a χ² of one degree of freedom, of relative deviation √2); sums over batches and the online update average it.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from lapae.curvature.call import Call
from lapae.curvature.forms import random_rows
from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.rules.base import Params


def sketch(
    run: Call,
    likelihood: Likelihood,
    n_samples: int = 1,
    generator: torch.Generator | None = None,
    *,
    keep_graph: bool = True,
) -> Params:
    """An unbiased estimate of the diagonal for a recorded batch, the mean of `n_samples`: {parameter name: tensor}.

    The graph stays for another backward pass (that of a loss on the same output) where `keep_graph`.
    """
    params = list(run.params.values())
    output = run.output.detach().to(params[0].dtype)  # mixed precision has it in a lower one
    total: list[Tensor] = []
    for i in range(n_samples):
        v = random_rows(likelihood, output, 1, generator)[0].to(run.output.dtype)
        with torch.enable_grad():  # the gradient of v · f; handing v to torch as the first gradient imports sympy
            product = torch.dot(run.output.reshape(-1), v.reshape(-1))
        gradients = torch.autograd.grad(
            product, params, retain_graph=keep_graph or i < n_samples - 1, materialize_grads=True
        )
        _hold(gradients)
        with torch.no_grad():
            squares = _squares(gradients)
            if total:
                torch._foreach_add_(total, squares)  # pyright: ignore[reportPrivateImportUsage]
            else:
                total = squares
    if n_samples > 1:
        torch._foreach_div_(total, float(n_samples))  # pyright: ignore[reportPrivateImportUsage]
    return dict(zip(run.params, total, strict=True))


def _squares(gradients: tuple[Tensor, ...]) -> list[Tensor]:
    """In place where a gradient has memory of its own: fresh memory costs more than the product."""
    holders = Counter(g.untyped_storage().data_ptr() for g in gradients)
    own = [g.is_contiguous() and holders[g.untyped_storage().data_ptr()] == 1 for g in gradients]
    mine = [g for g, alone in zip(gradients, own, strict=True) if alone]
    if mine:
        torch._foreach_mul_(mine, mine)  # pyright: ignore[reportPrivateImportUsage]
    return [g if alone else g.square() for g, alone in zip(gradients, own, strict=True)]


def _hold(gradients: tuple[Tensor, ...]) -> None:
    """A backward pass runs on the stream of its forward pass, which may give the memory of its results away while
    another stream, the one that asked for them, still reads them."""
    for gradient in gradients:
        if gradient.is_cuda:
            gradient.record_stream(torch.cuda.current_stream(gradient.device))
