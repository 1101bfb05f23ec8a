"""The two backward passes that the methods are written on: what they have in common.

A backward pass starts from vectors, or from the matrix M, at the network's output and carries them back. Every layer
with wanted parameters gets what arrives at its output, as a `Leaf` (its weights and its input) with `Rows`, and a
`Collect` takes what it wants of the two. There are two of them:

| pass                        | of                          | carries                                               |
|-----------------------------|-----------------------------|-------------------------------------------------------|
| `walked.Walk`               | layers with rules           | M as a diagonal, a matrix or rows, by each layer's rule |
| `per_sample.PerSample`      | any module                  | rows, by automatic differentiation per sample         |

Both stay because of speed: benchmarks/two_engines.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from lapae.curvature.collect import Collect
from lapae.curvature.forms import Dense, Form
from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.rules.base import Leaf

Sampling = tuple[int, torch.Generator | None]
"""Number of random rows, and their source of randomness."""


class Backward(Protocol):
    """A recorded forward pass of a batch, to go back through."""

    @property
    def result(self) -> Tensor:
        """The output (B, *out), without its graph."""
        ...

    def layers(self, whole: bool) -> Iterable[Leaf]:
        """Layers with wanted parameters; with `whole`, all parameters of a module stand in one of them."""
        ...

    def row_floats(self) -> int:
        """Numbers in memory for one row of one sample, at most."""
        ...

    def pull_rows(self, v: Tensor, collect: Collect) -> None:
        """Pull rows v (R, B, *out) back from the output, and have every layer read."""
        ...

    def carry(self, form: Form, collect: Collect, budget: int) -> None:
        """Carry all of M back from the output, and have every layer read; `budget` is in numbers."""
        ...


class Halves(Backward, Protocol):
    """A backward pass of a network cut at its code, the bottleneck."""

    @property
    def latent(self) -> Tensor:
        """The code (B, *code); its values need not be there."""
        ...

    @property
    def has_encoder(self) -> bool:
        """Whether a wanted parameter acts on the output through the code alone."""
        ...

    def tangents(self) -> Tensor:
        """∂output/∂code, one row per latent dimension: (K, B, *out)."""
        ...

    def carry_from_code(self, form: Dense, collect: Collect, budget: int) -> None:
        """Carry M (B, K, K) back from the code, and have every layer of the encoder read."""
        ...

    def read_decoder(self, likelihood: Likelihood, sampling: Sampling, collect: Collect) -> None:
        """Have every other layer read, approximately: the pass's own way at linear cost."""
        ...
