"""The common interface of the two backward passes on which the methods are built.

A backward pass starts from vectors, or from the matrix M, at the network's output and carries them back. For every
layer with wanted parameters a `Collect` gets a `Leaf` (the layer's weights and input) and the `Rows` that arrive at its
output, and extracts what it needs. There are two backward passes:

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
    """A recorded forward pass of a batch, through which vectors can be pulled back."""

    @property
    def result(self) -> Tensor:
        """The output (B, *out), without its graph."""
        ...

    def layers(self, whole: bool) -> Iterable[Leaf]:
        """Return the layers with wanted parameters; with `whole`, all parameters of a module are in one of them."""
        ...

    def row_floats(self) -> int:
        """Return the maximum number of values in memory for one row of one sample."""
        ...

    def pull_rows(self, v: Tensor, collect: Collect) -> None:
        """Pull rows v (R, B, *out) back from the output, and collect from every layer."""
        ...

    def carry(self, form: Form, collect: Collect, budget: int) -> None:
        """Carry all of M back from the output, and collect from every layer; `budget` is in numbers."""
        ...


class Halves(Backward, Protocol):
    """A backward pass of a network cut at its code, the bottleneck."""

    @property
    def latent(self) -> Tensor:
        """The code (B, *code); its values need not be available."""
        ...

    @property
    def has_encoder(self) -> bool:
        """Whether a wanted parameter affects the output only through the code."""
        ...

    def tangents(self) -> Tensor:
        """∂output/∂code, one row per latent dimension: (K, B, *out)."""
        ...

    def carry_from_code(self, form: Dense, collect: Collect, budget: int) -> None:
        """Carry M (B, K, K) back from the code, and collect from every layer of the encoder."""
        ...

    def read_decoder(self, likelihood: Likelihood, sampling: Sampling, collect: Collect) -> None:
        """Collect from every other layer approximately, at linear cost."""
        ...
