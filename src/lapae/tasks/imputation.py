"""Missing data: fill with noise, then encode and decode with sampled networks while the observed part stays fixed.

The paper's procedure (appendix A) has two stages. The first explores: each of `modes` chains draws a network (one a
step) and replaces the missing values by its reconstruction. The second averages: `average` more networks reconstruct
every mode, and their mean is the sample. `average=0` is plain iteration (Rezende et al. 2014), with `steps` steps.

Observed values are True in `observed`; a missing value is False there, or NaN in x. Shapes: M modes, N data,
x and observed are (N, *shape) in the model's space, or observed is of the shape of a datum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from lapae.data.progress import progress as progress_bar
from lapae.errors import ConfigError
from lapae.methods.base import Draws, Method
from lapae.predict.mc import draw_seeds, evaluating
from lapae.predict.prediction import Progress
from lapae.predict.statistics import expected
from lapae.tasks.base import TrainedModel, subset, task, tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lapae.data import Data

MaskName = Literal["upper", "lower", "left", "right", "random", "all", "none"]
MASKS: tuple[MaskName, ...] = ("upper", "lower", "left", "right", "random", "all", "none")
NOISE = 0.15
"""Deviation of the filling noise as a share of the range of the data: the authors scale normal noise to that range,
and of a 28x28 image of it about 6.5 deviations fit in."""


@dataclass(frozen=True)
class Imputation:
    """Imputed data, the modes kept apart."""

    samples: Tensor
    """(M, N, *shape): one completed datum a mode."""
    mean: Tensor
    """(N, *shape): mean over modes."""
    var: Tensor
    """(N, *shape): variance over modes, unbiased; zero where observed."""
    within: Tensor
    """(N, *shape): variance over networks within a mode, a mean over modes; zero for plain iteration."""
    reconstructions: Tensor
    """(M, N, *shape): what the networks say, the observed part too (`samples` has the observed values there)."""


@dataclass(frozen=True)
class ImputationResult:
    """Errors of imputed values against the truth."""

    mse_missing: float
    """Mean squared error of a missing value: of the mean over modes. NaN-free: 0 where nothing is missing."""
    error_missing: float
    """Squared error of the mean summed over the missing values of a datum, a mean over data."""
    error_missing_samples: float
    """The same of single samples, a mean over modes."""
    error_whole: float
    """Squared error of the mean reconstruction of the whole datum, observed part included (the paper's "MSE")."""
    error_whole_samples: float
    """The same of single reconstructions (minus the paper's "log p(x)")."""
    missing: float
    """Share of values that were missing."""
    mode_distance: float
    """Root mean square distance between two modes, over the missing values: 0 where all modes agree."""
    x: Tensor
    """(N, *shape): the truth."""
    observed: Tensor
    """(N, *shape) boolean."""
    imputation: Imputation

    def to_dict(self) -> dict[str, Any]:
        """The numbers."""
        names = (
            *("mse_missing", "error_missing", "error_missing_samples", "error_whole", "error_whole_samples"),
            *("missing", "mode_distance"),
        )
        return {name: getattr(self, name) for name in names} | {
            "n_data": len(self.x),
            "modes": len(self.imputation.samples),
        }

    def figures(self) -> dict[str, Figure]:
        """The modes of a few data side by side, where data are images."""
        from lapae.tasks.figures import imputed_images

        if self.x.ndim != 4:
            return {}
        return {"imputation_modes": imputed_images(self.x, self.observed, self.imputation)}


def mask(which: MaskName, shape: tuple[int, ...], *, n: int = 1, seed: int = 0, missing: float = 0.5) -> Tensor:
    """What is observed, (n, *shape): everything but the upper (lower, left, right) half, but a share of random values
    (`missing`, drawn for each datum), but all of it ("all"), or everything ("none")."""
    if which not in MASKS:
        raise ValueError(f"unknown mask {which!r}: expected one of {', '.join(MASKS)}")
    observed = torch.ones(n, *shape, dtype=torch.bool)
    if which == "all":
        observed[:] = False
    elif which == "random":
        observed = torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed)) >= missing
    elif which != "none":
        horizontal = which in ("left", "right")
        if len(shape) < 2 and not horizontal:
            raise ValueError(f"the mask {which!r} needs images, got data of shape {shape}; use 'left' or 'random'")
        axis = observed.ndim - (1 if horizontal else 2)
        half = observed.shape[axis] // 2
        first = which in ("upper", "left")
        observed.narrow(axis, 0 if first else half, half if first else observed.shape[axis] - half).fill_(False)
    return observed


def impute(
    method: Method,
    x: Tensor,
    observed: Tensor | None = None,
    *,
    modes: int = 5,
    average: int = 5,
    steps: int = 1,
    seed: int = 0,
    value_range: tuple[float, float] = (0.0, 1.0),
    shared_noise: bool = False,
    start: Tensor | None = None,
    batch_size: int = 512,
    progress: Progress | None = None,
) -> Imputation:
    """Complete the missing values of x (N, *shape); those are NaN, or False in `observed`.

    Noise fills `value_range`, clipped to it; each mode has noise of its own unless `shared_noise` (as in the authors'
    code, where only the networks tell modes apart). `start` (M, N, *shape) fills in place of noise: other data, say,
    from where chains reach completions that differ more. `progress` is called with the number of data done.
    """
    if modes < 1 or average < 0 or steps < 1:
        raise ValueError(f"expected modes >= 1, average >= 0 and steps >= 1, got {modes}, {average} and {steps}")
    known = ~x.isnan()
    if observed is not None:
        if observed.dtype != torch.bool:
            raise TypeError(f"expected a boolean mask (True: observed), got {observed.dtype}")
        known = known & observed.expand_as(x)
    if x[known].isinf().any():
        raise ValueError("observed values must be finite, got infinities")
    x = torch.where(known, x, torch.zeros_like(x))
    device, seeds = next(method.parameters()).device, iter(draw_seeds(seed, modes * steps + average))
    if start is None:
        start = noise_like(x.expand(1 if shared_noise else modes, *x.shape), value_range, seed)
    elif start.shape != (modes, *x.shape) or not start.isfinite().all():
        raise ValueError(f"expected finite starts of shape {(modes, *x.shape)}, got {tuple(start.shape)}")
    start = start.to(x.dtype).expand(modes, *x.shape)
    batches = []
    for first in range(0, len(x), batch_size):
        part = slice(first, first + batch_size)
        batches.append(_Chain(x[part].to(device), known[part].to(device), start[:, part].to(device)))
    with evaluating(method):
        for _ in range(steps):
            draws = method.draw([next(seeds) for _ in range(modes)])
            for batch in batches:
                batch.explore(method, draws)
        for _ in range(average):
            draws = method.draw([next(seeds)])
            for batch in batches:
                batch.refine(method, draws)
                if progress:
                    progress(len(batch.x))
    return _collect(batches)


class _Chain:
    """The modes of one batch as they are refined."""

    def __init__(self, x: Tensor, known: Tensor, start: Tensor) -> None:
        self.x, self.known = x, known
        self.state = self._paste(start)
        self.raw = self.state
        self.n = 0
        self.total, self.squares = torch.zeros_like(self.state), torch.zeros_like(self.state)

    def explore(self, method: Method, draws: Draws) -> None:
        """One network a mode."""
        self.raw = _reconstruct(method, draws, self.state)
        self.state = self._paste(self.raw)

    def refine(self, method: Method, draws: Draws) -> None:
        """One network for all modes, averaged with the others; deviations are from the mode it starts from."""
        flat = _reconstruct(method, draws, self.state.flatten(0, 1)[None]).unflatten(1, self.state.shape[:2])[0]
        shift = flat - self.raw
        self.n += 1
        self.total += shift
        self.squares += shift.square()

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """Samples and reconstructions (M, B, *shape), and the variance within modes (B, *shape)."""
        raw = self.raw + self.total / max(self.n, 1)
        within = (self.squares - self.total.square() / max(self.n, 1)).clamp_min(0) / max(self.n - 1, 1)
        return self._paste(raw), raw, within.mean(0).masked_fill(self.known, 0)

    def _paste(self, values: Tensor) -> Tensor:
        return torch.where(self.known, self.x, values)


def _reconstruct(method: Method, draws: Draws, x: Tensor) -> Tensor:
    return expected(method.likelihood, draws.decode(draws.encode(x))).expand(len(x), *x.shape[1:])


def noise_like(x: Tensor, value_range: tuple[float, float], seed: int) -> Tensor:
    """Normal noise of the shape of x around the middle of a range, clipped to it; on the CPU."""
    low, high = value_range
    noise = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))
    return (0.5 * (low + high) + NOISE * (high - low) * noise).clamp_(low, high)


def _collect(batches: list[_Chain]) -> Imputation:
    def parts() -> Iterator[tuple[Tensor, ...]]:
        for batch in batches:
            yield tuple(part.cpu() for part in batch.finish())

    samples, raw, within = zip(*parts(), strict=True) if batches else ((), (), ())
    if not samples:
        raise ValueError("expected at least one datum to impute, got none")
    joined = torch.cat(samples, 1)
    known = torch.cat([batch.known.cpu() for batch in batches])
    var = joined.var(0) if len(joined) > 1 else torch.zeros_like(joined[0])
    # no rounding where observed
    mean, var = torch.where(known, joined[0], joined.mean(0)), var.masked_fill(known, 0)
    return Imputation(joined, mean, var, torch.cat(within), torch.cat(raw, 1))


def run(method: Method, x: Tensor, observed: Tensor, **options: Any) -> ImputationResult:
    """Hide what is not observed of x (N, *shape), impute it (`options` are those of `impute`), and measure the error.

    x is the truth: the values that the errors are measured against.
    """
    if x.isnan().any():
        raise ValueError("x is the truth that imputed values are measured against: it must have no NaN; use impute()")
    observed = observed.expand_as(x)
    found = impute(method, x, observed, **options)
    hidden = ~observed

    def error(values: Tensor, where: Tensor | None = None) -> float:
        """Squared error of values (..., N, *shape) summed over features, a mean over the rest."""
        squares = (values - x).square()
        squares = squares if where is None else squares * where
        return float(squares.double().sum() / (squares.numel() / x[0].numel()))

    of_mean = error(found.mean, hidden)
    n_missing = float(hidden.sum())
    spread = found.var[hidden].double().sum() if n_missing else torch.zeros(())
    return ImputationResult(
        mse_missing=of_mean * len(x) / max(n_missing, 1.0),
        error_missing=of_mean,
        error_missing_samples=error(found.samples, hidden),
        error_whole=error(found.reconstructions.mean(0)),
        error_whole_samples=error(found.reconstructions),
        missing=n_missing / x.numel(),
        # two independent modes differ by twice the variance on average
        mode_distance=float((2 * spread / max(n_missing, 1.0)).sqrt()),
        x=x,
        observed=observed,
        imputation=found,
    )


@dataclass(frozen=True)
class ImputationOptions:
    """Missing data."""

    mask: MaskName = "upper"
    """What is hidden: upper, lower, left or right half, random values, all or none."""
    missing: float = 0.5
    """Share of values that the mask "random" hides."""
    modes: int = 5
    """Networks that explore."""
    average: int = 5
    """Networks averaged within each mode; 0 is plain iteration."""
    steps: int = 1
    """Encodings and decodings of the exploring networks."""
    shared_noise: bool = False
    """Whether all modes start from the same noise, as in the authors' code."""
    limit: int | None = 1000
    """At most so many test data."""
    seed: int = 0
    """Seed of noise, draws and subset."""


def value_range(model: TrainedModel, data: Data, n: int = 1000) -> tuple[float, float]:
    """Range of the training data (of a part of them) in the model's space."""
    part = tensor(model, data.train, subset(data.train, n))
    known = part[~part.isnan()]
    if not known.numel():
        raise ConfigError("the training data have no values at all")
    return float(known.min()), float(known.max())


def hidden_test_data(model: TrainedModel, data: Data, options: Any) -> tuple[np.ndarray, Tensor, Tensor]:
    """Indices, truth and mask of the test data that a task hides a part of."""
    index = subset(data.test, options.limit, options.seed)
    x = tensor(model, data.test, index)
    return index, x, mask(options.mask, tuple(x.shape[1:]), n=len(x), seed=options.seed, missing=options.missing)


@task("imputation", ImputationOptions)
def _task(model: TrainedModel, data: Data, options: ImputationOptions) -> ImputationResult:
    _, x, observed = hidden_test_data(model, data, options)
    with progress_bar("imputation", len(x) * options.average) as advance:
        return run(
            model.method,
            x,
            observed,
            modes=options.modes,
            average=options.average,
            steps=options.steps,
            seed=options.seed,
            shared_noise=options.shared_noise,
            value_range=value_range(model, data),
            progress=advance,
        )
