"""Base of the online and the post-hoc Laplacian autoencoder: a network at its mean weights, and its precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from lapae import curvature
from lapae.config import HESSIANS
from lapae.config.fields import check
from lapae.config.methods import LaplaceOptions
from lapae.curvature import Call, Forward, call, record
from lapae.curvature.call import checked
from lapae.curvature.collect import factored
from lapae.curvature.dense import summed_gradients, walk_dense
from lapae.curvature.ggn import MEMORY_BUDGET, summed
from lapae.curvature.likelihoods import Likelihood
from lapae.curvature.sketch import output_of, pull, squared
from lapae.curvature.stateless import Stateless
from lapae.errors import ConfigError
from lapae.methods.base import Draws, Method, Point
from lapae.methods.step import StepContext
from lapae.methods.weights import WeightDraws
from lapae.networks import Autoencoder
from lapae.posterior import BlockPrecision, DiagonalPrecision, KronPrecision, LowRankPrecision, Precision
from lapae.posterior.lowrank import WEAK
from lapae.posterior.noise import fill_normal, normal
from lapae.posterior.precision import RunningDiagonal
from lapae.posterior.uncertain import known_weights

MOST_ROOT = 1e5
"""Largest root of the Hessian at the output that counts in a vector; a larger one is the inverse of rounding noise."""


class Laplace(Method):
    """Laplacian autoencoder: `network` holds the means θ, `posterior` the precision of q(θ) = N(θ, precision⁻¹)."""

    network: Autoencoder
    posterior: Precision

    def __init__(self, network: Autoencoder, likelihood: Likelihood, options: LaplaceOptions) -> None:
        super().__init__(likelihood)
        check(options)
        self.network = network
        self.hessian = options.hessian or "sketch"
        self.form = HESSIANS[self.hessian].form
        self.sketches = self.hessian in ("sketch", "lowrank")  # by vectors that a graph of the output gives
        self.posterior = make_precision(network, self.hessian, options.prior_precision, options.temperature or 1.0)
        self.scales = prior_scales(network, options.prior_scale or "flat")
        self.first_prior = [options.prior_precision * scale for scale in self.scales]
        self.weak_prior = options.prior_precision * WEAK
        self.posterior.set_prior(self.first_prior)
        self._called: Stateless | None = None
        frozen = frozenset(name for name, p in network.named_parameters() if not p.requires_grad)
        if frozen and len(frozen) == len(self.posterior.shapes):
            raise ConfigError(
                "all weights of the network have requires_grad=False, and there is no posterior over weights that are "
                "frozen: call requires_grad_(True) on the modules that are to be uncertain"
            )
        self.known = known_weights(options.uncertain, list(self.posterior.shapes)) | frozen
        if self.known and self.form not in ("diagonal", "lowrank"):
            which = "a frozen weight (requires_grad=False)" if frozen else f"uncertain={options.uncertain!r}"
            raise ConfigError(f"{which} needs a diagonal hessian, such as sketch, or lowrank; got {self.hessian!r}")

    @property
    def temperature(self) -> float:
        """Temperature of the posterior."""
        return self.posterior.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.posterior.temperature = value

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and drop what is cached about the network, which the mode may change."""
        self._called = None
        return super().train(mode)

    def pin(self) -> None:
        """Treat the weights that are not uncertain as known."""
        if isinstance(self.posterior, RunningDiagonal):
            self.posterior.pin(self.known)

    def sketch(self, tape: Call, step: StepContext) -> dict[str, Tensor]:
        """Return the random vector over the weights whose squares are the sketch of a recorded batch.

        If several processes share the batch, their vectors must be summed before they are squared: the squares contain
        cross terms between samples, which vanish in expectation only.
        """
        return pull(tape, self._observed(tape), step.normal(output_of(tape)))

    def squares(self, vector: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the squares of a sketched vector: zero for known weights, whose precision stays infinite."""
        prior, shapes = self.posterior.prior, self.posterior.shapes
        return squared(vector) | {name: prior.new_zeros(shapes[name]) for name in self.known}

    def vectors_of(self, x: Tensor, step: StepContext, n: int) -> tuple[Tensor, int, float]:
        """n vectors (n, P) of a batch at the mean, which processes share; its samples; this one's log-likelihood of it.

        The outer product of a vector has the GGN of the batch as its mean. Weights that are known have zeros.
        """
        n_own = n_all = len(x)
        if step.world_size > 1:
            n_all = int(step.total(n_own, self.posterior.prior))
            step, x = step.of(n_all), x if n_own else x.new_zeros(1, *x.shape[1:])
        with self.unfrozen():
            tape = walk_dense(self.network, x)
        if tape is not None:
            output = tape.output.detach()
            eps = torch.stack([step.normal(output) for _ in range(n)])
            most = MOST_ROOT * eps.abs()
            rows = self._observed(tape).hessian_factor(output, eps)
            vectors = summed_gradients(tape, torch.minimum(torch.maximum(rows, -most), most))
        else:
            tape = self.run_at_mean(x)
            each = [self.sketch(tape, step) for _ in range(n)]  # pyright: ignore[reportArgumentType]
            vectors = {name: torch.stack([vector[name] for vector in each]) for name in each[0]}
        zeros = {name: self.posterior.prior.new_zeros(n, *self.posterior.shapes[name]) for name in self.known}
        vectors |= zeros
        found = torch.cat([vectors[name].flatten(1) for name in self.posterior.shapes], 1)
        step.sum([found])
        log_likelihood = float(self.likelihood.log_prob(tape.output.detach(), x).sum()) if n_own else 0.0
        return found, n_all, log_likelihood

    def _observed(self, tape: Forward | Call) -> Likelihood:
        return self.likelihood.observed(~tape.x.isnan()) if self.likelihood.missing else self.likelihood

    def curvature(self, tape: Forward | Call, generator: torch.Generator | None = None) -> Any:
        """Return the GGN of a recorded batch, summed over its samples, in the form of `posterior`."""
        return summed(lambda part, share: self._curvature(part, generator, share), tape, f"hessian {self.hessian}")

    def _curvature(self, tape: Any, generator: torch.Generator | None, share: float) -> Any:
        """Return the curvature of a part of a batch within a share of the memory budget."""
        likelihood, budget = self._observed(tape), int(MEMORY_BUDGET * share)
        if self.form == "kron":
            return curvature.kfac(tape, likelihood, n_samples=1, generator=generator, memory_budget=budget)
        if self.form == "block":
            return curvature.blocks(tape, likelihood, memory_budget=budget)
        h = curvature.diagonal(
            tape,
            likelihood,
            self.hessian,  # pyright: ignore[reportArgumentType]
            generator=generator,
            bottleneck="encoder" if self.hessian == "bottleneck" else None,
            memory_budget=budget,
        )
        if self.hessian in ("exact", "mixed", "bottleneck"):  # quadratic forms, which may round to below zero
            h = {name: value.clamp_min(0) for name, value in h.items()}
        return h

    def run(self, x: Tensor, params: Mapping[str, Tensor] | None = None) -> Forward | Call:
        """Run the forward pass and record what the curvature needs: the layers or, for a sketch, the graph alone."""
        if not self.sketches:
            return record(self.network, x, params)
        if self._called is None:
            self._called = checked(self.network)
        found = call(self._called, x, params)
        return replace(found, params={name: p for name, p in found.params.items() if name not in self.known})

    def run_at_mean(self, x: Tensor) -> Forward | Call:
        """Run the forward pass at the mean, recorded for the curvature of every weight."""
        with self.unfrozen():
            if not self.sketches:
                return self.run(x)
            free = {name: p.detach().requires_grad_() for name, p in self.network.named_parameters()}
            return self.run(x, free)

    @contextmanager
    def unfrozen(self) -> Iterator[None]:
        """Make all weights require a gradient: those of a trained method do not, but have a posterior."""
        trains = [p.requires_grad for p in self.network.parameters()]
        self.network.requires_grad_(True)
        try:
            yield
        finally:
            for parameter, flag in zip(self.network.parameters(), trains, strict=True):
                parameter.requires_grad_(flag)

    def params_at(self, noise: Tensor) -> dict[str, Tensor]:
        """Return weights θ + noise: (P,) -> {name: *shape}, (S, P) -> {name: (S, *shape)}. Gradients go to θ."""
        parts = self.posterior.split(noise)
        means = dict(self.network.named_parameters()) if self._called is None else self._called.parameters
        moved = torch._foreach_add(  # pyright: ignore[reportPrivateImportUsage]
            list(means.values()), [parts[name] for name in means]
        )
        return dict(zip(means, moved, strict=True))

    def sample_params(self, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Draw one set of weights from the posterior: {name: *shape}. Gradients go to the mean."""
        eps = normal(self.posterior.prior, self.posterior.n_weights, generator)
        return self.params_at(self.posterior.scale_noise(eps))

    def posterior_of_networks(self) -> Precision:
        """Return the posterior that networks are drawn from to be evaluated as they are, not linearised.

        This is the posterior itself, except for a low-rank one, whose wide directions change nothing to first order but
        nevertheless break a network. Its diagonal is used instead: the running one with which the network was trained,
        if any, or one at the temperature that held-out data allow (`lapae.calibrate.temperature.fit_drawn`).
        """
        precision = self.posterior
        if not isinstance(precision, LowRankPrecision) or not precision.n_vectors:
            return precision
        temperature = precision.temperature * float(precision.drawn)
        alone = DiagonalPrecision(precision.shapes, 1.0, temperature).to(precision.prior)
        alone.set_prior(self.first_prior)
        alone.h.copy_(precision.h if precision.has_trained else precision.diagonal_of_weights())
        return alone

    def posterior_of_codes(self) -> Precision:
        """Return the posterior of the encoder given the decoder, for which codes are coordinates.

        It differs from the posterior if that has covariances between the two: see `lapae.posterior.lowrank`.
        """
        precision = self.posterior
        if not isinstance(precision, LowRankPrecision):
            return precision
        decoder = frozenset(name for name in precision.shapes if not name.startswith("encoder."))
        return precision.given(decoder, self.weak_prior)

    def draw(self, seeds: Sequence[int]) -> WeightDraws:
        """Return networks with weights from the posterior, one per seed."""
        return WeightDraws(self.network, self.draw_params(seeds))

    @torch.no_grad()
    def draw_params(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Draw weights from the posterior, one set per seed: {name: (S, *shape)}."""
        like = self.posterior.prior
        eps = torch.empty(len(seeds), self.posterior.n_weights, device=like.device, dtype=like.dtype)
        return self.params_at(self.posterior_of_networks().scale_noise(fill_normal(eps, seeds)))

    def draw_mean(self) -> Draws:
        """Return the network at its mean weights."""
        return Point(self.network)


def prior_scales(network: nn.Module, scale: str) -> list[float]:
    """Return the factor of the precision of each parameter: 1 or, for "fan-in", the number of inputs of a unit."""
    return [float(p[0].numel()) if scale == "fan-in" and p.ndim > 1 else 1.0 for p in network.parameters()]


def make_precision(network: nn.Module, hessian: str, prior_precision: float, temperature: float) -> Precision:
    """Return an empty precision over the parameters of `network`, in the form that `hessian` yields."""
    shapes = {name: p.shape for name, p in network.named_parameters()}
    form = HESSIANS.find(hessian).form
    if form == "kron":
        matrices, transposed = factored(network)
        return KronPrecision(shapes, prior_precision, temperature, transposed, frozenset(shapes) - matrices)
    kinds = {"block": BlockPrecision, "diagonal": DiagonalPrecision, "lowrank": LowRankPrecision}
    return kinds[form](shapes, prior_precision, temperature)


def with_posterior(method: Method, predictive: str) -> Laplace:
    """Return the method if it has a posterior over weights, which this predictive needs; else raise ValueError."""
    if isinstance(method, Laplace):
        return method
    kind = type(method).__name__
    raise ValueError(
        f"the {predictive} predictive needs a posterior over weights (online, posthoc), got {kind}; use mc"
    )
