"""The training section of the report: facts, final numbers and curves."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lapae.config import MethodConfig, MethodOptions
from lapae.model import Model
from lapae.runs.numbers import number
from lapae.view.named_splits import NamedSplits
from lapae.view.report.chart import Chart, line_chart


def facts(model: Model, splits: NamedSplits) -> list[tuple[str, str]]:
    """List what was trained on what."""
    config, metrics = model.config, model.metrics
    n_weights = sum(p.numel() for p in model.method.parameters())
    parts = ", ".join(f"{len(split):,} {name} samples" for name, split in splits.parts.items())
    out = [
        ("Data", f"{model.space.name}: {parts}"),
        ("Network", f"{config.model.network}, code of {config.model.latent_dim}, {n_weights:,} weights"),
        ("Likelihood", config.model.likelihood),
        ("Method", config.method.title),
    ]
    if options := own_options(config.method):
        out.append(("Its options", ", ".join(f"{name.replace('_', ' ')} {number(v)}" for name, v in options.items())))
    train = config.train
    out.append(("Training", f"batches of {train.batch_size}, Adam {train.learning_rate:g}, seed {train.seed}"))
    if metrics:
        seconds = f"{metrics['seconds']:.0f} s on {metrics['device']}" if "seconds" in metrics else ""
        out.append(("Ended after", f"{metrics.get('epochs')} epochs ({metrics.get('stopped')}); {seconds}"))
    else:
        out.append(("Ended after", "not finished: these are the best weights so far"))
    if metrics.get("best_loss") is not None:
        out.append(("Best validation loss", f"{number(float(metrics['best_loss']))}, of epoch {metrics['best_epoch']}"))
    test = metrics.get("test", {})
    told = {"squared_error": "Test squared error", "squared_error_sampled": "Test squared error of sampled networks"}
    out += [(told[key], number(float(test[key]))) for key in told if test.get(key) is not None]
    return out


def own_options(method: MethodConfig) -> dict[str, Any]:
    """Return the options of the method that not all methods have, if they are set."""
    shared = {field.name for field in fields(MethodOptions)}
    return {name: value for name, value in vars(method.options).items() if name not in shared and value is not None}


def curves(model: Model, history: list[dict[str, Any]]) -> Chart | None:
    """Draw training and validation loss."""
    if not history:
        return None
    series = {"training": [r.get("loss") for r in history], "validation": [r.get("valid_loss") for r in history]}
    return line_chart([r["epoch"] for r in history], series, mark=model.metrics.get("best_epoch"))
