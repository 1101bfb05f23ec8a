"""Errors of held-out samples, from which the noise is fitted and trained weights are compared with others.

`data` are batches of samples (B, *shape), this process's part of them, or a function that returns them; `device` is
where the method is. A method is set to evaluation mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cached_property

import torch
from torch import Tensor

from lapae.data import Batches
from lapae.methods import Draws, Method
from lapae.networks.threads import few_threads
from lapae.train.distributed import stand_in, total

SHRINK = 5.0
"""Number of samples with which the noise of a feature is shrunk towards that of all features."""
N_DRAWS = 10
"""Number of networks drawn for the error under sampled networks."""
NOISE_FLOOR = 1e-3
"""Smallest scale of the noise as a share of the root mean square residual of all features."""
EM_ITERATIONS, EM_TOLERANCE = 50, 1e-3
"""Largest number of iterations of expectation maximisation, and the relative change of the scale that ends them."""


@torch.no_grad()
def residuals(method: Method, x: Tensor, draws: Draws | None = None) -> Tensor:
    """Return the residuals (S, B, *shape) of samples x (B, *shape) by S networks, by default the point estimate; NaN
    for missing values."""
    draws = method.draw_mean() if draws is None else draws
    output = draws.decode(draws.encode(x[None])).loc
    return x - method.likelihood.mean(output.flatten(0, 1)).unflatten(0, output.shape[:2])


@torch.no_grad()
def set_noise(
    method: Method, data: Callable[[], Iterable[Tensor]], device: torch.device, *, per_feature: bool
) -> tuple[float, float]:
    """Fit the noise of a method to held-out samples by maximum likelihood.

    That is the mean squared residual, with the weights of the likelihood. If these depend on the scale, expectation
    maximisation makes several passes over the samples.

    Noise that is not learned is left as it is. With `per_feature`, there is one number for each feature if `sigma` has
    this shape, else one for all.

    Returns:
        The sum of the squared residuals over all processes, and the number of observed values.
    """
    method.eval()
    likelihood, sigma = method.likelihood, method.sigma

    def weighted(x: Tensor, *scales: Tensor) -> Tensor:
        """Return squared residuals and, for each of k scales, weighted squares and weights: (1 + 2 k, B, *shape)."""
        square = residuals(method, x).square()
        weights = [likelihood.noise_weights(square / scale.to(square.dtype)) for scale in scales]
        return torch.cat([square, *(part for w in weights for part in (w * square, w))])

    def scaled(sums: Tensor, scales: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the squared scale of all values and, if wanted, of each feature."""
        pooled = (sums[0].sum() / sums[1].sum().clamp_min(1e-12)).maximum(least)
        if len(scales) == 1:
            return (pooled,)
        return pooled, ((sums[2] + SHRINK * pooled) / (sums[3] + SHRINK)).maximum(least)

    sums = _sums(data(), device, lambda x: residuals(method, x).square())
    if sums is None:
        return 0.0, 0.0
    square, count = sums
    found = float(square.sum()), float(count.sum())
    if sigma is None:
        return found
    pooled = (square.sum() / count.sum().clamp_min(1)).clamp_min(1e-12)
    least = NOISE_FLOOR**2 * pooled
    own = per_feature and sigma.shape == square.shape
    scales = scaled(torch.stack([square, count] * 2), (pooled,) * (1 + own))
    if likelihood.reweights:  # start from the estimate of the epoch before
        now = sigma.double().square().maximum(least)
        scales = (now.mean(), now)[: 1 + own]
    for _ in range(EM_ITERATIONS if likelihood.reweights else 0):
        before, sums = scales, _sums(data(), device, lambda x, now=scales: weighted(x, *now))
        assert sums is not None
        scales = scaled(sums[1:-1], before)
        if all(bool(((a / b).log().abs() < 2 * EM_TOLERANCE).all()) for a, b in zip(scales, before, strict=True)):
            break
    sigma.copy_(scales[-1].sqrt().expand(sigma.shape))
    return found


@torch.no_grad()
def errors(method: Method, data: Iterable[Tensor], device: torch.device, draws: Draws | None = None) -> Tensor:
    """Return the squared error of each held-out sample, (n,) in 64 bits, summed over features.

    It is an average over the networks of `draws`, by default the point estimate alone.
    """
    method.eval()
    parts = [torch.empty(0, dtype=torch.float64)]
    for x in data:
        if len(x):
            parts.append(residuals(method, x.to(device), draws).square().flatten(2).nansum(2).mean(0).double().cpu())
    return torch.cat(parts)


def judge(method: Method, data: Callable[[], Iterable[Tensor]], device: torch.device) -> Callable[[], Tensor]:
    """Return a function that computes losses for the comparison of two sets of weights of a method.

    These are squared errors, unless the likelihood gives outliers less weight: then they are its negative logarithm,
    with the scale that is fitted to the present weights.

    Returns:
        A function that returns the losses (n,) of the samples under the weights that `method` has when it is called.
    """
    if not method.likelihood.reweights:
        return lambda: errors(method, data(), device)
    set_noise(method, data, device, per_feature=False)
    likelihood = method.likelihood
    if method.sigma is not None:
        likelihood = likelihood.with_noise(method.sigma.clone())

    @torch.no_grad()
    def losses() -> Tensor:
        method.eval()
        draws, parts = method.draw_mean(), [torch.empty(0, dtype=torch.float64)]
        for x in data():
            if len(x):
                output = draws.decode(draws.encode(x.to(device)[None])).loc[0]
                parts.append(-likelihood.log_prob(output, x.to(device)).double().cpu())
        return torch.cat(parts)

    return losses


@torch.no_grad()
def evaluate(method: Method, batches: Batches) -> dict[str, float]:
    """Return the squared error per sample of a test set, summed over its values, in model space, as the paper does.

    Returns:
        "squared_error", that of the point estimate, and for a stochastic method "squared_error_sampled", the mean over
        `N_DRAWS` sampled networks (the paper's "-log p").
    """
    with few_threads(method, batches.batch_size * N_DRAWS):
        found = {"squared_error": mean(errors(method, batches.epoch(0), batches.device))}
        if method.stochastic:
            draws = method.draw(range(N_DRAWS))
            found["squared_error_sampled"] = mean(errors(method, batches.epoch(0), batches.device, draws))
    return found


def mean(values: Tensor) -> float:
    """Return the mean of values (n,) over all processes."""
    whole, n = total(values.new_tensor([values.sum(), len(values)])).tolist()
    return whole / max(n, 1)


@torch.no_grad()
def variance(data: Iterable[Tensor], n_data: int, device: torch.device) -> float:
    """Return the squared error per sample of the best constant, the mean of the samples, without missing values.

    `n_data` is the number of samples over all processes.
    """
    sums = _sums(data, device, lambda x: torch.stack([x.double(), x.double().square()]))
    if sums is None:
        return 0.0
    first, second, count = sums
    return float((second - first.square() / count.clamp_min(1)).clamp_min(0).sum()) / n_data


def _sums(data: Iterable[Tensor], device: torch.device, terms: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Sum terms over the samples of all processes: `terms` computes k of them, (k, B, *shape), NaN for missing values.

    Returns:
        Sums of the terms and the number of observed values, (k + 1, *shape) in 64 bits; None without samples.
    """
    sums: Tensor | None = None
    for part in data:
        found = terms(stand_in(part).to(device))
        known = ~found[0].isnan() & bool(len(part))
        every = torch.stack([*torch.where(known, found, 0.0).sum(1), known.to(found.dtype).sum(0)]).double()
        sums = every if sums is None else sums + every
    return None if sums is None else total(sums)


class HeldOut:
    """Samples on which training is evaluated: the validation set or, without one, the training set.

    A call returns their batches, in the same order each time.
    """

    def __init__(self, batches: Batches, device: torch.device) -> None:
        self.batches, self.device = batches, device

    def __call__(self) -> Iterable[Tensor]:
        return self.batches.epoch(0)

    @cached_property
    def variance(self) -> float:
        """Squared error per sample of the mean of the samples."""
        return variance(self(), self.batches.n_data, self.device)

    def set_noise(self, method: Method, *, per_feature: bool) -> tuple[float, float]:
        """Fit the noise of `method` to these samples; see `set_noise`."""
        return set_noise(method, self, self.device, per_feature=per_feature)

    def error(self, method: Method) -> float:
        """Return the squared error per sample of the point estimate, over all processes."""
        return mean(errors(method, self(), self.device))

    def explained(self, error: float) -> float | None:
        """Return the share of the variance that a squared error per sample leaves explained; None without variance."""
        return 1 - error / self.variance if self.variance > 0 else None

    def measure(self, method: Method) -> dict[str, float]:
        """Fit one noise for all features, and return "error", per value, and "explained", the share of the variance."""
        square, n_values = self.set_noise(method, per_feature=False)
        explained = self.explained(square / self.batches.n_data)
        return {"error": square / max(n_values, 1), **({} if explained is None else {"explained": explained})}


def is_better(after: Tensor, before: Tensor) -> bool:
    """Return whether the losses (n,) of samples, this process's part of them, have fallen by more than one standard
    error of the paired difference."""
    gain = before - after
    first, second, n = total(gain.new_tensor([gain.sum(), gain.square().sum(), len(gain)])).tolist()
    if n < 2:  # over all processes: a single one may have no samples
        return True
    variance = max(second / n - (first / n) ** 2, 0.0)
    return first / n > math.sqrt(variance / n)
