"""Quality of generated samples: from noise, or from the latent prior if a method has one.

Two numbers come with the pictures: diversity (mean distance between two generated samples) and the distance to the
nearest training sample. Both are also measured on held-out samples, which shows whether a model repeats itself or
copies its training data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lapae.data import Data
from lapae.data.progress import progress as progress_bar
from lapae.errors import ConfigError
from lapae.model import Model
from lapae.runs.results import Table
from lapae_paper.tasks.base import tensor
from lapae_paper.tasks.noise import from_noise, from_prior, n_progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Generated:
    """Samples from one source, with their diversity and distances."""

    samples: Tensor
    """(n, *shape)."""
    nearest: Tensor
    """(n, *shape): the nearest training samples."""
    diversity: float
    """Mean distance between two samples."""
    nearest_distance: float
    """Mean distance from a sample to the nearest training sample."""

    def to_dict(self) -> dict[str, float | int]:
        return {"n": len(self.samples), "diversity": self.diversity, "nearest_distance": self.nearest_distance}


@dataclass(frozen=True)
class GenerationResult:
    """Generated samples by source ("noise", "prior"), and held-out samples measured the same way ("data")."""

    sets: dict[str, Generated]

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers of each source."""
        return {name: found.to_dict() for name, found in self.sets.items()}

    def table(self) -> Table:
        return Table.by_name(self.to_dict())

    def figures(self) -> dict[str, Figure]:
        """Draw grids of samples, and some with their nearest training images."""
        from lapae_paper.tasks.figures import image_grid

        out = {}
        for name, found in self.sets.items():
            if found.samples.ndim == 4:
                out[f"generation_{name}"] = image_grid([list(row) for row in found.samples[:64].split(8)])
                pairs = [list(found.samples[:8]), list(found.nearest[:8])]
                out[f"generation_{name}_nearest"] = image_grid(pairs)
        return out


def describe(samples: Tensor, train: Tensor, *, batch_size: int = 4096) -> Generated:
    """Measure the diversity of samples (n, *shape) and their L2 distance to the training samples (N, *shape)."""
    if len(samples) < 2:
        raise ValueError(f"diversity needs at least 2 samples, got {len(samples)}")
    flat = samples.flatten(1).double()
    diversity = torch.pdist(flat).mean()
    best, index = torch.full((len(flat),), torch.inf, dtype=torch.float64), torch.zeros(len(flat), dtype=torch.long)
    for start in range(0, len(train), batch_size):
        part = train[start : start + batch_size].flatten(1).double()
        # differences instead of a matrix product: the distance to a copy is exactly 0
        distance, place = torch.cdist(flat, part, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        index = torch.where(distance < best, place + start, index)
        best = torch.minimum(best, distance)
    return Generated(samples, train[index], float(diversity), float(best.mean()))


@dataclass(frozen=True)
class GenerationOptions:
    """Generation from noise and from the latent prior."""

    n: int = 64
    """Number of samples to generate."""
    steps: int = 10
    """Number of encodings and decodings from noise."""
    average: int = 5
    """Number of networks averaged at the end."""
    train_limit: int | None = 20_000
    """Number of training samples to look for the nearest in, at most."""
    seed: int = 0
    """Seed of noise, codes and draws."""


def evaluate(model: Model, data: Data, options: GenerationOptions) -> GenerationResult:
    if options.n < 2:
        raise ConfigError(f"n={options.n}: expected at least 2, as diversity is a distance between two")
    train = tensor(model, data.train, data.train.some(options.train_limit, options.seed))
    how: dict[str, Any] = {"steps": options.steps, "average": options.average, "seed": options.seed}
    with progress_bar("generation", n_progress(model.method, options.n, options.average)) as advance:
        how |= {"value_range": model.space.value_range, "progress": advance}
        sets = {"noise": from_noise(model.method, model.shape, options.n, **how)}
    if model.method.latent_prior:
        sets["prior"] = from_prior(model.method, model.code_shape[-1], options.n, seed=options.seed)
    sets["data"] = tensor(model, data.held_out, data.held_out.some(options.n, options.seed))
    return GenerationResult({name: describe(samples, train) for name, samples in sets.items()})
