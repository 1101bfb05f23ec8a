"""Normal numbers in parallel: the same for any number of threads, independent between seeds and chunks."""

import pytest
import torch

from lapae.posterior.noise import CHUNK, fill_normal, normal


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_numbers_do_not_depend_on_the_number_of_threads(threads):
    found = []
    for n in (1, 2, 3):
        threads(n)
        found.append(normal(torch.zeros(()), 3 * CHUNK + 17, torch.Generator().manual_seed(4)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_row_depends_on_its_seed_alone():
    both = fill_normal(torch.empty(2, CHUNK + 5), [7, 8])
    assert torch.equal(both[1], fill_normal(torch.empty(1, CHUNK + 5), [8])[0])
    assert not torch.equal(both[0], both[1])


def test_numbers_are_standard_normal_and_chunks_uncorrelated():
    x = fill_normal(torch.empty(2, 4 * CHUNK, dtype=torch.float64), [0, 1]).reshape(8, CHUNK)
    error = CHUNK**-0.5
    assert x.mean(1).abs().max() < 5 * error
    assert (x.var(1) - 1).abs().max() < 5 * 2**0.5 * error
    assert (torch.corrcoef(x) - torch.eye(8)).abs().max() < 5 * error
    assert abs(float((x.abs() > 1.959964).double().mean()) - 0.05) < 5 * (0.05 * 0.95 / x.numel()) ** 0.5


def test_generator_goes_on():
    generator = torch.Generator().manual_seed(0)
    first, second = (normal(torch.zeros(()), 100, generator) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, normal(torch.zeros(()), 100, generator.manual_seed(0)))
