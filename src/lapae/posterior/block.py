"""One matrix per layer: exact within layers, zero between them. For small layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lapae.curvature.call import by_layer
from lapae.posterior.precision import Precision, eigh


class BlockPrecision(Precision):
    """H as a matrix (n, n) per layer, over the layer's parameters, flattened in their order."""

    def __init__(self, shapes: Mapping[str, torch.Size], prior_precision: float, temperature: float = 1.0) -> None:
        super().__init__(shapes, prior_precision, temperature)
        self.layers = by_layer(self.shapes)
        if [name for names in self.layers.values() for name in names] != list(self.shapes):
            raise ValueError("the parameters of a layer must stand together")
        self.layer_sizes = [sum(self.shapes[n].numel() for n in names) for names in self.layers.values()]
        for i, n in enumerate(self.layer_sizes):
            self.register_buffer(f"h{i}", torch.zeros(n, n))
        self._eigen: list[tuple[Tensor, Tensor] | None] = [None] * len(self.layer_sizes)

    def block(self, i: int) -> Tensor:
        return self.get_buffer(f"h{i}")

    def reset(self, value: float | Sequence[float]) -> None:
        sizes = torch.tensor(self.sizes, device=self.prior.device)
        flat = self.prior.new_tensor(self._each(value)).repeat_interleave(sizes)
        for i, part in enumerate(flat.split(self.layer_sizes)):
            self.block(i).copy_(torch.diag(part))
        self._forget()

    def update(self, keep: float, gain: float | Tensor, curvature: Mapping[str, Tensor]) -> None:
        for i, layer in enumerate(self.layers):
            self.block(i).mul_(keep).add_(curvature[layer] * gain)
        self._forget()

    def _forget(self) -> None:
        super()._forget()
        self._eigen = [None] * len(self.layer_sizes)

    def _factor(self, i: int) -> tuple[Tensor, Tensor]:
        """Return the precision of the i-th layer as eigenvalues and eigenvectors, kept until H or δ change."""
        found = self._eigen[i]
        if found is None:
            prior = self.flat_prior().split(self.layer_sizes)[i]
            values, vectors = eigh(self.block(i) + torch.diag(prior))
            found = self._eigen[i] = values.clamp_min(prior.min()), vectors
        values, vectors = found
        return values / self.temperature, vectors

    def scale_noise(self, eps: Tensor) -> Tensor:
        """Return eigenvectors diag(1 / √values) eigenvectorsᵀ eps: the same whichever eigenvectors a device finds."""
        parts = []
        for i, part in enumerate(eps.split(self.layer_sizes, dim=-1)):
            values, vectors = self._factor(i)
            parts.append((part @ vectors * values.rsqrt()) @ vectors.T)
        return torch.cat(parts, dim=-1)

    def whiten(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return eigenvectorsᵀ g / √values."""
        layer = next(iter(gradients)).rpartition(".")[0]
        values, vectors = self._factor(list(self.layers).index(layer))
        return (torch.cat([gradients[name] for name in self.layers[layer]], dim=-1) @ vectors) * values.rsqrt()

    def quadratic(self, delta: Tensor) -> Tensor:
        """Return the sum over layers of deltaᵀ block delta."""
        factors = (self._factor(i) for i in range(len(self.layer_sizes)))
        parts = zip(factors, delta.split(self.layer_sizes, dim=-1), strict=True)
        return torch.stack([((d @ vectors).square() * values).sum(-1) for (values, vectors), d in parts]).sum(0)

    def eigenvalues(self) -> dict[str, Tensor]:
        return {layer: torch.linalg.eigvalsh(self.block(i)).clamp_min(0) for i, layer in enumerate(self.layers)}

    def log_det(self) -> Tensor:
        """Return the log-determinant from the eigenvalues of each layer's precision: its parameters may differ in δ."""
        values = [self._factor(i)[0].double().log().sum() for i in range(len(self.layer_sizes))]
        return torch.stack(values).sum()
