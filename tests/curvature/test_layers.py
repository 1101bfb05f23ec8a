"""Every layer and option, every exact quantity, against the brute force."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from cases import CASES, CONVOLUTIONS, Case, seeded
from narrow import as_a
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.testing import assert_close

from lapae.curvature import Leaf, Params, ggn_blocks, ggn_diagonal, reference
from lapae.curvature.forward import Forward, leaves, record, walk
from lapae.curvature.likelihoods import Bernoulli


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


@pytest.mark.parametrize("flip_floats", [1, 1 << 30])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: case.name)
def test_both_ways_through_a_convolution_are_the_brute_force(case: Case, flip_floats, monkeypatch):
    monkeypatch.setattr("lapae.curvature.rules.convolution.FLIP_FLOATS", flip_floats)
    module, x = case.module(), case.x()
    assert_close(ggn_diagonal(module, x, method="exact"), reference.ggn_diagonal(module, x))
    test_a_layer_follows_its_own_derivatives(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_blocks_are_the_brute_force(case: Case):
    module, x = case.module(), case.x(2)
    assert_close(ggn_blocks(module, x, Bernoulli()), reference.ggn_blocks(module, x, Bernoulli()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layer_follows_its_own_derivatives(case: Case):
    """jvp, vjp and squares of each layer alone, against Jacobians: `approx` and `mc` are made of these."""
    with torch.no_grad():
        for leaf in leaves(as_a(Forward, record(case.module(), case.x(2))).nodes):

            def outputs(params: Params, x: Tensor, leaf: Leaf = leaf) -> Tensor:
                return leaf.rule.apply(leaf.layer, params, x[None])[0].flatten()

            by_params, by_x = vmap(jacrev(outputs, (0, 1)), in_dims=(None, 0))(leaf.params, leaf.x)
            j = by_x.flatten(2)
            v = torch.randn(3, *leaf.y.shape, dtype=j.dtype, generator=seeded(2))
            t = torch.randn(3, *leaf.x.shape, dtype=j.dtype, generator=seeded(3))
            assert_close(leaf.rule.vjp(leaf, v).flatten(2), torch.einsum("rbo,boi->rbi", v.flatten(2), j))
            assert_close(leaf.rule.jvp(leaf, t).flatten(2), torch.einsum("rbi,boi->rbo", t.flatten(2), j))
            for m in (v[0].square(), v[0, :1].square()):  # one for each sample, one for all
                flat = m.expand_as(leaf.y).flatten(1)
                m_in, h = leaf.rule.squared_backward(leaf, m)
                assert m_in is not None
                assert_close(m_in.expand_as(leaf.x).flatten(1), torch.einsum("bo,boi->bi", flat, j.square()))
                assert_close(h, {k: torch.einsum("bo,bo...->...", flat, by_params[k].square()) for k in leaf.trainable})
                skipped, again = leaf.rule.squared_backward(leaf, m, need_input=False)
                assert skipped is None
                assert_close(again, h)


@pytest.mark.parametrize("method", ["approx", "mixed", "bottleneck", "mc", "exact"])
@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.name)
def test_a_batch_is_the_sum_of_its_data(case: Case, method):
    """Batch size 1 works, and ragged last batches add up."""
    module, x = case.module(), case.x(3)
    draw = torch.randn(1, 3, *module(x).shape[1:], dtype=x.dtype, generator=seeded(5))

    class Fixed(Bernoulli):
        """Draw the same for the same sample."""

        at: ClassVar[slice]

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


@pytest.mark.parametrize(
    "layer", [nn.GroupNorm(8, 64), nn.LayerNorm([64, 64, 64]), nn.RMSNorm([64, 64]), nn.Softmax(1), nn.LogSoftmax(1)]
)
def test_layers_that_couple_features_cost_no_row_per_feature(layer):
    """262,144 of them: a row each would be 69 billion numbers."""
    x = torch.randn(1, 64, 64, 64)
    (leaf,) = leaves(walk(nn.Sequential(layer), x).nodes)
    m_in, _ = leaf.rule.squared_backward(leaf, torch.rand(1, 64, 64, 64))
    assert m_in is not None
    assert m_in.isfinite().all()
    assert (m_in > -1e-6).all()


def test_a_softmax_says_over_what():
    for dim in (None, 0):
        with pytest.raises(ValueError, match="name the axis of the classes"):
            ggn_diagonal(nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim)), torch.zeros(2, 4))
