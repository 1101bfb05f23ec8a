"""A trained model is given the size of its posterior, and what makes its numbers hold on new data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lapae.config import MethodConfig
from lapae.data import Data, Split
from lapae.data.source import even
from lapae.methods.building import restart
from lapae.model import Model
from lapae.models.threads import few_threads
from lapae.predict import Prediction
from lapae.predict.calibrate import MOST_ROWS
from lapae.predict.density import MOST_CODES
from lapae.predict.temperature import ROWS, fit_temperature
from lapae.space import Source

FEW, FOLDS = 1000, 10
"""Data up to which principal components that are kept are those of all, and parts that the data are predicted in."""

MOST_READ = 2**26
"""Values of training data read to learn the density of codes, at most, but for the data that are read anyway."""


def some(model: Model, x: Source, most: int = MOST_ROWS) -> Tensor:
    """At most so many of data, evenly from all, as the model takes them: (n, *model_shape)."""
    return torch.from_numpy(model.space.convert(np.asarray(x[even(len(x), most)]))).to(
        next(model.method.parameters()).dtype
    )


def set_temperature(model: Model, data: Data) -> None:
    """Give the posterior of a trained model the size that predicts held-out data best, where none was given."""
    method, options = model.method, model.config.method
    if method.temperature is None or options.temperature is not None:
        return
    rows = some(model, data.valid.x if len(data.valid.x) else data.train.x, ROWS)
    with few_threads(method, model.config.train.batch_size or 1):
        found = fit_temperature(method, rows, seed=model.seed)
    model.config = replace(model.config, method=MethodConfig(options.method, options.options, temperature=found))


def calibrate(model: Model, data: Data, *, kept: bool = False) -> None:
    """Fit what makes the numbers of a trained model hold on new data, with data that training has not seen.

    Principal components that were `kept`, as training did not better them, are in the end those of all data where these
    are few: what they say of each is then taken from components of the others.
    """
    train, valid, calib = (some(model, split.x) for split in (data.train, data.valid, data.calib))
    most = min(MOST_CODES, max(MOST_ROWS, MOST_READ // train[0].numel()))
    many = some(model, data.train.x, most) if len(data.train.x) > MOST_ROWS else None
    how: dict[str, Any] = {"learned": bool(model.config.model.linear) and model.metrics.get("best_epoch") == 0}
    if kept and not model.space.tile and 2 * FOLDS <= len(data.train.x) + len(data.valid.x) + len(data.calib.x) <= FEW:
        how = {"others": of_others(model, torch.cat([train, valid, calib]))}
    model.calibrate(train, valid, calib, many, **how)
    if data.calib.groups is not None:
        compare_images(model, data.calib)


def compare_images(model: Model, held: Split) -> None:
    """Have a model of tiles know how unusual the most unusual tile of an image is: `held` are all tiles of images."""
    assert model.calibration is not None
    assert held.groups is not None
    blocks = np.array_split(np.arange(len(held.x)), -(-len(held.x) // MOST_ROWS)) if len(held.x) else []
    found = [model.calibration.compare(model.predict, some(model, held.x[block]))[0] for block in blocks]
    of = np.unique(held.groups, return_inverse=True)[1]
    images = np.full(of.max(initial=-1) + 1, -np.inf)
    np.maximum.at(images, of, np.concatenate([*found, np.empty(0)]))
    model.calibration = replace(model.calibration, images=torch.from_numpy(images))


def of_others(model: Model, x: Tensor) -> Callable[[Tensor], Prediction]:
    """Put the principal components of x (n, *model_shape) into a model, and predict each of x from those of others."""
    fold = torch.arange(len(x)) % FOLDS
    means: dict[bytes, Tensor] = {}
    for k in range(FOLDS):
        restart(model.method, x[fold != k].float())
        found = model.predict(x[fold == k], ("outputs",)).x_mean
        assert found is not None
        means |= {row.numpy().tobytes(): mean for row, mean in zip(x[fold == k], found, strict=True)}
    restart(model.method, x.float())
    with torch.no_grad():
        for weight in model.method.parameters():  # which are saved in 32 bits
            weight.copy_(weight.float())

    def predict(rows: Tensor) -> Prediction:
        """Of some of x; codes are of the components of all, as those of folds have axes of their own."""
        return replace(model.predict(rows), x_mean=torch.stack([means[row.numpy().tobytes()] for row in rows]))

    return predict
