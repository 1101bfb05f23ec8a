"""What a user leaves open, chosen by the data: the one place where defaults depend on them.

The networks of one's own and the paper's keep what they were made for; `mlp` and `conv` start from principal components
and continue from there, so that they are no worse. docs/methods.md says what each choice rests on.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from lapae.config import HESSIANS, Config, MethodConfig
from lapae.space import Space
from lapae.train.devices import choose_device

OURS = ("mlp", "conv")
"""Networks that may have a linear path."""
SMALLEST_CONVOLVED = 16
"""Side in pixels from which images get convolutions."""
CODE = {"table": 8, "series": 8, "array": 8, "image": 16}
"""Size of the code, at most; a half (of images a quarter) of the values of a datum."""
STEPS = {"table": 500, "series": 1500, "array": 1500, "image": 3000}
"""Training steps, until the learning rate has fallen to 0; half as many for few data, twice as many for very many."""
MOST_VALUES = 2**29
"""Values of images that a CPU is shown in training: some minutes, however large the images are."""
LARGE_BATCH = 2**21
"""Values of images in a batch, at most."""
HIDE = 0.6
"""Share of the values of a table that training hides, at most."""


def choose(config: Config, space: Space, *, own: bool = False) -> Config:
    """`config` with everything filled in.

    Args:
        config: what the user gave.
        space: what the training data are, and how many.
        own: whether the network is one of the user's modules.
    """
    model, train = config.model, config.train
    n, d = space.n_data, math.prod(space.model_shape)
    network = model.network or ("conv" if _convolved(space) else "mlp")
    ours = network in OURS and not own
    linear = ours and config.method.method != "dropout" if model.linear is None else model.linear
    masked = ours and network == "mlp" and space.kind == "table" and space.maskable
    code = max(1, min(CODE[space.kind], d // (4 if space.kind == "image" else 2)))
    model = replace(
        model,
        network=network,
        latent_dim=model.latent_dim or code,
        hidden=model.hidden if model.hidden is not None or not ours else _widths(space, network, n),
        activation=model.activation or ("gelu" if ours and linear else None),
        linear=linear if ours else None,
        hide=model.hide if model.hide is not None or not masked else HIDE,
    )
    batch_size = train.batch_size or _batch_size(space, n, d)
    per_epoch = max(1, math.ceil(n / batch_size))
    steps = _steps(space.kind, n)
    if space.kind == "image" and choose_device(train.device) == "cpu":
        steps = min(steps, MOST_VALUES // (batch_size * d))
    epochs = max(3, math.ceil(steps / per_epoch)) if train.epochs is None else train.epochs
    train = replace(
        train,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=train.learning_rate or (2e-3 if space.kind == "table" else 1e-3),
        schedule=train.schedule or ("cosine" if ours else "plateau"),
        patience=train.patience or (max(1, epochs) if ours else 8),
    )
    method = _method(
        config.method, ours and linear, every=4 if space.kind == "table" else 1, n_samples=5 if own else 20
    )
    return replace(config, model=model, train=train, method=method).resolved()


def _convolved(space: Space) -> bool:
    return space.kind == "image" and min(space.model_shape[1:]) >= SMALLEST_CONVOLVED


def _steps(kind: str, n: int) -> int:
    if kind == "table" and 500 <= n < 2000:  # in between: half a thousand rows of numbers are learned in half the steps
        return STEPS[kind] * (1000 + n) // 3000
    return STEPS[kind] * (1 if n < 500 else 2 if n < 20_000 else 4) // 2


def _batch_size(space: Space, n: int, d: int) -> int:
    if space.kind == "image":
        return min(32 if n < 500 else 64 if n < 20_000 else 128, max(8, LARGE_BATCH // d))
    return 32 if n < 500 else 64 if n < 4000 else 128 if n < 40_000 else 256


def _widths(space: Space, network: str, n: int) -> tuple[int, ...]:
    """Hidden layers of the encoder."""
    if network == "conv":
        return (128,)
    if space.kind == "table":
        return (64, 32) if n < 500 else (128, 64)
    return (256, 128) if n < 5000 else (512, 256)


def _method(config: MethodConfig, ours: bool, every: int, n_samples: int) -> MethodConfig:
    """Of the options that the method has, those that are open."""
    options = config.options
    diagonal = HESSIANS[getattr(options, "hessian", None) or "sketch"].form == "diagonal"
    closed_form = config.method in ("online", "posthoc") and diagonal
    chosen: dict[str, Any] = {
        "hessian": "sketch",
        "prior_scale": "fan-in" if ours else "flat",
        "predictive": "moments" if closed_form and ours else "mc",
        "n_samples": n_samples,
        "hessian_every": every if ours else 1,
    }
    given = {name: value for name, value in chosen.items() if getattr(options, name, value) is None}
    return MethodConfig(config.method, options, **given)
