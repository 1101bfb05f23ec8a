"""Every layer and option, every exact quantity, against the brute force."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, Case, seeded
from torch import nn
from torch.testing import assert_close

from lapae.curvature import ggn_blocks, ggn_diagonal, reference
from lapae.curvature.tape import leaves, record
from lapae.models import Bernoulli


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_exact_is_the_brute_force(case: Case):
    module, x = case.module(), case.x()
    assert sum(any(True for _ in m.parameters(recurse=False)) for m in module.modules()) >= 4
    with torch.no_grad():
        assert_close(record(module, x).output, module(x))
    expected = reference.ggn_diagonal(module, x, Bernoulli())
    actual = ggn_diagonal(module, x, Bernoulli(), "exact")
    assert list(actual) == [name for name, _ in module.named_parameters()]
    assert_close(actual, expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_blocks_are_the_brute_force(case: Case):
    module, x = case.module(), case.x(2)
    assert_close(ggn_blocks(module, x, Bernoulli()), reference.ggn_blocks(module, x, Bernoulli()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layer_follows_its_own_derivatives(case: Case):
    """jvp, vjp, gradients and squares of each layer alone, against Jacobians: `approx` and `mc` are made of these."""
    module, x = case.module(), case.x(2)
    with torch.no_grad():
        tape = record(module, x)
        for leaf in leaves(tape.nodes):
            j = torch.func.vmap(torch.func.jacrev(lambda x, leaf=leaf: leaf.rule.apply(leaf.layer, leaf.params, x[None])[0]))(leaf.x)
            j = j.reshape(len(x), leaf.y[0].numel(), leaf.x[0].numel())
            v = torch.randn(3, *leaf.y.shape, dtype=x.dtype, generator=seeded(2))
            t = torch.randn(3, *leaf.x.shape, dtype=x.dtype, generator=seeded(3))
            assert_close(leaf.rule.vjp(leaf, v).flatten(2), torch.einsum("rbo,boi->rbi", v.flatten(2), j))
            assert_close(leaf.rule.jvp(leaf, t).flatten(2), torch.einsum("rbi,boi->rbo", t.flatten(2), j))
            for m in (v[0].square(), v[0, :1].square()):
                m_in, h = leaf.rule.squared_backward(leaf, m)
                assert m_in is not None
                pulled = torch.einsum("bo,boi->bi", m.expand_as(leaf.y).flatten(1), j.square())
                assert_close(m_in.expand_as(leaf.x).flatten(1), pulled)
                skipped, again = leaf.rule.squared_backward(leaf, m, need_input=False)
                assert skipped is None
                assert_close(again, h)
                for key in leaf.trainable:
                    g = torch.func.vmap(
                        torch.func.jacrev(
                            lambda w, x, leaf=leaf, key=key: leaf.rule.apply(leaf.layer, {**leaf.params, key: w}, x[None])[0].flatten()
                        ),
                        in_dims=(None, 0),
                    )(leaf.params[key], leaf.x)  # fmt: skip
                    assert_close(h[key], torch.einsum("bo,bo...->...", m.expand_as(leaf.y).flatten(1), g.square()))


@pytest.mark.parametrize("method", ["approx", "mixed", "bottleneck", "mc", "exact"])
@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.name)
def test_a_batch_is_the_sum_of_its_data(case: Case, method):
    """Batch size 1 works, and ragged last batches add up."""
    module, x = case.module(), case.x(3)
    draw = torch.randn(1, 3, *module(x).shape[1:], dtype=x.dtype, generator=seeded(5))

    class Fixed(Bernoulli):
        """The same draw for the same datum."""

        def hessian_factor(self, output, eps):
            return super().hessian_factor(output, eps if method != "mc" else draw[:, self.at])

    def h(part: slice) -> dict:
        Fixed.at = part
        return ggn_diagonal(module, x[part], Fixed(), method, switch=6)

    parts = [h(slice(0, 2)), h(slice(2, 3))]
    assert_close({k: parts[0][k] + parts[1][k] for k in parts[0]}, h(slice(0, 3)))


def test_nothing_but_layers_is_a_network_too():
    x = torch.randn(3, 4, dtype=torch.float64)
    module = nn.Linear(4, 2).double()
    assert_close(ggn_diagonal(module, x, method="exact"), reference.ggn_diagonal(module, x))
    assert_close(ggn_blocks(module, x), reference.ggn_blocks(module, x))
