"""Models that several experiments share: the paper's networks and methods, at both sizes.

At full size the settings are the paper's (networks, batches of 64 on MNIST, early stopping on held-out training data),
except for H_0 = N as in the authors' code instead of the prior as in the text, at most 80 epochs, and the learning rate
and the forgetting of each experiment. `docs/results.md` lists all differences.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae_paper.choices import as_in_the_paper
from lapae_paper.experiments.base import Size, Trial

LABELS = {
    "ae": "AE",
    "ae-var": "AE, learned variance",
    "vae": "VAE",
    "dropout": "MC-AE",
    "ensemble": "AE ensemble",
    "posthoc": "LAE (post-hoc)",
    "online": "LAE (online)",
}
"""Methods in the paper's words and order."""
WIDE, EXACT, WEIGHTED = "online-wide", "online-exact", "vae-weighted"
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    WIDE: ("online", {"forgetting": 1e-2}),
    EXACT: ("online", {"hessian": "exact"}),
    WEIGHTED: ("vae", {"kl_weight": 0.784}),
}
"""Methods with other options: a larger α, which divides the precision that an online posterior settles at; the exact
diagonal, which the paper uses for dense networks; the weight of the KL term in the authors' code, which adds 0.001 of
it to a mean over 784 pixels, in terms of a density that is summed over them."""
NAMES = {
    **LABELS,
    WIDE: "LAE (online), α = 0.01",
    EXACT: "LAE (online), exact",
    WEIGHTED: "VAE, the authors' KL weight",
}


def dense(size: Size, method: str, *, seed: int = 0, **options: Any) -> Trial:
    """Return the trial of a method on MNIST with the paper's dense network (quick: digits, 64-32-2)."""
    method, chosen = SETTINGS.get(method, (method, {}))
    model = size(ModelConfig(network="paper-mnist"), ModelConfig(network="mlp", hidden=(32,)))
    return trial(DataConfig(source=digits(size)), model, training(size, seed), method, **chosen | options)


def training(size: Size, seed: int) -> TrainConfig:
    """Return how dense networks are trained."""
    return size(
        TrainConfig(epochs=80, batch_size=64, learning_rate=1e-3, seed=seed),
        TrainConfig(epochs=8, batch_size=64, learning_rate=3e-3, seed=seed),
    )


def digits(size: Size) -> str:
    """Return the name of MNIST, or of scikit-learn's digits."""
    return size("mnist", "digits")


def trial(data: DataConfig, model: ModelConfig, train: TrainConfig, method: str, **options: Any) -> Trial:
    """Return the trial of a method on data. A post-hoc posterior starts from the autoencoder of the same seed."""
    defaults: dict[str, Any] = {"forgetting": 1e-3} if method in ("online", "noisy-adam") else {}
    config = MethodConfig(method, **defaults | options)
    whole = as_in_the_paper(Config(data, model, config, train))
    if method != "posthoc":
        return Trial(whole)
    start = Trial(as_in_the_paper(replace(whole, method=MethodConfig("ae"))))
    return Trial(whole, start=start)
