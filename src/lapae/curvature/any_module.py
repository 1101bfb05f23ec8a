"""The curvature of any module, from gradients per datum: exact, sampled, by layer, in factors, through a bottleneck.

Rows v_r at the output with Σ_r v_r v_rᵀ = H (all of a factor of H, or some random ones with that mean) are pulled back
to every use of a parameter; g_r, their gradients, give the block Σ_b Σ_r g_r g_rᵀ, of which the diagonal is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lapae.curvature.call import Work, by_layer
from lapae.curvature.collect import Kronecker, add, check_whole, factored, outer
from lapae.curvature.extract import input_factor, output_rows, rows_diagonal
from lapae.curvature.forms import random_rows, root
from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.per_datum import PerDatum, Pulled, leaves_of, passes, per_datum, rows_of_gradients
from lapae.curvature.rules.base import CHUNK_FLOATS, Params, identity_rows
from lapae.curvature.stateless import functional_call

LARGEST_CODE = 1024
"""Numbers of a code up to which there is a row for each of them, and a matrix between them."""
Sampling = tuple[int, torch.Generator | None]
"""How many random rows, and from where."""
Read = Callable[[Pulled], None]


def diagonal(task: Work, likelihood: Likelihood, sampling: Sampling | None, budget: int) -> Params:
    """The diagonal: exact, or from some random rows. `budget` is in numbers."""
    result = _zeros(task)

    def read(pulled: Pulled) -> None:
        for name, h in result.items():
            add_diagonal(h, pulled, name)

    _pull_all(task, likelihood, sampling, budget, read)
    return result


def add_diagonal(h: Tensor, pulled: Pulled, name: str) -> None:
    """h += Σ_b Σ_r g_r² of a parameter, in place."""
    uses, copy = pulled.uses(name), pulled.copies.get(name)
    if len(uses) == 1 and copy is None:
        leaf, key, v = uses[0]
        h += rows_diagonal(leaf.rule, leaf, v, None)[key]
    elif uses or copy is not None:
        for data in _chunks(pulled, h.numel()):
            gradients = pulled.gradients(name, data)
            assert gradients is not None
            h += gradients.square().sum((0, 1))


def blocks(task: Work, likelihood: Likelihood, budget: int) -> Params:
    """The exact block of every layer, by its name: of the parameters that stand in one module, in their order."""
    layers, weights = by_layer(task.wanted), task.weights
    sizes = {layer: sum(weights[name].numel() for name in names) for layer, names in layers.items()}
    result = {layer: weights[task.wanted[0]].new_zeros(n, n) for layer, n in sizes.items()}

    def read(pulled: Pulled) -> None:
        for layer, names in layers.items():
            _add_block(result[layer], pulled, names)

    _pull_all(task, likelihood, None, budget, read)
    return result


def _add_block(block: Tensor, pulled: Pulled, names: Sequence[str]) -> None:
    """block += Σ_b Σ_r g_r g_rᵀ of some parameters together, in place."""
    for data in _chunks(pulled, len(block)):
        g = torch.cat([pulled.flat(name, data) for name in names], 2).flatten(0, 1)
        block.addmm_(g.T, g)


def kfac(task: Work, likelihood: Likelihood, sampling: Sampling | None, budget: int) -> dict[str, Kronecker]:
    """Kronecker factors of weights that only ever meet inputs in linear maps and convolutions; else whole blocks.

    Samples may take different branches: the factors of a weight are sums over the samples that use it.
    """
    inputs: dict[str, tuple[Tensor, int]] = {}
    outputs: Params = {}
    last: PerDatum | None = None

    def read(pulled: Pulled) -> None:
        nonlocal last
        at, fresh, last = pulled.at, pulled.at is not last, pulled.at
        for name in task.wanted:
            leaves = at.leaves_of_weight(name)
            if not leaves:
                if at.is_used(name):
                    check_one_way(name, name not in inputs)
                    add(outputs, name, _whole(pulled, name))
                continue
            check_one_way(name, name in inputs or name not in outputs)
            for leaf in leaves if fresh else ():  # inputs are the same for all rows
                factor = input_factor(leaf.rule, leaf)
                assert factor is not None
                known = inputs.get(name)
                inputs[name] = factor if known is None else (known[0] + factor[0], known[1] + factor[1])
            factors = [outer(output_rows(leaf, v), None) for leaf, _, v in pulled.uses(name)]
            n_out = output_rows(leaves[0], leaves[0].y[None]).shape[2]
            add(outputs, name, sum(factors, at.output.new_zeros(n_out, n_out)))

    _pull_all(task, likelihood, sampling, budget, read)
    unused = _unused(task, [name for name in task.wanted if name not in outputs])
    used = {name: Kronecker(g, *inputs.get(name, (None, 1))) for name, g in outputs.items()}
    return {name: used.get(name) or unused[name] for name in task.wanted}


def check_one_way(name: str, same: bool) -> None:
    """ValueError where some samples use a parameter as the weight of a linear map, and others in another way."""
    if not same:
        raise ValueError(
            f"parameter {name!r} is the weight of a linear map for some samples and used in another way for others, so "
            "that it has no Kronecker factors: freeze it, or take a diagonal method"
        )


def _unused(task: Work, names: Sequence[str]) -> dict[str, Kronecker]:
    """Zeros, in the form that each parameter has where it is used: no sample has taken its branch."""
    matrices, transposed = factored(task.module)
    found = {}
    for name in names:
        weight = task.weights[name]
        n_out = weight.shape[1] if name in transposed else len(weight) if name in matrices else weight.numel()
        if name not in matrices:
            check_whole(name, n_out)
        n_in = weight.numel() // n_out
        inputs = weight.new_zeros(n_in, n_in) if name in matrices else None
        found[name] = Kronecker(weight.new_zeros(n_out, n_out), inputs, 0)
    return found


def _whole(pulled: Pulled, name: str) -> Tensor:
    n = pulled.at.shapes[name].numel()
    check_whole(name, n)
    block = pulled.at.output.new_zeros(n, n)
    _add_block(block, pulled, [name])
    return block


def bottleneck(task: Work, likelihood: Likelihood, name: str | None, sampling: Sampling, budget: int) -> Params:
    """Exact for parameters that act through the code alone; one random row at the output for the others.

    K rows pulled back from the code, with M = Tᵀ H T between them, T = ∂output/∂code.
    """
    name = name or narrowest(task)
    result = _zeros(task)
    one = per_datum(task.part(slice(0, 1)), name)
    n_code = one.code[0].numel()
    check_code(n_code)
    through, around = one.reaches(one.code), one.reaches(one.output)
    floats = one.row_floats() * n_code + 2 * n_code * (one.output[0].numel() + n_code)
    size = max(1, min(len(task), budget // floats))
    for at, data in passes(task, size, name):
        of_part = likelihood.part(data)
        s = root(_latent_curvature(at, of_part))  # (B, K, K)
        pulled = at.pull(s.permute(2, 0, 1).reshape(n_code, *at.code.shape), at.code)
        for n in through - around:
            add_diagonal(result[n], pulled, n)
        rows = random_rows(of_part, at.output.detach(), *sampling)
        into_code = rows_of_gradients(at.output, [at.start], rows)[0]
        pulled = at.pull(rows)
        if into_code is not None and through & around:
            pulled = pulled + at.pull(into_code, at.code)
        for n in around:
            add_diagonal(result[n], pulled, n)
    return result


def check_code(n_code: int) -> None:
    """ValueError where a code has too many numbers for a row each."""
    if n_code > LARGEST_CODE:
        raise ValueError(
            f"the code has {n_code:,} numbers, and the bottleneck method a row for each of them and a matrix between "
            f"them (at most {LARGEST_CODE:,}): take sketch, which has one row"
        )


def _latent_curvature(at: PerDatum, likelihood: Likelihood) -> Tensor:
    """M = Tᵀ H T at the code, (B, K, K).

    The gradient Tᵀ w of the code is linear in w: its own gradient in w, at each of K unit vectors, is a column of T.
    """
    output, start = at.output, at.start
    n_data, n_code = len(output), start[0].numel()
    if id(start) not in leaves_of(output):  # the output does not depend on the code
        return output.new_zeros(n_data, n_code, n_code)
    w = torch.zeros_like(output).requires_grad_()
    eye = identity_rows(start)
    try:
        back = torch.autograd.grad(output, start, w, create_graph=True)[0]
        t = rows_of_gradients(back, [w], eye)[0]
        assert t is not None
    except RuntimeError:  # no second derivative is known: T row by row, one for each output
        rows = rows_of_gradients(output, [start], identity_rows(output))[0]
        assert rows is not None
        t = rows.flatten(2).permute(2, 1, 0).reshape(n_code, *output.shape)
    return torch.einsum("rb...,sb...->brs", t, likelihood.hessian_product(output.detach(), t))


def narrowest(task: Work) -> str:
    """The module, called once, whose output has the fewest numbers; the last of several."""
    seen: list[tuple[str, Any]] = []
    hooks = [
        module.register_forward_hook(lambda _, __, output, name=name: seen.append((name, output)))
        for name, module in task.module.named_modules()
        if name
    ]
    try:
        with torch.no_grad():
            functional_call(task.module, task.weights, (task.x[:1],))
    finally:
        for hook in hooks:
            hook.remove()
    calls = Counter(name for name, _ in seen)
    once = [(name, y) for name, y in seen if isinstance(y, Tensor) and calls[name] == 1]
    floats = [(name, y) for name, y in once if y.is_floating_point() and y.numel()]
    if not floats:
        raise ValueError("the module has no layers of its own to be the bottleneck: name one, or take another method")
    return min(reversed(floats), key=lambda found: found[1].numel())[0]


def _pull_all(task: Work, likelihood: Likelihood, sampling: Sampling | None, budget: int, read: Read) -> None:
    """Pull rows from the output to all parameters, some data and some rows at a time, and have them read."""
    one = per_datum(task.part(slice(0, 1)))
    n_rows = one.output[0].numel() if sampling is None else sampling[0]
    fit = max(1, budget // one.row_floats())  # rows times data
    n_data = max(1, min(len(task), fit))
    for at, data in [(one, slice(None))] if len(task) == 1 else passes(task, n_data):
        output, of_part = at.output.detach(), likelihood.part(data)
        for first, last in ranges(n_rows, max(1, fit // len(output))):
            if sampling is None:
                rows = of_part.hessian_factor(output, identity_rows(output, first, last))
            else:
                rows = random_rows(of_part, output, last - first, sampling[1], of=n_rows)
            read(at.pull(rows))


def ranges(n: int, size: int) -> Iterator[tuple[int, int]]:
    """First and last (exclusive) of n things, `size` at a time."""
    return ((i, min(i + size, n)) for i in range(0, n, size))


def _chunks(pulled: Pulled, n_parameters: int) -> Iterator[slice]:
    """Data whose gradients are formed at once."""
    size = max(1, CHUNK_FLOATS // (2 * n_parameters * pulled.n_rows))
    return (slice(i, i + size) for i in range(0, len(pulled.at.output), size))


def _zeros(task: Work) -> Params:
    """Of the shapes of the wanted parameters."""
    weights = task.weights
    return {name: torch.zeros_like(weights[name], requires_grad=False) for name in task.wanted}
