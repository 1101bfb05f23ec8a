"""Kronecker factors per weight: H = G ⊗ A / n, sampled through the eigenvectors of both factors.

With G = U diag(g) Uᵀ and A = V diag(a) Vᵀ, the precision G ⊗ A / n + δ I has eigenvectors U ⊗ V and eigenvalues
g_i a_j / n + δ: exact, without damping heuristics (Ritter et al. 2018; Daxberger et al. 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lapae.curvature import Kronecker
from lapae.errors import ConfigError
from lapae.posterior.precision import Precision, eigh


class KronPrecision(Precision):
    """Factors as eigenvalues and eigenvectors are refreshed on demand, after an update."""

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        prior_precision: float,
        temperature: float = 1.0,
        transposed: frozenset[str] = frozenset(),
        whole: frozenset[str] = frozenset(),
    ) -> None:
        """`transposed` names weights that are (in, out, …): those of transposed convolutions.

        `whole` names parameters that are no matrix, whatever their shape, besides biases: those of a normalisation.
        """
        super().__init__(shapes, prior_precision, temperature)
        self.transposed, self.whole = transposed, whole
        for i, (name, shape) in enumerate(self.shapes.items()):
            rows, columns = self._matrix_shape(name, shape)
            self.register_buffer(f"g{i}", torch.zeros(rows, rows))
            if self._is_matrix(name):
                self.register_buffer(f"a{i}", torch.zeros(columns, columns))
                self.register_buffer(f"n{i}", torch.zeros(()))
        self._eigen: list[tuple[Tensor, Tensor | None, Tensor]] | None = None

    def _is_matrix(self, name: str) -> bool:
        """Whether a parameter has two factors; else its block is one matrix."""
        return len(self.shapes[name]) > 1 and name not in self.whole

    def _matrix_shape(self, name: str, shape: torch.Size) -> tuple[int, int]:
        """(out, in · taps) of a weight, (n, 1) of a bias."""
        if not self._is_matrix(name):
            return shape.numel(), 1
        out = shape[1] if name in self.transposed else shape[0]
        return out, shape.numel() // out

    def reset(self, values: float | Sequence[float]) -> None:
        for i, (name, value) in enumerate(zip(self.shapes, self._each(values), strict=True)):
            self.get_buffer(f"g{i}").zero_().diagonal().fill_(value)
            if self._is_matrix(name):
                self.get_buffer(f"a{i}").zero_().diagonal().fill_(1.0 if value else 0.0)
                self.get_buffer(f"n{i}").fill_(1.0 if value else 0.0)
        self._eigen = None

    def update(self, keep: float, gain: float | Tensor, curvature: Mapping[str, Kronecker]) -> None:
        """The output factor carries the scale; the input factor is a running mean with the same memory."""
        for i, name in enumerate(self.shapes):
            new = curvature[name]
            if (new.a is not None) != self._is_matrix(name):
                raise ConfigError(
                    f"parameter {name!r} is used in other ways than as the weight of its layer, and has no Kronecker "
                    "factors: take another hessian than kfac"
                )
            self.get_buffer(f"g{i}").mul_(keep).add_(new.g * gain)
            if new.a is not None:
                self.get_buffer(f"a{i}").mul_(keep).add_(new.a * gain)
                self.get_buffer(f"n{i}").mul_(keep).add_(new.n * gain)
        self._eigen = None

    def _forget(self) -> None:
        super()._forget()
        self._eigen = None

    def _factors(self) -> list[tuple[Tensor, Tensor | None, Tensor]]:
        """(U, V, eigenvalues (out, in) of H) of each parameter."""
        if self._eigen is None:
            self._eigen = []
            for i, name in enumerate(self.shapes):
                g, u = eigh(self.get_buffer(f"g{i}"))
                if not self._is_matrix(name):
                    self._eigen.append((u, None, g.clamp_min(0)[:, None]))
                    continue
                a, v = eigh(self.get_buffer(f"a{i}") / self.get_buffer(f"n{i}").clamp_min(1e-30))
                self._eigen.append((u, v, torch.outer(g.clamp_min(0), a.clamp_min(0))))
        return self._eigen

    def _to_matrix(self, i: int, part: Tensor) -> Tensor:
        """(…, n) of a parameter -> (…, out, in)."""
        name, shape = list(self.shapes.items())[i]
        out, columns = self._matrix_shape(name, shape)
        if name in self.transposed:
            return part.reshape(*part.shape[:-1], shape[0], out, -1).transpose(-3, -2).reshape(
                *part.shape[:-1], out, columns
            )  # fmt: skip
        return part.reshape(*part.shape[:-1], out, columns)

    def _from_matrix(self, i: int, matrix: Tensor) -> Tensor:
        """(…, out, in) -> (…, n)."""
        name, shape = list(self.shapes.items())[i]
        if name in self.transposed:
            matrix = matrix.reshape(*matrix.shape[:-1], shape[0], -1).transpose(-3, -2)
            return matrix.flatten(-3)
        return matrix.flatten(-2)

    def _rotate(self, matrix: Tensor, u: Tensor, v: Tensor | None) -> Tensor:
        """U M Vᵀ."""
        matrix = u @ matrix
        return matrix if v is None else matrix @ v.T

    def scale_noise(self, eps: Tensor) -> Tensor:
        """U (Uᵀ eps V / √values) Vᵀ: the same whichever eigenvectors a device finds."""
        parts = []
        for i, part in enumerate(eps.split(self.sizes, dim=-1)):
            u, v, values = self._factors()[i]
            precision = (values + self.prior[i]) / self.temperature
            rotated = self._rotate(self._to_matrix(i, part), u.T, None if v is None else v.T) * precision.rsqrt()
            parts.append(self._from_matrix(i, self._rotate(rotated, u, v)))
        return torch.cat(parts, dim=-1)

    def whiten(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Uᵀ g V / √values."""
        names = list(self.shapes)
        parts = []
        for name, g in gradients.items():
            i = names.index(name)
            u, v, values = self._factors()[i]
            rotated = self._rotate(self._to_matrix(i, g), u.T, None if v is None else v.T)
            parts.append((rotated * ((values + self.prior[i]) / self.temperature).rsqrt()).flatten(-2))
        return torch.cat(parts, dim=-1)

    def quadratic(self, delta: Tensor) -> Tensor:
        """Σ values (Uᵀ delta V)²."""
        total = []
        for i, part in enumerate(delta.split(self.sizes, dim=-1)):
            u, v, values = self._factors()[i]
            precision = (values + self.prior[i]) / self.temperature
            rotated = self._rotate(self._to_matrix(i, part), u.T, None if v is None else v.T)
            total.append((rotated.square() * precision).sum((-2, -1)))
        return torch.stack(total).sum(0)

    def eigenvalues(self) -> dict[str, Tensor]:
        """Products of the factors' eigenvalues, by parameter."""
        return {name: self._factors()[i][2].reshape(-1) for i, name in enumerate(self.shapes)}

    def prior_of(self, name: str) -> Tensor:
        return self.prior[list(self.shapes).index(name)]
