"""One-line summaries: the data and the choices before training, the result after it."""

from __future__ import annotations

from typing import Any

from lapae.config import Config
from lapae.data import Data

ROLES = {"train": "for training", "valid": "for validation", "calib": "for calibration", "test": "for testing"}


def understood(config: Config, data: Data) -> str:
    """Return a line about the data, their splits, and the model that is trained on them."""
    sizes = {name: len(getattr(data, name)) for name in ROLES}
    parts = ", ".join(f"{n:,} {ROLES[name]}" for name, n in sizes.items() if n)
    model, options, train = config.model, config.method.options, config.train
    code = model.latent_dim and f"K = {model.latent_dim}"
    chosen = [config.method.method, model.network, code, getattr(options, "hessian", None)]
    epochs = f"{train.epochs} epochs in batches of {train.batch_size}"
    if data.n_groups:
        parts += f" ({data.n_groups:,} groups of rows, each in one split)"
    return (
        f"{data.space.describe(sum(sizes.values()))}; {parts}; {', '.join(str(one) for one in chosen if one)}; {epochs}"
    )


def ending(metrics: dict[str, Any], config: Config) -> str:
    """Return a line about why training ended, and which weights are kept."""
    if not metrics["epochs"]:
        return metrics["stopped"]
    n, most = metrics["epochs"], config.train.epochs
    kept = f"the weights of epoch {metrics['best_epoch']}" if metrics["best_epoch"] else "the weights it started from"
    why = "" if metrics["stopped"] == f"{most} epochs done" else f": {metrics['stopped']}"
    return f"training ended after {n} of {most} epochs{why}; kept {kept}"


def outcome(metrics: dict[str, Any], k: int | None) -> str:
    """Return how much of the variance of held-out samples is explained, and how much by principal components.

    Args:
        metrics: the metrics of a training.
        k: size of the latent code.
    """
    if metrics.get("explained") is None:
        return "held-out samples do not vary: there is no variance to explain"
    explained = f"{100 * metrics['explained']:.1f} % of the variance of held-out samples explained"
    if metrics.get("explained_by_pca") is None:
        return explained
    pca = f"{100 * metrics['explained_by_pca']:.1f} % by PCA with {k} component{'' if k == 1 else 's'}"
    if metrics["best_epoch"] or metrics["explained"] > metrics["explained_by_pca"]:
        return f"{explained}, {pca}"
    return f"{explained}, {pca}: training found nothing significantly better, so its start, the PCA, is kept"
