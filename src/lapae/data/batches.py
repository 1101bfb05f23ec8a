"""One way to draw batches: for training, validation, post-hoc fitting and prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import numpy as np
import torch
from torch import Tensor

from lapae.data.source import Source, Streamed
from lapae.space import Space, chunks

CPU_BUDGET = 2 * 2**30
"""Data that need at most this many bytes as float32 are held in memory as one tensor."""
PORTION = 2**20
"""Approximate number of samples in an epoch of streamed data; the validation set is used after each epoch."""
AHEAD = 64
"""Number of batches that a thread prepares ahead."""
CUDA_SHARE = 0.25
"""Memory for resident data on a GPU, as a share of its free memory."""


class Batches:
    """Batches of float32 in model space, on a device.

    `batch_size` is that of all processes together. Batch k of an epoch is the slice order[k·G : (k+1)·G] of the epoch's
    order, G = batch_size, and rank r of `world_size` takes its contiguous part of it as np.array_split cuts it: the
    batches do not depend on the number of processes. The last one may be short, or empty on some ranks; no sample is
    repeated or left out, so sums over ranks and batches are sums over the data. All ranks see the same number of
    batches.

    Data that fit into `budget` bytes become one tensor on the device, once, and a batch is an index_select on it.
    Larger data are read batch by batch, one ahead, in a thread.

    Streamed data come in the order of their pools. An epoch is a portion of a pass over all of them, and the next one
    continues where it ended. To reach a later epoch (in resumed training), those before it are read and skipped.
    """

    def __init__(
        self,
        x: Source | Tensor,
        space: Space | None,
        batch_size: int,
        *,
        device: str | torch.device = "cpu",
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        budget: int | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.n_data = len(x)
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.shuffle, self.seed = shuffle, seed
        self.device = torch.device(device)
        self._space = space or Space("array", tuple(x.shape[1:]))
        self._resident: Tensor | None = None
        self._source: Source | None = None
        self._streamed = x if isinstance(x, Streamed) else None
        self._flow: tuple[int, Iterator[Tensor]] = (-1, iter(()))
        if self._streamed is not None:
            pass
        elif isinstance(x, Tensor):
            self._resident = self._space.convert(x.to(self.device)).to(torch.float32)
        elif 4 * int(np.prod(x.shape)) <= (_budget(self.device) if budget is None else budget):
            self._resident = self._load(x)
        else:
            self._source = x

    def __len__(self) -> int:
        """Return the number of batches per epoch, the same on every rank."""
        whole = self._per_pass
        return whole if self._streamed is None else math.ceil(whole / portions_of(self.n_data))

    @property
    def _per_pass(self) -> int:
        return math.ceil(self.n_data / self.batch_size)

    def sizes(self, epoch: int = 0) -> list[int]:
        """Return the number of samples in each batch of an epoch, over all ranks."""
        first = max(0, epoch - 1) * len(self) if self._streamed is not None else 0
        batches = [(first + k) % self._per_pass for k in range(len(self))]
        return [min(self.batch_size, self.n_data - k * self.batch_size) for k in batches]

    def order(self, epoch: int = 0) -> np.ndarray:
        """Return the order (N,) of all data in an epoch: a pure function of seed and epoch, the same on every rank."""
        if not self.shuffle:
            return np.arange(self.n_data)
        return np.random.default_rng([self.seed, epoch]).permutation(self.n_data)

    def epoch(self, epoch: int = 0) -> Iterator[Tensor]:
        """Yield this rank's batches (B, *shape), float32 on the device, in the order of the epoch."""
        if self._streamed is not None:
            yield from self._portion(max(0, epoch - 1))  # training counts its epochs from 1
            return
        order = self.order(epoch)
        spans = [self._span(k) for k in range(len(self))]
        if self._resident is None:
            yield from map(self._place, ahead((self._read(order[start:stop]) for start, stop in spans), 1))
        elif self.shuffle:
            index = torch.from_numpy(order).to(self.device)
            for start, stop in spans:
                yield self._resident.index_select(0, index[start:stop])
        else:
            for start, stop in spans:  # a copy: whoever writes into a batch does not write into the data
                yield self._resident[start:stop].clone()

    def every(self) -> Iterator[Tensor]:
        """Yield this rank's batches of all samples, each sample once."""
        yield from self.epoch(0) if self._streamed is None else map(self._mine, ahead(self._pass(0)))

    def _portion(self, portion: int) -> Iterator[Tensor]:
        """Yield a portion of an endless sequence of passes."""
        size = len(self)
        if self._flow[0] == portion:
            flow = self._flow[1]
        else:
            begin, skip = divmod(portion * size, self._per_pass)
            passes = (batch for number in count(begin) for batch in self._pass(number))
            flow = islice(ahead(passes), skip, None)
        self._flow = (-1, iter(()))  # until this portion has been read to its end
        for batch in islice(flow, size):
            yield self._mine(batch)
        self._flow = (portion + 1, flow)

    def _pass(self, number: int) -> Iterator[Tensor]:
        """Yield batches of all streamed data on the CPU; only the last may be short."""
        assert self._streamed is not None
        rest = torch.empty(0, *self._space.model_shape)
        for pool in self._streamed.pools([self.seed, number]):
            rest = torch.cat([rest, torch.from_numpy(self._space.convert(pool))])
            n = len(rest) - len(rest) % self.batch_size
            yield from rest[:n].split(self.batch_size)
            rest = rest[n:]
        if len(rest):
            yield rest

    def _mine(self, batch: Tensor) -> Tensor:
        """Return this rank's part of a batch, on the device."""
        first, last = part_of(len(batch), self.rank, self.world_size)
        return batch[first:last].to(self.device)

    def _span(self, k: int) -> tuple[int, int]:
        """Return the part of the order that is this rank's share of batch k."""
        start = k * self.batch_size
        size = min(self.batch_size, self.n_data - start)
        first, last = part_of(size, self.rank, self.world_size)
        return start + first, start + last

    def _read(self, index: np.ndarray) -> Tensor:
        assert self._source is not None
        batch = self._storage(np.asarray(self._source[index]))
        return batch.pin_memory() if self.device.type == "cuda" else batch

    def _load(self, x: Source) -> Tensor:
        """Return the whole source as one tensor on the device, copied in chunks so that nothing is held twice."""
        tensor = torch.empty((len(x), *self._space.model_shape), dtype=torch.float32, device=self.device)
        for start, part in chunks(x):
            tensor[start : start + len(part)] = self._place(self._storage(part))
        return tensor

    def _storage(self, part: np.ndarray) -> Tensor:
        """Return what travels to the device: bytes as they are (a quarter of their floats), else 64 bits."""
        if part.dtype == np.uint8:
            return torch.from_numpy(np.array(part, order="C"))
        return torch.from_numpy(np.ascontiguousarray(self._space.convert(part)))

    def _place(self, batch: Tensor) -> Tensor:
        batch = batch.to(self.device, non_blocking=True)
        return self._space.convert(batch) if batch.dtype == torch.uint8 else batch


def ahead(items: Iterator[Tensor], n: int = AHEAD) -> Iterator[Tensor]:
    """Yield the items of an iterator that a thread advances, n at a time, while those before are in use.

    Errors in the thread are raised here.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="lapae-batches") as pool:
        after = pool.submit(lambda: list(islice(items, n)))
        while some := after.result():
            after = pool.submit(lambda: list(islice(items, n)))
            yield from some


def portions_of(n: int) -> int:
    """Return the number of epochs in a pass over n samples that are streamed."""
    return max(1, round(n / PORTION))


def part_of(n: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return first and last (exclusive) of the n samples of a batch that belong to `rank`, as np.array_split cuts
    them."""
    each, more = divmod(n, world_size)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)


def _budget(device: torch.device) -> int:
    if device.type == "cuda":
        return int(CUDA_SHARE * torch.cuda.mem_get_info(device)[0])
    return CPU_BUDGET
