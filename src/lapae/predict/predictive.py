"""One function for the three predictives: `mc`, `linearized`, `moments`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor

from lapae.curvature.chunking import within_memory
from lapae.methods.base import Method
from lapae.methods.laplace import with_posterior
from lapae.predict import mc
from lapae.predict.closed_form import to_prediction
from lapae.predict.linearized import linearized
from lapae.predict.moments import moments
from lapae.predict.prediction import Inputs, Prediction, Progress, Quantity, batches, check_quantities, join

PREDICTIVES = ("mc", "linearized", "moments")
FIELDS: dict[Quantity, tuple[str, ...]] = {
    "codes": ("z_mean", "z_var"),
    "covariance": ("z_cov",),
    "outputs": ("x_mean", "x_var", "x_noise"),
    "density": ("log_likelihood",),
    "error": ("squared_error", "squared_error_of_mean"),
}


def predict(
    method: Method,
    x: Inputs,
    *,
    predictive: str = "mc",
    n_samples: int = 100,
    seed: int = 0,
    want: Collection[Quantity] = ("codes", "outputs", "density", "error"),
    batch_size: int = 512,
    draws_at_once: int | None = None,
    progress: Progress | None = None,
    at_mean: bool = False,
) -> Prediction:
    """Mean and variance of codes and reconstructions, densities and errors for all of x.

    Args:
        method: the trained method.
        x: data (N, *shape) in the model's space, or batches of them.
        predictive: "mc" draws networks, for any method; "linearized" is the closed form of the network linearised in
            its weights and "moments" one pass with a mean and a variance, both for Laplace posteriors.
        n_samples: networks drawn by "mc".
        seed: of the networks.
        want: the quantities to compute; the other fields of the result are None.
        batch_size: data at a time.
        draws_at_once: networks at a time; as many as fit where not given.
        progress: called with the number of (network, datum) pairs done.
        at_mean: have "mc" give what the network at the mean weights says, as the closed forms do, and no means over
            draws.
    """
    options: dict[str, Any] = {"n_samples": n_samples, "seed": seed, "want": want, "batch_size": batch_size}
    options |= {"draws_at_once": draws_at_once, "progress": progress, "at_mean": at_mean}
    parts = list(predict_blocks(method, x, predictive=predictive, **options))
    if not parts:
        raise ValueError("expected at least one datum to predict for, got none")
    return join(parts)


def predict_blocks(
    method: Method,
    x: Inputs,
    *,
    predictive: str = "mc",
    n_samples: int = 100,
    seed: int = 0,
    want: Collection[Quantity] = ("codes", "outputs", "density", "error"),
    batch_size: int = 512,
    draws_at_once: int | None = None,
    progress: Progress | None = None,
    at_mean: bool = False,
) -> Iterator[Prediction]:
    """As `predict`, a block of data at a time, for what is reduced or written right away."""
    if predictive not in PREDICTIVES:
        raise ValueError(f"unknown predictive {predictive!r}: expected one of {', '.join(PREDICTIVES)}")
    if predictive == "mc":
        how: dict[str, Any] = {"draws_at_once": draws_at_once, "progress": progress, "at_mean": at_mean}
        yield from mc.predict_blocks(method, x, n_samples=n_samples, seed=seed, want=want, batch_size=batch_size, **how)
        return
    laplace = with_posterior(method, predictive)
    check_quantities(want)
    weight = next(method.parameters())
    decodes = bool({"outputs", "density", "error"} & set(want))
    wanted = {name for quantity in want for name in FIELDS[quantity]}

    def closed_form(part: Tensor) -> Prediction:
        part = part.to(weight.device, weight.dtype)
        with mc.evaluating(method, len(part)):
            found = moments(laplace, part) if predictive == "moments" else linearized(laplace, part, outputs=decodes)
            whole = to_prediction(method.likelihood, part, found, delta=predictive == "moments")
        return Prediction(n_draws=1, **{name: getattr(whole, name) for name in wanted})

    most: int | None = None
    for batch in batches(x, batch_size):
        found, size = within_memory(
            lambda size, batch=batch: join([closed_form(part) for part in batch.split(size)]),
            min(len(batch), most or len(batch)),
            f"the {predictive} predictive (data)",
            "predictive mc",
        )
        most = size if size < len(batch) else most
        if progress:
            progress(len(batch))
        yield found
