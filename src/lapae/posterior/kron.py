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
    """H as Kronecker factors per weight, whose eigenvalues and eigenvectors are refreshed on demand.

    Args:
        shapes: of the parameters, by name.
        prior_precision: δ, one number for all parameters.
        temperature: T.
        transposed: names of weights that are (in, out, …): those of transposed convolutions.
        whole: names of parameters besides biases that are no matrix, whatever their shape: those of a normalisation.
    """

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        prior_precision: float,
        temperature: float = 1.0,
        transposed: frozenset[str] = frozenset(),
        whole: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(shapes, prior_precision, temperature)
        self.transposed, self.whole = transposed, whole
        for i, name in enumerate(self.shapes):
            rows, columns = self._matrix_shape(name)
            self.register_buffer(f"g{i}", torch.zeros(rows, rows))
            if self._is_matrix(name):
                self.register_buffer(f"a{i}", torch.zeros(columns, columns))
                self.register_buffer(f"n{i}", torch.zeros(()))
        self._eigen: list[tuple[Tensor, Tensor, Tensor]] | None = None

    def _is_matrix(self, name: str) -> bool:
        """Return whether a parameter has two factors; otherwise its block is one matrix."""
        return len(self.shapes[name]) > 1 and name not in self.whole

    def _matrix_shape(self, name: str) -> tuple[int, int]:
        """Return (out, in · taps) for a weight, (n, 1) for a bias."""
        shape = self.shapes[name]
        if not self._is_matrix(name):
            return shape.numel(), 1
        out = shape[1] if name in self.transposed else shape[0]
        return out, shape.numel() // out

    def reset(self, value: float | Sequence[float]) -> None:
        for i, (name, number) in enumerate(zip(self.shapes, self._each(value), strict=True)):
            self.get_buffer(f"g{i}").zero_().diagonal().fill_(number)
            if self._is_matrix(name):
                self.get_buffer(f"a{i}").zero_().diagonal().fill_(1.0 if number else 0.0)
                self.get_buffer(f"n{i}").fill_(1.0 if number else 0.0)
        self._eigen = None

    def update(self, keep: float, gain: float | Tensor, curvature: Mapping[str, Kronecker]) -> None:
        """Add to both factors: the output factor carries the scale, the input factor is a running mean."""
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

    def _factors(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return U, V and the eigenvalues (out, in) of H of each parameter; V is 1 if there is one factor."""
        if self._eigen is None:
            self._eigen = []
            for i, name in enumerate(self.shapes):
                g, u = eigh(self.get_buffer(f"g{i}"))
                a = v = torch.ones_like(g[:1, None])
                if self._is_matrix(name):
                    a, v = eigh(self.get_buffer(f"a{i}") / self.get_buffer(f"n{i}").clamp_min(1e-30))
                self._eigen.append((u, v, g.clamp_min(0)[:, None] * a.clamp_min(0)))
        return self._eigen

    def _rotated(self, i: int, part: Tensor, power: float = -0.5) -> Tensor:
        """Return Uᵀ M V precision^power, (…, out, in), with M the matrix that a part (…, n) of parameter i is."""
        name, lead = list(self.shapes)[i], part.shape[:-1]
        out, columns = self._matrix_shape(name)
        if name in self.transposed:
            part = part.reshape(*lead, -1, out, columns // self.shapes[name][0]).transpose(-3, -2)
        u, v, values = self._factors()[i]
        precision = (values + self.prior[i]) / self.temperature
        return u.T @ part.reshape(*lead, out, columns) @ v * precision**power

    def scale_noise(self, eps: Tensor) -> Tensor:
        """Return U (Uᵀ eps V / √values) Vᵀ: the same whichever eigenvectors a device finds."""
        parts = []
        for i, (name, part) in enumerate(zip(self.shapes, eps.split(self.sizes, dim=-1), strict=True)):
            u, v, _ = self._factors()[i]
            noise = u @ self._rotated(i, part) @ v.T
            if name in self.transposed:
                noise = noise.unflatten(-1, (self.shapes[name][0], -1)).transpose(-3, -2).flatten(-2)
            parts.append(noise.flatten(-2))
        return torch.cat(parts, dim=-1)

    def whiten(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return Uᵀ g V / √values."""
        names = list(self.shapes)
        return torch.cat([self._rotated(names.index(name), g).flatten(-2) for name, g in gradients.items()], dim=-1)

    def quadratic(self, delta: Tensor) -> Tensor:
        """Return Σ values (Uᵀ delta V)²."""
        parts = enumerate(delta.split(self.sizes, dim=-1))
        return torch.stack([self._rotated(i, part, 0.5).square().sum((-2, -1)) for i, part in parts]).sum(0)

    def eigenvalues(self) -> dict[str, Tensor]:
        """Return products of the factors' eigenvalues, by parameter."""
        return {name: self._factors()[i][2].reshape(-1) for i, name in enumerate(self.shapes)}
