"""Result of the closed-form predictives (linearized, moments), and the variance of the weights that both need."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lapae.curvature.likelihoods import Likelihood
from lapae.methods.laplace import Laplace
from lapae.posterior import DiagonalPrecision
from lapae.predict.prediction import Prediction


@dataclass(frozen=True)
class ClosedForm:
    """Gaussian statistics of a batch."""

    z_mean: Tensor
    """(B, *code)"""
    z_var: Tensor
    """(B, *code)"""
    z_cov: Tensor | None
    """(B, K, K), K the numbers of a code; None if they are too many for a matrix."""
    output: Tensor
    """(B, *shape): network output at the mean weights."""
    output_var: Tensor | None
    """(B, *shape): variance over weights, of the expected sample for `linearized`, of the output for `moments`."""


def weight_variances(method: Laplace) -> dict[str, Tensor]:
    """Return the variance of every weight of drawn networks, {name: *shape}."""
    posterior = method.posterior_of_networks()
    if not isinstance(posterior, DiagonalPrecision):
        kind = type(posterior).__name__
        raise ValueError(f"this predictive needs a diagonal posterior (hessian approx, exact, …), got {kind}; use mc")
    return posterior.split(posterior.diagonal().reciprocal_())


def pull_mean(likelihood: Likelihood, output: Tensor, rows: Tensor) -> Tensor:
    """Pull rows (R, B, *shape) at the expected sample back to the network's output (B, *shape): (R, B, *shape)."""
    with torch.enable_grad():
        at = output.detach().expand(rows.shape).flatten(0, 1).requires_grad_()
        product = torch.dot(likelihood.mean(at).reshape(-1), rows.reshape(-1))  # other ways import for seconds
        return torch.autograd.grad(product, at)[0].reshape(rows.shape)


def to_prediction(likelihood: Likelihood, x: Tensor, found: ClosedForm, delta: bool) -> Prediction:
    """Return a `Prediction` with all fields for a batch.

    Args:
        likelihood: likelihood of the data given the output.
        x: samples (B, *shape).
        found: statistics of codes and outputs.
        delta: whether the variance is that of the output, and is carried through the likelihood's mean (delta method).
    """
    mean = likelihood.mean(found.output)
    noise = likelihood.variance(found.output)
    fields: dict[str, Tensor] = {"z_mean": found.z_mean, "z_var": found.z_var}
    if found.z_cov is not None:
        fields["z_cov"] = found.z_cov
    if found.output_var is not None:
        var = found.output_var
        if delta:
            var = likelihood.variance_of_mean(found.output, var)
        error = (mean - x).square().flatten(1).nansum(1)  # of what is observed
        fields |= {"x_mean": mean, "x_var": var, "x_noise": noise, "squared_error_of_mean": error}
        fields["squared_error"] = error + var.flatten(1).sum(1)
        if likelihood.free_variance:
            fields["log_likelihood"] = likelihood.with_variance(var + noise).log_prob(mean, x)
        else:
            fields["log_likelihood"] = likelihood.log_prob(found.output, x)
    return Prediction(1, {name: value.cpu() for name, value in fields.items()})
