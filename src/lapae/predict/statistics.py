"""Running statistics over draws: chunks are merged by their means and squared deviations (Chan et al. 1979), and
densities by log-sum-exp, so that memory does not grow with the number of draws.

Shapes: S draws, B samples, K latent dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lapae.curvature.likelihoods import Likelihood
from lapae.methods.base import Draws, Output
from lapae.methods.output_variance import log_prob
from lapae.predict.prediction import Prediction


class Moments:
    """Running mean and sum of squared deviations (or outer products of deviations) over draws."""

    def __init__(self, outer: bool = False) -> None:
        self.n = 0
        self.outer = outer

    def add(self, values: Tensor) -> None:
        """Add a chunk (S, B, ...)."""
        n, mean = len(values), values.mean(0)
        spread = self._product(values - mean).sum(0)
        if self.n == 0:
            self.n, self.mean, self.spread = n, mean, spread
            return
        shift = mean - self.mean
        total = self.n + n
        self.mean += shift * (n / total)
        self.spread += spread.add_(self._product(shift), alpha=self.n * n / total)
        self.n = total

    def _product(self, deviation: Tensor) -> Tensor:
        """Return squares or outer products of a tensor, in place if possible: fresh memory costs more than the sum."""
        return deviation[..., :, None] * deviation[..., None, :] if self.outer else deviation.square_()

    @property
    def variance(self) -> Tensor:
        """Return the unbiased variance; zero for a single draw."""
        return self.spread / max(self.n - 1, 1)


class Statistics:
    """All requested statistics of one batch."""

    def __init__(self, likelihood: Likelihood, x: Tensor, want: frozenset[str]) -> None:
        self.likelihood, self.x, self.want = likelihood, x, want
        self.codes = Moments(outer="covariance" in want)
        self.outputs = Moments()
        self.noise = x.new_zeros(())
        self.learned = False
        self.log_sum = x.new_full((len(x),), -math.inf)
        self.error = x.new_zeros(len(x))
        self.n = 0

    def add(self, draws: Draws, n_draws: int) -> None:
        """Run the networks of a chunk and add their outputs."""
        z = _check(draws.encode(self.x[None]), n_draws, "codes")
        self.n += n_draws
        if {"codes", "covariance"} & self.want:
            self.codes.add(z)
        if not {"outputs", "density", "error"} & self.want:
            return
        output = draws.decode(z)
        _check(output.loc, n_draws, "outputs")
        if "density" in self.want:
            terms = log_prob(self.likelihood, output, self.x)
            self.log_sum = torch.logaddexp(self.log_sum, terms.logsumexp(0))
        if {"outputs", "error"} & self.want:
            mean = expected(self.likelihood, output)
            if "error" in self.want:
                self.error += (mean - self.x).square().flatten(2).nansum(2).sum(0)  # of what is observed
            if "outputs" in self.want:
                self.outputs.add(mean)
                self.learned = output.var is not None
                self.noise = self.noise + noise_variance(self.likelihood, output).sum(0)

    def finish(self, center: Draws | None = None) -> Prediction:
        """Return the requested statistics on the CPU, with outputs of the network `center` instead of means over
        draws."""
        if center is not None:
            z = center.encode(self.x[None])
            self.codes.mean = z[0]
            if self.outputs.n:
                self.outputs.mean = expected(self.likelihood, center.decode(z))[0]
        out: dict[str, Tensor] = {}
        if self.codes.n:
            variance = self.codes.variance
            if "covariance" in self.want:
                out["z_cov"] = variance
                variance = variance.diagonal(dim1=-2, dim2=-1)
            if "codes" in self.want:
                out |= {"z_mean": self.codes.mean, "z_var": variance}
        if "outputs" in self.want:
            out |= {"x_mean": self.outputs.mean, "x_var": self.outputs.variance, "x_noise": self.noise / self.n}
        if "density" in self.want:
            out["log_likelihood"] = self.log_sum - math.log(self.n)
        if "error" in self.want:
            out["squared_error"] = self.error / self.n
            if "outputs" in self.want:
                out["squared_error_of_mean"] = (self.outputs.mean - self.x).square().flatten(1).nansum(1)
        return Prediction(self.n, {name: value.cpu() for name, value in out.items()}, self.learned)


def expected(likelihood: Likelihood, output: Output) -> Tensor:
    """Return the expected sample under each network: (S, B, *shape)."""
    return likelihood.mean(output.loc.flatten(0, 1)).unflatten(0, output.loc.shape[:2])


def noise_variance(likelihood: Likelihood, output: Output) -> Tensor:
    """Return the variance of the data given the network, learned or of the likelihood: (S, B, *shape)."""
    if output.var is not None:
        return output.var
    return likelihood.variance(output.loc.flatten(0, 1)).unflatten(0, output.loc.shape[:2])


def _check(values: Tensor, n_draws: int, what: str) -> Tensor:
    if len(values) != n_draws:
        raise ValueError(f"asked for {n_draws} draws and got {what} of shape {tuple(values.shape)}")
    return values
