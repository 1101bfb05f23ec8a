"""Completion: hide a part of samples that are known, complete it, and measure the error against the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from lapae.data import Data
from lapae.data.progress import progress as progress_bar
from lapae.impute import choose_imputer
from lapae.impute.chains import Imputation, impute
from lapae.model import Model
from lapae.runs.results import Table
from lapae_paper.tasks.base import tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MaskName = Literal["upper", "lower", "left", "right", "random", "all", "none"]
MASKS: tuple[MaskName, ...] = ("upper", "lower", "left", "right", "random", "all", "none")


def mask(which: MaskName, shape: tuple[int, ...], *, n: int = 1, seed: int = 0, missing: float = 0.5) -> Tensor:
    """Return what is observed: (n, *shape) boolean.

    Args:
        which: what is hidden: the upper, lower, left or right half, "random" values, "all" or "none".
        shape: shape of a sample.
        n: number of masks; random ones differ.
        seed: seed of random masks.
        missing: share of values that "random" hides.
    """
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


TITLES = {
    "mse_missing": "mean squared error of a missing value",
    "error_missing": "squared error of the missing part",
    "error_missing_samples": "squared error of the missing part, single samples",
    "error_whole": "squared error of the whole reconstruction",
    "error_whole_samples": "squared error of the whole reconstruction, single samples",
    "missing": "share of values that were missing",
    "mode_distance": "distance between two modes, per value",
}


@dataclass(frozen=True)
class CompletionResult:
    """Errors of imputed values against the truth."""

    mse_missing: float
    """Mean squared error of a missing value, for the mean over modes; 0 if nothing is missing."""
    error_missing: float
    """Squared error of the mean summed over the missing values of a sample, a mean over samples."""
    error_missing_samples: float
    """Like `error_missing`, of single completions: a mean over modes."""
    error_whole: float
    """Squared error of the mean reconstruction of the whole sample, observed part included (the paper's "MSE")."""
    error_whole_samples: float
    """Like `error_whole`, of single reconstructions (minus the paper's "log p(x)")."""
    missing: float
    """Share of values that were missing."""
    mode_distance: float
    """Root mean square distance between two modes, over the missing values: 0 if all modes agree."""
    x: Tensor
    """(N, *shape): the truth."""
    observed: Tensor
    """(N, *shape) boolean."""
    imputation: Imputation

    def to_dict(self) -> dict[str, Any]:
        sizes = {"n_data": len(self.x), "modes": len(self.imputation.samples)}
        return {name: getattr(self, name) for name in TITLES} | sizes

    def table(self) -> Table:
        """Return the errors with readable titles."""
        found = {TITLES.get(name, name.replace("_", " ")): value for name, value in self.to_dict().items()}
        return Table(("", "value"), list(found.items()))

    def figures(self) -> dict[str, Figure]:
        """Draw the modes of a few samples side by side, if they are images."""
        from lapae_paper.tasks.figures import imputed_images

        if self.x.ndim != 4:
            return {}
        return {"completion_modes": imputed_images(self.x, self.observed, self.imputation)}


def judge(x: Tensor, observed: Tensor, found: Imputation) -> CompletionResult:
    """Measure the errors of completions of x (N, *shape), of which the network saw what is `observed`."""
    known = ~x.isnan()
    if not known.any():
        raise ValueError("x is the truth that imputed values are measured against: it has no value at all")
    observed = observed.expand_as(x) & known
    hidden = ~observed & known

    def error(values: Tensor, where: Tensor | None = None) -> float:
        """Return the squared error of values (..., N, *shape), summed over features and averaged over the rest."""
        squares = (values - x).square().nan_to_num()
        squares = squares if where is None else squares * where
        return float(squares.double().sum() / (squares.numel() / x[0].numel()))

    of_mean = error(found.mean, hidden)
    n_missing = float(hidden.sum())
    spread = found.var[hidden].double().sum() if n_missing else torch.zeros(())
    return CompletionResult(
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
class CompletionOptions:
    """Completion of samples with a part hidden."""

    mask: MaskName | None = None
    """What is hidden: upper, lower, left or right half, random values, all or none; default: the upper half of
    an image and random values of a table."""
    missing: float = 0.5
    """Share of values that the mask "random" hides."""
    modes: int = 5
    """Number of networks that explore."""
    average: int = 5
    """Networks averaged within each mode; 0 is plain iteration."""
    steps: int = 1
    """Encodings and decodings of the exploring networks."""
    shared_noise: bool = False
    """Whether all modes start from the same noise, as in the authors' code."""
    limit: int | None = 1000
    """Number of test samples, at most."""
    seed: int = 0
    """Seed of noise, draws and subset."""


def hidden_test_data(model: Model, data: Data, options: Any) -> tuple[np.ndarray, Tensor, Tensor]:
    """Return indices, truth and mask of the test samples that a task hides a part of."""
    index = data.held_out.some(options.limit, options.seed)
    x = tensor(model, data.held_out, index)
    which = options.mask or ("upper" if x.ndim > 2 else "random")
    return index, x, mask(which, tuple(x.shape[1:]), n=len(x), seed=options.seed, missing=options.missing)


def evaluate(model: Model, data: Data, options: CompletionOptions) -> CompletionResult:
    _, x, observed = hidden_test_data(model, data, options)
    return judge(x, observed, completed(model, x, observed, options))


def completed(model: Model, x: Tensor, observed: Tensor, options: CompletionOptions) -> Imputation:
    """Complete what is not observed of held-out samples x (N, *shape): as the model imputes tables, or else by the
    paper's procedure."""
    x = torch.where(observed, x, torch.nan)
    if model.rows is None or choose_imputer(model.method, model.space, model.rows) != "neighbours":
        how = {name: getattr(options, name) for name in ("modes", "average", "steps", "seed", "shared_noise")}
        with progress_bar("completion", len(x) * options.average) as advance:
            return impute(model.method, x, value_range=model.space.value_range, progress=advance, **how)
    guess = model.complete(x, held=True).x_mean
    samples = model.completions(x, options.modes, options.seed, held=True)
    var = samples.var(0) if len(samples) > 1 else torch.zeros_like(guess)
    return Imputation(samples, torch.where(x.isnan(), guess, x), var, samples)
