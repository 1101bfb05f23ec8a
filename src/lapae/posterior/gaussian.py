"""A Gaussian over the weights, N(θ, precision⁻¹), as an object: sample, log density, entropy, save, load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from lapae.errors import RunError
from lapae.posterior.block import BlockPrecision
from lapae.posterior.kron import KronPrecision
from lapae.posterior.lowrank import LowRankPrecision
from lapae.posterior.precision import DiagonalPrecision, Precision
from lapae.runs import read_tensor_file, tensor_file
from lapae.runs.files import write_whole

FORMAT = "lapae posterior 1"
KRON_OPTIONS = ("transposed", "whole")
FORMS: dict[str, type[Precision]] = {
    "diagonal": DiagonalPrecision,
    "block": BlockPrecision,
    "kron": KronPrecision,
    "lowrank": LowRankPrecision,
}


class WeightPosterior:
    """q(θ) = N(mean, precision⁻¹).

    Args:
        mean: of the weights, {parameter name: tensor}.
        precision: over the same parameters.
    """

    def __init__(self, mean: Mapping[str, Tensor], precision: Precision) -> None:
        if {k: v.shape for k, v in mean.items()} != precision.shapes:
            raise ValueError("the mean and the precision are not over the same parameters")
        self.mean = {name: value.detach() for name, value in mean.items()}
        self.precision = precision

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Draw weights.

        Args:
            n: number of draws.
            generator: source of randomness; torch's own by default.

        Returns:
            {parameter name: (n, *shape)}.
        """
        like = self.precision.prior
        eps = torch.randn(n, self.precision.n_weights, generator=generator, device=like.device, dtype=like.dtype)
        noise = self.precision.split(self.precision.scale_noise(eps))
        return {name: self.mean[name] + noise[name] for name in self.mean}

    def log_prob(self, params: Mapping[str, Tensor]) -> Tensor:
        """Return the log density at weights {name: *shape}."""
        delta = self.precision.join(params) - self.precision.join(self.mean)
        n = self.precision.n_weights
        return 0.5 * (self.log_det() - self.precision.quadratic(delta).double() - n * math.log(2 * math.pi))

    def log_det(self) -> Tensor:
        """Return the log-determinant of the precision."""
        return self.precision.log_det()

    def entropy(self) -> Tensor:
        """Return ½ (P (1 + log 2π) - log det precision)."""
        return 0.5 * (self.precision.n_weights * (1 + math.log(2 * math.pi)) - self.log_det())

    def save(self, path: str | Path) -> None:
        """Write mean and precision into one safetensors file, whole or not at all."""
        form = next(name for name, cls in FORMS.items() if type(self.precision) is cls)
        tensors = {f"mean.{k}": v for k, v in self.mean.items()}
        tensors |= {f"precision.{k}": v for k, v in self.precision.state_dict().items()}
        about = {
            "format": FORMAT,
            "form": form,
            "temperature": self.precision.temperature,
            "names": list(self.mean),  # in their order: tensor files sort by name
            **{key: sorted(getattr(self.precision, key, ())) for key in KRON_OPTIONS},
        }
        write_whole(Path(path), tensor_file(tensors, about))

    @classmethod
    def load(cls, path: str | Path) -> WeightPosterior:
        """Read what `save` wrote."""
        tensors, about = read_tensor_file(Path(path))
        if about.get("format") != FORMAT:
            raise RunError(f"{path} is not a posterior: expected format {FORMAT!r}")
        mean = {name: tensors[f"mean.{name}"] for name in about["names"]}
        shapes = {name: value.shape for name, value in mean.items()}
        options = {key: frozenset(about[key]) for key in KRON_OPTIONS} if about["form"] == "kron" else {}
        precision = FORMS[about["form"]](shapes, 1.0, about["temperature"], **options)
        precision.to(tensors["precision.prior"].dtype)
        precision.load_state_dict(
            {k.removeprefix("precision."): v for k, v in tensors.items() if k.startswith("precision.")}
        )
        return cls(mean, precision)
