"""The sketch: one random vector per sample, one ordinary backward pass for the whole batch.

With independent v_b ~ N(0, H_b), H_b the Hessian at output b,

    E (Σ_b J_bᵀ v_b)² = Σ_b diag(J_bᵀ H_b J_b)

as the terms between two samples vanish in the mean. So the square of the gradient of Σ_b v_b · f(x_b) is an unbiased
estimate of the diagonal: of any module, without rules and without gradients per sample. A single estimate is noisy
(each entry is a χ² of one degree of freedom, with relative standard deviation √2); sums over batches and the online
update average it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from lapae.curvature.call import Call
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
    """Return an unbiased estimate of the diagonal for a recorded batch: the mean of `n_samples` estimates.

    With `keep_graph`, the graph is left for another backward pass, such as that of a loss on the same output.
    """
    total: Params = {}
    for i in range(n_samples):
        like = output_of(run)
        eps = torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        found = squared(pull(run, likelihood, eps, keep_graph=keep_graph or i < n_samples - 1))
        if total:
            torch._foreach_add_(list(total.values()), list(found.values()))  # pyright: ignore[reportPrivateImportUsage]
        else:
            total = found
    if n_samples > 1:
        torch._foreach_div_(list(total.values()), float(n_samples))  # pyright: ignore[reportPrivateImportUsage]
    return total


def output_of(run: Call) -> Tensor:
    """Return the output (B, *out) of a recorded batch in the dtype of the weights: autocast has it in a lower one."""
    return run.output.detach().to(next(iter(run.params.values())).dtype)


def pull(run: Call, likelihood: Likelihood, eps: Tensor, *, keep_graph: bool = True) -> Params:
    """Return the vector Σ_b J_bᵀ v_b over the weights, v_b = S_b ε_b with S_b S_bᵀ = H_b.

    It is linear in the samples: where several processes share a batch, their vectors add up to that of the whole batch.
    `eps` are standard normal numbers (B, *out).
    """
    v = likelihood.hessian_factor(output_of(run), eps[None])[0].to(run.output.dtype)
    with torch.enable_grad():  # the gradient of v · f; handing v to torch as the first gradient imports sympy
        product = torch.dot(run.output.reshape(-1), v.reshape(-1))
    gradients = torch.autograd.grad(product, list(run.params.values()), retain_graph=keep_graph, materialize_grads=True)
    _hold(gradients)
    return dict(zip(run.params, gradients, strict=True))


@torch.no_grad()
def squared(vector: Mapping[str, Tensor]) -> Params:
    """Return the squares of a vector over the weights.

    Parts with memory of their own are squared in place: fresh memory costs more than the product.
    """
    holders = Counter(g.untyped_storage().data_ptr() for g in vector.values())
    own = {name for name, g in vector.items() if g.is_contiguous() and holders[g.untyped_storage().data_ptr()] == 1}
    mine = [vector[name] for name in own]
    if mine:
        torch._foreach_mul_(mine, mine)  # pyright: ignore[reportPrivateImportUsage]
    return {name: g if name in own else g.square() for name, g in vector.items()}


def _hold(gradients: tuple[Tensor, ...]) -> None:
    """Keep the memory of gradients while this stream reads them.

    A backward pass runs on the stream of its forward pass, which may give the memory of its results away while the
    stream that asked for them still reads them.
    """
    for gradient in gradients:
        if gradient.is_cuda:
            gradient.record_stream(torch.cuda.current_stream(gradient.device))
