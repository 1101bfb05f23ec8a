"""Distances to a bank of rows, against plain loops over all of them."""

import numpy as np
import pytest
import torch
from narrow import sure

from lapae.score.neighbours import BANK, GRAIN, GROUP, GROUPED, NEAREST, NearestRows, least_of, places, smallest


def plain(rows: np.ndarray, x: np.ndarray) -> tuple[list[int], float, float]:
    """The nearest rows, `near` and `groups` of one sample."""
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
    bank = NearestRows.fit(torch.from_numpy(rows))
    kept = bank.rows.numpy()
    new, own = rng.normal(size=(7, 4)), kept[:5]
    found = bank.measure(torch.from_numpy(np.concatenate([new, own])))
    grain = GRAIN * np.mean([np.exp(plain(kept, row)[1]) for row in kept])
    for i, x in enumerate([*new, *own]):
        order, near, groups = plain(kept, x)
        assert float(found.near[i]) == pytest.approx(near, abs=1e-6)
        assert float(sure(found.groups)[i]) == pytest.approx(groups, abs=1e-6)
        theirs = np.mean([np.log(np.exp(plain(kept, kept[j])[1]) + grain) for j in order])
        assert float(found.ratio[i]) == pytest.approx(np.log(np.exp(near) + grain) - theirs, abs=1e-6)
        np.testing.assert_allclose(sure(found.gap)[i], np.square(x - kept[order]).mean(0), atol=1e-9)


def test_groups_of_a_large_bank_are_made_of_its_first_rows():
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(GROUPED + 300, 4)))
    bank = NearestRows.fit(x)
    new, own = x[:40] + 0.01, places(len(x))[:40]
    assert (own >= GROUPED).any()
    assert (own < GROUPED).any()
    first = NearestRows(bank.rows[:GROUPED], bank.own[:GROUPED])
    for at in (None, own):
        of_first = None if at is None else torch.where(at < GROUPED, at, -1)
        assert torch.equal(sure(bank.measure(new, at).groups), sure(first.measure(new, of_first).groups))
    whole = NearestRows(bank.rows, bank.own)  # as in runs saved before there was a limit
    for found, rows in ((bank, bank.rows[:GROUPED]), (whole, bank.rows)):
        expected = [plain(rows.numpy(), row)[2] for row in new.numpy()]
        np.testing.assert_allclose(sure(found.measure(new).groups), expected, atol=1e-6)


def test_copies_are_neighbours_of_each_other():
    """One of two rows that are the same is left out, not both: the other lies at no distance."""
    rows = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    found = NearestRows(rows, torch.zeros(3, dtype=torch.float64)).measure(rows)
    assert float(found.near[0].exp()) == pytest.approx((1e-4 + 5) / 2, abs=1e-6)
    assert float(found.near[2].exp()) == pytest.approx(5)


@pytest.mark.parametrize("n", [9, 40, 203])
def test_held_out_rows_are_measured_as_if_they_were_not_in_the_bank(n):
    """With holes filled in by a model, say, a row is no copy of itself: `own` tells which it is."""
    rows = torch.from_numpy(np.random.default_rng(n).normal(size=(n, 4)))
    bank, where = NearestRows.fit(rows), places(n)
    torch.testing.assert_close(bank.rows[where], rows)
    moved = rows + 0.01
    found = bank.measure(moved, where)
    for i in range(n):
        distance = (rows - moved[i]).square().sum(1).sqrt()
        distance[i] = torch.inf
        near = distance.sort().values[: min(NEAREST, n - 1)].mean().log()
        assert float(found.near[i]) == pytest.approx(float(near), abs=1e-6)
    torch.testing.assert_close(bank.measure(moved).near, bank.measure(moved, torch.full((n,), -1)).near)


def test_a_bank_of_some_rows_says_which_it_has():
    where = places(9000)
    assert int((where >= 0).sum()) == len(where[where >= 0].unique()) == BANK


@pytest.mark.parametrize("ties", [False, True])
def test_the_smallest_are_those_of_a_sort_and_of_equal_ones_the_first(ties):
    values = torch.rand(200, 351, generator=torch.Generator().manual_seed(0))
    values = (values * 40).floor() if ties else values
    values[3, :350] = torch.inf
    found = smallest(values, 6)
    expected = values.sort(dim=1, stable=True)
    assert torch.equal(found, expected.indices[:, :6])
    assert torch.equal(values.gather(1, found), expected.values[:, :6])
    least, index = least_of(values, 6)
    assert torch.equal(index, found)
    assert torch.equal(least, expected.values[:, :6])


def test_what_is_not_asked_for_does_not_change_the_rest():
    rows = torch.randn(300, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bank = NearestRows.fit(rows)
    whole, brief = bank.measure(rows + 0.1), bank.measure(rows + 0.1, groups=False, gaps=False)
    assert torch.equal(whole.near, brief.near)
    assert torch.equal(whole.ratio, brief.ratio)
    assert brief.groups is None
    assert brief.gap is None
