from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from narrow import as_a

from lapae.data import Batches, DataError
from lapae.data.source import Lazy
from lapae.space import Space

X = np.arange(23, dtype=np.float64)[:, None]


def values(batches, epoch=0):
    return [batch[:, 0].tolist() for batch in batches.epoch(epoch)]


@settings(deadline=None)
@given(
    n=st.integers(0, 60),
    batch_size=st.integers(1, 12),
    world_size=st.integers(1, 5),
    shuffle=st.booleans(),
    streamed=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_ranks_together_see_every_sample_once(n, batch_size, world_size, shuffle, streamed, epoch):
    x = np.arange(n, dtype=np.float32)[:, None]
    options = {"shuffle": shuffle, "seed": 5, "world_size": world_size, "budget": 0 if streamed else None}
    ranks = [Batches(x, None, batch_size, rank=rank, **options) for rank in range(world_size)]
    assert len({len(rank) for rank in ranks}) == 1
    assert {rank.n_data for rank in ranks} == {n}
    seen = [values(rank, epoch) for rank in ranks]
    assert {len(batches) for batches in seen} == {len(ranks[0])}
    order = ranks[0].order(epoch)
    for k in range(len(ranks[0])):
        whole = order[k * batch_size : (k + 1) * batch_size]
        parts = np.array_split(whole, world_size)
        assert [batches[k] for batches in seen] == [part.tolist() for part in parts]
        assert {rank.sizes()[k] for rank in ranks} == {len(whole)}
    assert sorted(v for batches in seen for b in batches for v in b) == list(range(n))


def test_in_order_without_shuffle():
    batches = Batches(X, None, 10)
    assert len(batches) == 3
    assert values(batches) == [list(range(10)), list(range(10, 20)), [20, 21, 22]]
    assert values(batches, 7) == values(batches)


@pytest.mark.parametrize("budget", [None, 0])
def test_order_is_a_function_of_seed_and_epoch(budget):
    one, same, other = (Batches(X, None, 5, shuffle=True, seed=seed, budget=budget) for seed in (1, 1, 2))
    values(one, 0)  # what was drawn before does not matter
    torch.manual_seed(99)
    assert values(one, 3) == values(same, 3)
    assert values(one, 3) != values(one, 4)
    assert values(one, 3) != values(other, 3)


@pytest.mark.parametrize("budget", [None, 0])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float16, np.float32, np.float64, ">f4"])
def test_model_space(dtype, budget):
    x = (np.arange(40).reshape(10, 4) % 17).astype(dtype)
    for offset, scale in ((0.0, 1.0), (1.0, 3.0), (np.arange(4.0), np.arange(1.0, 5.0))):
        space = Space("table", (4,), offset=offset, scale=scale)
        batches = torch.cat(list(Batches(x, space, 3, budget=budget).epoch()))
        assert batches.dtype == torch.float32
        expected = (x.astype(np.float64) - offset) / scale
        np.testing.assert_allclose(batches.numpy(), expected, rtol=1e-6)


def test_tensors():
    x = torch.arange(10, dtype=torch.float64)[:, None]
    assert values(Batches(x, Space("table", (1,), scale=2.0), 4)) == [[0, 0.5, 1, 1.5], [2, 2.5, 3, 3.5], [4, 4.5]]
    assert next(iter(Batches(x, None, 4).epoch())).dtype == torch.float32


@pytest.mark.parametrize("shuffle", [True, False])
def test_writing_into_a_batch_leaves_the_data_alone(shuffle):
    x = torch.ones(6, 2)
    batches = Batches(x, None, 4, shuffle=shuffle)
    for batch in batches.epoch():
        batch.zero_()
    assert all((batch == 1).all() for batch in batches.epoch())
    assert (x == 1).all()


def test_memory_map(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(60, dtype=np.uint8).reshape(20, 3))
    x = np.load(tmp_path / "a.npy", mmap_mode="r")
    streamed = Batches(x, Space("table", (3,), scale=255.0), 6, shuffle=True, budget=239)
    held = Batches(x, Space("table", (3,), scale=255.0), 6, shuffle=True, budget=240)
    assert streamed._resident is None
    assert held._resident is not None
    for a, b in zip(streamed.epoch(1), held.epoch(1), strict=True):
        assert a.equal(b)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("budget", [None, 0])
def test_cuda_batches_are_those_of_the_cpu(dtype, budget):
    x = (np.arange(400).reshape(100, 4) % 251).astype(dtype)
    options = {"space": Space("table", (4,), scale=255.0), "batch_size": 32, "shuffle": True, "budget": budget}
    for here, there in zip(Batches(x, **options).epoch(1), Batches(x, device="cuda", **options).epoch(1), strict=True):
        assert there.device.type == "cuda"
        torch.testing.assert_close(there.cpu(), here)


class Counted(Lazy):
    def __init__(self, fail_at=None):
        self.shape, self.dtype, self.reads, self.fail_at = (12, 1), np.dtype(np.float32), 0, fail_at

    def __getitem__(self, index):
        self.reads += 1
        if self.reads == self.fail_at:
            raise DataError("file 7 is broken")
        return np.arange(12, dtype=np.float32)[index][:, None]


def test_stream_reads_one_batch_ahead_and_stops_when_left():
    source = Counted()
    iterator = as_a(Generator, Batches(source, None, 2, budget=0).epoch())
    assert source.reads == 0
    next(iterator)
    iterator.close()  # waits for the one that is under way
    assert source.reads == 2


def test_error_of_the_thread_is_raised():
    iterator = Batches(Counted(fail_at=3), None, 2, budget=0).epoch()
    next(iterator)
    next(iterator)
    with pytest.raises(DataError, match="file 7 is broken"):
        next(iterator)


def test_batches_of_nothing():
    with pytest.raises(ValueError, match="batch_size"):
        Batches(X, None, 0)
