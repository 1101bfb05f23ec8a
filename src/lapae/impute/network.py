"""Missing values from the network alone: in one pass if it was trained with hidden values, otherwise by iteration.

Completions vary as much as the true values: each uses a network of its own, with noise that networks do not explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lapae.calibrate.calibration import Calibration
from lapae.impute.chains import impute
from lapae.impute.imputer import COPIES, Imputer, ImputerRows, Trained, fit_hidden
from lapae.methods import Method
from lapae.networks.missing import Observe
from lapae.predict.mc import draw_seeds, evaluating, n_distinct
from lapae.predict.prediction import Prediction
from lapae.predict.statistics import expected

STEPS = 5
"""Number of encodings and decodings of a chain, after which the missing values agree with the observed ones."""
CHAINS, AVERAGE = 5, 5
"""Number of chains for a best guess, and of networks averaged at the end of each."""


def is_masked(method: Method) -> bool:
    """Whether the network was trained with hidden values."""
    return any(isinstance(module, Observe) for module in method.modules())


@dataclass(frozen=True)
class NetworkImputer(Imputer):
    """Missing values as expected by a network that was trained with hidden values."""

    @classmethod
    def fit(cls, trained: Trained, rows: ImputerRows, calibration: Calibration) -> Self:
        deviation, upper = fit_hidden(lambda x: cls.expected(trained, x), rows, COPIES, table=True)
        return cls(deviation, None, None, upper)

    def guess(
        self,
        trained: Trained,
        x: Tensor,
        *,
        held: bool = False,
        whole: Tensor | None = None,
        shape: bool = False,
        at: Tensor | None = None,
    ) -> Prediction:
        return self.expected(trained, x)

    def draw(self, trained: Trained, x: Tensor, n: int, seed: int, *, held: bool = False) -> Tensor:
        missing = x.isnan()
        found = self.expected(trained, x, seed)
        center = torch.where(missing, found.x_mean, x)
        assert self.deviation is not None
        deviation = self.deviation(found, x)
        spread = self.networks(trained, x, n, seed).to(center.dtype) - center
        spread = torch.where(missing, spread - spread.mean(0), 0.0)
        # Networks vary no more than the calibrated deviation allows; noise adds the rest.
        size = spread.square().mean(0).sqrt()
        spread = spread * (deviation / size.clamp_min(1e-12)).clamp_max(1.0)
        left = (deviation.square() - spread.square().mean(0)).clamp_min(0.0).sqrt()
        noise = torch.randn(spread.shape, generator=torch.Generator().manual_seed(seed), dtype=center.dtype)
        return center + torch.where(missing, spread + left * noise, 0.0)

    @classmethod
    def expected(cls, trained: Trained, x: Tensor, seed: int | None = None) -> Prediction:
        """Predict x (n, *shape); `seed` is that of the networks of a chain, default: the model's."""
        return trained.predict(x)

    @classmethod
    def networks(cls, trained: Trained, x: Tensor, n: int, seed: int) -> Tensor:
        """Return the outputs of n networks for x: (n, N, *shape)."""
        method = trained.method
        weight, seeds = next(method.parameters()), draw_seeds(seed, n_distinct(method, n))
        with evaluating(method, len(seeds) * len(x)):
            draws = method.draw(seeds)
            output = draws.decode(draws.encode(x.to(weight.device, weight.dtype)[None]))
            made = expected(method.likelihood, output).cpu()
        return made[torch.arange(n) % len(made)]


@dataclass(frozen=True)
class ChainImputer(NetworkImputer):
    """Missing values from a network that was trained without hidden values: its own reconstruction replaces missing
    values until the two agree (the paper's procedure, `lapae.impute.chains`)."""

    @classmethod
    def expected(cls, trained: Trained, x: Tensor, seed: int | None = None) -> Prediction:
        if not x.isnan().any():
            return trained.predict(x)
        filled = impute(
            trained.method,
            x,
            modes=CHAINS,
            average=AVERAGE,
            steps=STEPS,
            seed=trained.seed if seed is None else seed,
            value_range=trained.space.value_range,
        ).mean
        found = trained.predict(filled)
        return found.replace(x_mean=torch.where(x.isnan(), filled, found.x_mean))

    @classmethod
    def networks(cls, trained: Trained, x: Tensor, n: int, seed: int) -> Tensor:
        how = {"modes": n, "average": 0, "steps": STEPS, "seed": seed, "value_range": trained.space.value_range}
        return impute(trained.method, x, **how).samples  # pyright: ignore[reportArgumentType]
