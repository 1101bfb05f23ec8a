"""Neighbours among the training codes."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from lapae.predict.deviation import nearest, smallest, squared_distances


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 2), (300, 30), (2000, 10)])
def test_the_smallest_are_those_of_a_sort(n, k):
    square = torch.rand(50, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 8
    values, index = smallest(square, k)
    assert torch.equal(values, square.sort(1).values[:, :k])
    assert torch.equal(square.gather(1, index), values)


def test_equal_numbers_and_infinite_ones():
    square = torch.tensor([[torch.inf, 2.0, 0.0, 2.0, torch.inf, 2.0]], dtype=torch.float64)
    values, index = smallest(square, 5)
    assert values.tolist() == [[0.0, 2.0, 2.0, 2.0, torch.inf]]
    assert index.tolist() == [[2, 1, 3, 5, 0]]


def test_a_row_is_no_neighbour_of_itself():
    codes = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    codes[7] = codes[3]
    square = squared_distances(codes[:10], codes)
    assert_close(square, (codes[:10, None] - codes).square().sum(2))
    values, index = nearest(square)
    plain = torch.where(square <= 1e-10, torch.inf, square).topk(5, largest=False)
    assert torch.equal(values, plain.values)
    assert torch.equal(index, plain.indices)
