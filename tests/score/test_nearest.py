"""The search for nearest rows against all distances in float64, on continuous, rounded, copied and far rows."""

import numpy as np
import pytest
import torch

from lapae.score.nearest import Search
from lapae.score.neighbours import NEAREST, TINY, NearestRows


def rows(kind: str, n: int, seed: int) -> torch.Tensor:
    x = np.random.default_rng(seed).normal(size=(n, 6))
    if kind == "rounded":
        x = np.round(x)
    if kind == "copies":
        x = np.concatenate([x[: n // 2], x[: n - n // 2]])
    if kind == "far":
        x[::7] *= 1e6
    if kind == "close":  # closer to each other than a product in float32 resolves
        x = 100 + 1e-3 * x
    return torch.from_numpy(x)


KINDS = ("continuous", "rounded", "copies", "far", "close")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [600, 803])
def test_decided_rows_have_the_true_neighbours(kind: str, n: int) -> None:
    bank, x, k = rows(kind, n, 0), rows(kind, 100, 1), NEAREST + 1
    true = (x[:, None] - bank).square().sum(2)
    found = Search.of(bank, TINY)(x, k)
    square, index = (part[found.decided] for part in true.topk(k, largest=False))
    assert torch.equal(found.index[found.decided], index)
    torch.testing.assert_close(found.square[found.decided].double(), square, rtol=1e-6, atol=1e-7)
    if kind == "continuous":
        assert found.decided.all()
    if kind == "close":
        assert not found.decided.all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("groups", [True, False])
def test_a_search_measures_as_the_plain_way_does(kind: str, groups: bool) -> None:
    bank = NearestRows.fit(rows(kind, 803, 0))
    x = torch.cat([rows(kind, 100, 1), bank.rows[:20]])
    assert bank._search is not None
    quick, plain = bank.measure(x, groups=groups), bank._measure(x, None, groups, True)
    # |x|² + |r|² - 2 x·r of close rows far from 0 has few digits left, in either way
    digits = 1e-4 if kind == "close" else 1e-9
    for name in ("near", "ratio", "gap", *(["groups"] if groups else [])):
        torch.testing.assert_close(getattr(quick, name), getattr(plain, name), rtol=digits, atol=digits)
