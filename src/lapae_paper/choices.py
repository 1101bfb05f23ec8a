"""The paper's choices where a configuration leaves them open, whatever the data are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lapae.config import Config, MethodConfig

METHOD = {"hessian": "approx", "prior_scale": "flat", "hessian_every": 1, "temperature": 1.0}
METHOD |= {"predictive": "mc", "n_samples": 100}
MODEL = {"network": "mlp", "latent_dim": 2, "sigma": 1.0}
HIDDEN = {"mlp": (512, 256), "conv": (128,)}
"""Widths of the hidden layers by network; other networks are made as they are."""


def as_in_the_paper(config: Config) -> Config:
    """Return a configuration with the paper's choices in place of None."""
    options = config.method.options
    method = {name: value for name, value in METHOD.items() if getattr(options, name, value) is None}
    model = filled(config.model, **MODEL)
    if model.network in HIDDEN:
        model = filled(model, hidden=HIDDEN[model.network], activation="tanh", linear=False)
    if model.network == "mlp":
        model = filled(model, hide=0.0)
    return replace(
        config,
        model=model,
        method=MethodConfig(config.method.method, options, **method),
        train=config.train.filled(),
    )


def filled(section: Any, **values: Any) -> Any:
    """Return a section with `values` in place of fields that are None."""
    return replace(section, **{name: value for name, value in values.items() if getattr(section, name) is None})
