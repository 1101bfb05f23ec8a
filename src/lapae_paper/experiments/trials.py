"""Models that several experiments share: the paper's networks and methods, at both sizes.

At full size the settings are the paper's and the authors' (networks, early stopping on held-out training data), but for
batches of 64 instead of 50 on MNIST, H_0 = N as in the authors' code and not the prior as in the text, and the learning
rate and the forgetting that each experiment says.
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
WIDE = "online-wide"
NAMES = {**LABELS, WIDE: "LAE (online), α = 0.01"}
"""`LABELS` and one more: an online posterior with a larger α, which divides the precision that it settles at."""


def dense(size: Size, method: str, *, seed: int = 0, **options: Any) -> Trial:
    """Return the trial of a method on MNIST with the paper's dense network (quick: digits, 64-32-2)."""
    if method == WIDE:
        method, options = "online", {"forgetting": 1e-2} | options
    model = size(ModelConfig(network="paper-mnist"), ModelConfig(network="mlp", hidden=(32,)))
    train = size(
        TrainConfig(epochs=80, batch_size=64, learning_rate=1e-3, seed=seed),
        TrainConfig(epochs=8, batch_size=64, learning_rate=3e-3, seed=seed),
    )
    return trial(DataConfig(source=digits(size)), model, train, method, **options)


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
