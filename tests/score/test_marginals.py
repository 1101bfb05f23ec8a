"""Ranks of values among quantiles, by a search in steps, against counting."""

import pytest
import torch

from lapae.score.marginals import Marginals


@pytest.mark.parametrize("n", [1, 2, 7, 100, 511, 600])
def test_quantiles_below_a_value_are_those_that_are_less(n):
    generator = torch.Generator().manual_seed(n)
    rows = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    rows[:, 1] = rows[:, 1].round()
    marginals = Marginals.fit(rows)
    ends = torch.tensor([[torch.inf] * 3, [-torch.inf] * 3], dtype=torch.float64)
    x = torch.cat([2 * torch.randn(50, 3, generator=generator, dtype=torch.float64), rows, ends]).T.contiguous()
    below, upto = ((of(marginals.ranks[:, None], x[..., None])).sum(2) for of in (torch.lt, torch.le))
    assert torch.equal(marginals._below(x), below)
    assert torch.equal(marginals.normal(x.T), marginals.scores[below + upto].T)
