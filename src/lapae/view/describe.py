"""One-line description of a run."""

from __future__ import annotations

from lapae.model import Model


def summary(model: Model) -> str:
    """Describe in one line what was trained on what."""
    epochs = f", trained for {model.metrics['epochs']} epochs" if "epochs" in model.metrics else ""
    size = " × ".join(map(str, model.code_shape))
    codes = f"codes of {size} dimension{'s' if size != '1' else ''}"
    return f"{model.space.describe()}; {codes}, network {model.config.model.network}{epochs}."
