"""Distances to a bank of rows, against plain loops over all of them."""

import numpy as np
import pytest
import torch

from lapae.predict.neighbours import GROUP, NEAREST, Bank


def plain(rows: np.ndarray, x: np.ndarray) -> tuple[list[int], float, float]:
    """The nearest rows, `near` and `groups` of one datum."""
    distance = np.sqrt(np.square(rows - x).sum(1))
    if (same := np.flatnonzero(distance == 0)).size and len(rows) > 1:
        distance[same[0]] = np.inf
    order = np.argsort(distance)[: min(NEAREST, max(1, len(rows) - 1))]
    groups = [distance[i :: max(1, len(rows) // GROUP)] for i in range(max(1, len(rows) // GROUP))]
    return order.tolist(), float(np.log(distance[order].mean())), float(np.mean([np.log(g.min()) for g in groups]))


@pytest.mark.parametrize("n", [3, 5, 6, 8, 17, 64, 203])
def test_as_plain_loops_find_them(n):
    rng = np.random.default_rng(n)
    rows = rng.normal(size=(n, 4))
    bank = Bank.of(torch.from_numpy(rows))
    kept = bank.rows.numpy()
    new, own = rng.normal(size=(7, 4)), kept[:5]
    found = bank.measure(torch.from_numpy(np.concatenate([new, own])))
    for i, x in enumerate([*new, *own]):
        order, near, groups = plain(kept, x)
        assert float(found.near[i]) == pytest.approx(near, abs=1e-6)
        assert float(found.groups[i]) == pytest.approx(groups, abs=1e-6)
        theirs = np.mean([plain(kept, kept[j])[1] for j in order])
        assert float(found.ratio[i]) == pytest.approx(near - theirs, abs=1e-6)
        np.testing.assert_allclose(found.gap[i], np.square(x - kept[order]).mean(0), atol=1e-9)


def test_copies_are_neighbours_of_each_other():
    """One of two rows that are the same is left out, not both: the other lies at no distance."""
    rows = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    found = Bank(rows, torch.zeros(3, dtype=torch.float64)).measure(rows)
    assert float(found.near[0].exp()) == pytest.approx((1e-4 + 5) / 2, abs=1e-6)
    assert float(found.near[2].exp()) == pytest.approx(5)
