"""What a model keeps of its data: their codes, to recall data by, and to learn the density of codes from.

The density is fitted when it is first asked for: a model that is to score data does without it.

A datum with a large part missing is completed from memory. Of the training codes those are taken whose decoded data are
nearest to what is observed; each is refined by encoding and decoding while the observed part stays fixed; and each is
as probable as its data are given the observed part, times the density of its code,

    log w = -|x - decode(z)|² / (2 scale) + log p(z),        over observed values,

where scale is the noise of held-out residuals, times how many values hang together: those of neighbouring pixels are
not independent, and would let one candidate take all. Completions are draws, their mean is the best guess.

Shapes: N data x (N, *shape) in the model's space, R codes kept, J candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lapae.calibrate.patterns import evenly
from lapae.methods.base import Draws, Method
from lapae.predict.decode import encode_mean
from lapae.predict.mc import draw_seeds, evaluating, n_distinct
from lapae.predict.statistics import expected
from lapae.score.code_density import Density, fit_density, most_codes

KEPT = 2000
"""Codes to look for the nearest in, at most."""
CANDIDATES = 16
REFINE = 3
"""Encodings and decodings of each candidate."""
TEMPER = 4.0
"""The scale is so many times that of the residuals: a code that was fitted to a part says less than one of a whole."""
BATCH = 256
MOST_VALUES = 2**25
"""Values of decoded codes held at once."""


@dataclass(frozen=True)
class Memory:
    """Of the codes of a trained model."""

    codes: Tensor
    """(R, *code): of training data, by the mean network."""
    unseen: Tensor
    """(U, *code): of data that training has not seen, if there were any."""
    scale: Tensor
    """(): variance of a value about its reconstruction, times how many values hang together."""

    @cached_property
    def density(self) -> Density:
        """Of codes."""
        return fit_density(self.codes, self.unseen)


def remember(method: Method, train: Tensor, held_out: Tensor) -> Memory:
    """Of training data (n, *shape), and data that training has not seen; training data serve where there are none."""
    codes = encode_mean(method, train, batch_size=BATCH)
    unseen = held_out if len(held_out) else train[:KEPT]
    of_unseen = encode_mean(method, unseen, batch_size=BATCH)
    gap = (unseen - decode(method, of_unseen)).nan_to_num().flatten(1).double()
    gap = gap[: max(1, MOST_VALUES // gap.shape[1])]
    # The trace of C² from pairs of data, C being the covariance of residuals; D_eff = (tr C)² / tr C² hang together.
    products = (gap @ gap.T).square()
    trace, n = gap.square().sum(1).mean(), len(gap)
    pairs = (products.sum() - products.diagonal().sum()) / (n * (n - 1)) if n > 1 else trace.square()
    together = (gap.shape[1] * pairs / trace.square().clamp_min(1e-30)).clamp(1.0, gap.shape[1])
    scale = (trace / gap.shape[1] * together).clamp_min(1e-12).to(codes.dtype)
    codes = evenly(codes, most_codes(codes[0].numel()))
    return Memory(codes, evenly(of_unseen, KEPT) if len(held_out) else of_unseen[:0].clone(), scale)


@torch.no_grad()
def recall(method: Method, memory: Memory, x: Tensor, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Codes (N, J, *code) that the observed part of x, NaN where missing, goes with, and their probabilities (N, J)."""
    x = x.to(memory.codes.dtype)
    seen = ~x.isnan()
    known = x.nan_to_num()
    codes = evenly(memory.codes, min(KEPT, max(CANDIDATES, MOST_VALUES // x[0].numel())))
    made = decode(method, codes).flatten(1)
    flat, mask = known.flatten(1), seen.flatten(1).to(x.dtype)
    n_candidates = min(CANDIDATES, len(codes))
    found, chance = [], []
    generator = torch.Generator().manual_seed(seed)
    for part in torch.arange(len(x)).split(max(1, BATCH // n_candidates)):
        square = mask[part] @ made.square().T - 2 * (flat * mask)[part] @ made.T
        # where nothing is observed all are as near: any will do
        square = square + 1e-3 * memory.scale * torch.rand(square.shape, generator=generator)
        z = codes[square.topk(n_candidates, largest=False).indices].flatten(0, 1)
        given, there = (t[part].repeat_interleave(n_candidates, 0) for t in (known, seen))
        for _ in range(REFINE):
            z = encode_mean(method, torch.where(there, given, decode(method, z)), batch_size=BATCH)
        gap = torch.where(there, given - decode(method, z), 0.0)
        energy = gap.square().flatten(1).sum(1) / (2 * TEMPER * memory.scale) - memory.density.log_prob(z)
        found.append(z.unflatten(0, (len(part), n_candidates)))
        chance.append((-energy).unflatten(0, (len(part), n_candidates)).softmax(1))
    return torch.cat(found), torch.cat(chance)


@torch.no_grad()
def best_guess(method: Method, memory: Memory, x: Tensor, *, seed: int = 0) -> Tensor:
    """x with its missing values by the mean of what they may be."""
    codes, chance = recall(method, memory, x, seed=seed)
    made = decode(method, codes.flatten(0, 1)).unflatten(0, chance.shape)
    return torch.where(x.isnan(), torch.einsum("nj,nj...->n...", chance, made).to(x.dtype), x)


@torch.no_grad()
def draw_completions(
    method: Method, memory: Memory, x: Tensor, n: int, *, seed: int = 0, noise: Tensor | None = None
) -> Tensor:
    """n completions of each of x: (n, N, *shape), each decoded by a network of its own, with noise of a deviation."""
    codes, chance = recall(method, memory, x, seed=seed)
    which = torch.multinomial(chance, n, replacement=True, generator=torch.Generator().manual_seed(seed))
    picked = codes[torch.arange(len(x))[:, None], which].transpose(0, 1)
    # members of an ensemble have a latent space each: codes are those of the first
    seeds = draw_seeds(seed, n_distinct(method, n)) if method.shared_codes else []
    made = [decode(method, z, None if not seeds else seeds[i % len(seeds)]) for i, z in enumerate(picked)]
    values = torch.stack(made).to(x.dtype)
    if noise is not None:
        generator = torch.Generator().manual_seed(seed)
        values = values + noise * torch.randn(values.shape, generator=generator, dtype=values.dtype)
    return torch.where(x.isnan(), values, x)


def decode(method: Method, z: Tensor, seed: int | None = None) -> Tensor:
    """Data (n, *shape) expected at codes (n, *code), on the CPU: by the mean network, or by one that is drawn."""
    weight = next(method.parameters())
    with evaluating(method, BATCH):
        draws: Draws = method.draw_mean() if seed is None else method.draw([seed])
        parts = (draws.decode(part.to(weight.device, weight.dtype)[None]) for part in z.split(BATCH))
        return torch.cat([expected(method.likelihood, output)[0].cpu() for output in parts])
