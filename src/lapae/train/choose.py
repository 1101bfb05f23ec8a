"""Defaults that depend on the data, all in one place.

A user's own networks and the paper's keep the options for which they were made. `mlp` and `conv` start from principal
components, so they are no worse than these.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from lapae.config import HESSIANS, Config, MethodConfig
from lapae.space import Space
from lapae.train.devices import choose_device

OURS = ("mlp", "conv")
"""Networks that can have a linear path."""
SMALLEST_CONVOLVED = 16
"""Minimum side of images, in pixels, for convolutions."""
LARGEST_CODE = {"table": 8, "series": 8, "array": 8, "image": 16}
"""Largest default size of the latent code; it is at most half (for images a quarter) of the values of a sample."""
STEPS = {"table": 500, "series": 1500, "array": 1500, "image": 3000}
"""Number of training steps until the learning rate has fallen to 0: half of this for few samples, twice for very
many."""
PATIENCE, LEAST_PATIENCE = 8, 5
"""Training on images stops after an eighth of all epochs without a better validation loss, but not before 5. Tables and
series take seconds: they are trained for all epochs."""
MOST_CPU_VALUES = 2**29
"""Largest number of pixel values that a CPU is trained on: a few minutes for images of any size."""
MOST_BATCH_VALUES = 2**21
"""Largest number of pixel values in a batch of images."""
MASKED_SHARE = 0.6
"""Largest share of the values of a row of a table that training masks."""


def choose(config: Config, space: Space, *, own: bool = False, portion: int | None = None) -> Config:
    """Fill in the options that a user has left open.

    Args:
        config: the user's options.
        space: what the training data are, and how many.
        own: whether the network is made of the user's modules.
        portion: number of samples in an epoch, if that is not a pass over the data; then all are seen at least once.

    Returns:
        The configuration, resolved.
    """
    model, train = config.model, config.train
    n, d = space.n_data, math.prod(space.model_shape)
    network = model.network or ("patch" if space.features else "conv" if _convolved(space) else "mlp")
    ours = network in OURS and not own
    linear = ours and config.method.method != "dropout" if model.linear is None else model.linear
    masked = ours and network == "mlp" and space.kind == "table" and space.maskable
    values = space.shape[-1] if space.features else d  # a position of feature maps has a code of its own
    code = max(1, min(LARGEST_CODE[space.kind], values // (4 if space.kind == "image" else 2)))
    model = replace(
        model,
        network=network,
        latent_dim=model.latent_dim or (None if own else code),
        hidden=model.hidden if model.hidden is not None or not ours else _widths(space, network, n),
        activation=model.activation or ("gelu" if ours and linear else None),
        linear=linear if ours else None,
        hide=model.hide if model.hide is not None or not masked else MASKED_SHARE,
    )
    batch_size = train.batch_size or _batch_size(space, n, d)
    per_epoch = max(1, math.ceil((portion or n) / batch_size))
    steps = _steps(space.kind, n)
    if space.kind == "image" and choose_device(train.device) == "cpu":
        steps = min(steps, MOST_CPU_VALUES // (batch_size * d))
    least = max(3, math.ceil(n / portion)) if portion else 3
    epochs = max(least, math.ceil(steps / per_epoch)) if train.epochs is None else train.epochs
    train = replace(
        train,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=train.learning_rate or (2e-3 if space.kind == "table" else 1e-3),
        schedule=train.schedule or ("cosine" if ours else "plateau"),
        patience=train.patience or (_patience(space.kind, epochs) if ours else 8),
    )
    n_samples = 5 if own or space.features else 20
    covariances = space.kind != "image" and ours and not own
    covariances = covariances and config.method.method in ("online", "posthoc")
    covariances = covariances and config.method.predictive in (None, "linearized")
    method = _method(config.method, ours and linear, 4 if space.kind == "table" else 1, n_samples, covariances)
    return replace(config, model=model, train=train, method=method).resolved()


def _convolved(space: Space) -> bool:
    return space.kind == "image" and min(space.model_shape[1:]) >= SMALLEST_CONVOLVED


def _steps(kind: str, n: int) -> int:
    if kind == "table" and 500 <= n < 2000:  # interpolate: 500 rows need half of the steps
        return STEPS[kind] * (1000 + n) // 3000
    return STEPS[kind] * (1 if n < 500 else 2 if n < 20_000 else 4) // 2


def _patience(kind: str, epochs: int) -> int:
    return max(LEAST_PATIENCE, math.ceil(epochs / PATIENCE)) if kind == "image" else max(1, epochs)


def _batch_size(space: Space, n: int, d: int) -> int:
    if space.features:
        return 8
    if space.kind == "image":
        return min(32 if n < 500 else 64 if n < 20_000 else 128, max(8, MOST_BATCH_VALUES // d))
    return 32 if n < 500 else 64 if n < 4000 else 128 if n < 40_000 else 256


def _widths(space: Space, network: str, n: int) -> tuple[int, ...]:
    """Return the widths of the hidden layers of the encoder."""
    if network == "conv":
        return (128,)
    if space.kind == "table":
        return (64, 32) if n < 500 else (128, 64)
    return (256, 128) if n < 5000 else (512, 256)


def _method(config: MethodConfig, ours: bool, every: int, n_samples: int, covariances: bool) -> MethodConfig:
    """Fill in the options that the method has and the user has left open."""
    options = config.options
    hessian = getattr(options, "hessian", None) or ("lowrank" if covariances else "sketch")
    form = HESSIANS[hessian].form
    closed_form = config.method in ("online", "posthoc") and form == "diagonal"
    chosen: dict[str, Any] = {
        "hessian": hessian,
        "prior_scale": "fan-in" if ours else "flat",
        "predictive": "moments" if closed_form and ours else "mc",
        "n_samples": n_samples,
        "hessian_every": every if ours else 1,
    }
    if form == "lowrank":  # covariances and linearisation: the variance has its natural size
        chosen |= {"predictive": "linearized", "temperature": 1.0}
    given = {name: value for name, value in chosen.items() if getattr(options, name, value) is None}
    return MethodConfig(config.method, options, **given)
