"""One matrix per layer: exact within layers, zero between them. For small layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lapae.posterior.precision import Precision, eigh


class BlockPrecision(Precision):
    """H as a matrix (n, n) per layer, over the layer's parameters, flattened in their order."""

    def __init__(self, shapes: Mapping[str, torch.Size], prior_precision: float, temperature: float = 1.0) -> None:
        super().__init__(shapes, prior_precision, temperature)
        self.layers: dict[str, list[str]] = {}
        for name in self.shapes:
            self.layers.setdefault(name.rpartition(".")[0], []).append(name)
        if [name for names in self.layers.values() for name in names] != list(self.shapes):
            raise ValueError("the parameters of a layer must stand together")
        self.layer_sizes = [sum(self.shapes[n].numel() for n in names) for names in self.layers.values()]
        for i, n in enumerate(self.layer_sizes):
            self.register_buffer(f"h{i}", torch.zeros(n, n))
        self._eigen: list[tuple[Tensor, Tensor] | None] = [None] * len(self.layer_sizes)

    def block(self, i: int) -> Tensor:
        return self.get_buffer(f"h{i}")

    def reset(self, value: float | Sequence[float]) -> None:
        numbers = dict(zip(self.shapes, self._each(value), strict=True))
        for i, names in enumerate(self.layers.values()):
            diagonal = [self.prior.new_full((self.shapes[name].numel(),), numbers[name]) for name in names]
            self.block(i).zero_().diagonal().copy_(torch.cat(diagonal))
        self._forget()

    def update(self, keep: float, gain: float | Tensor, curvature: Mapping[str, Tensor]) -> None:
        for i, layer in enumerate(self.layers):
            self.block(i).mul_(keep).add_(curvature[layer] * gain)
        self._forget()

    def _forget(self) -> None:
        super()._forget()
        self._eigen = [None] * len(self.layer_sizes)

    def _factor(self, i: int) -> tuple[Tensor, Tensor]:
        """Precision of the i-th layer as eigenvalues and eigenvectors, kept until something changes."""
        known = self._eigen[i]
        if known is not None:
            return known
        names = list(self.layers.values())[i]
        prior = torch.cat([self.prior_of_parameter(n).expand(self.shapes[n].numel()) for n in names])
        values, vectors = eigh(self.block(i) + torch.diag(prior))
        found = values.clamp_min(prior.min()) / self.temperature, vectors
        self._eigen[i] = found
        return found

    def prior_of_parameter(self, name: str) -> Tensor:
        return self.prior[list(self.shapes).index(name)]

    def scale_noise(self, eps: Tensor) -> Tensor:
        """Eigenvectors diag(1 / √values) eigenvectorsᵀ eps: the same whichever eigenvectors a device finds."""
        parts = []
        for i, part in enumerate(eps.split(self.layer_sizes, dim=-1)):
            values, vectors = self._factor(i)
            parts.append((part @ vectors * values.rsqrt()) @ vectors.T)
        return torch.cat(parts, dim=-1)

    def whiten(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """eigenvectorsᵀ g / √values."""
        layer = next(iter(gradients)).rpartition(".")[0]
        values, vectors = self._factor(list(self.layers).index(layer))
        return (torch.cat([gradients[name] for name in self.layers[layer]], dim=-1) @ vectors) * values.rsqrt()

    def quadratic(self, delta: Tensor) -> Tensor:
        """Σ over layers of deltaᵀ block delta."""
        total = []
        for i, part in enumerate(delta.split(self.layer_sizes, dim=-1)):
            values, vectors = self._factor(i)
            total.append(((part @ vectors).square() * values).sum(-1))
        return torch.stack(total).sum(0)

    def eigenvalues(self) -> dict[str, Tensor]:
        return {layer: torch.linalg.eigvalsh(self.block(i)).clamp_min(0) for i, layer in enumerate(self.layers)}

    def prior_of(self, name: str) -> Tensor:
        """δ of a layer, which is that of its parameters (they are optimised together)."""
        return self.prior_of_parameter(self.layers[name][0])

    def log_det(self) -> Tensor:
        """From the eigenvalues of each layer's precision (whose parameters may have different δ)."""
        values = [self._factor(i)[0].double().log().sum() for i in range(len(self.layer_sizes))]
        return torch.stack(values).sum()
