"""A trained model is given the size of its posterior, and what makes its numbers hold on new data."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lapae.calibrate.calibration import MOST_ROWS
from lapae.calibrate.conformal import by_chance
from lapae.calibrate.temperature import ROWS, fit_temperature
from lapae.config import MethodConfig
from lapae.data import Data, Split
from lapae.data.source import even
from lapae.model import Model
from lapae.networks.threads import few_threads
from lapae.score.code_density import MOST_CODES
from lapae.space import Source

RATES, CHECKED, CHANCE = (0.05, 0.2), 200, 1e-3
"""Rates at which held-out rows are flagged to see whether p-values hold, rows, and chance of a false warning."""

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


def calibrate(model: Model, data: Data) -> None:
    """Fit what makes the numbers of a trained model hold on new data, with data that training has not seen."""
    train, valid, calib = (some(model, split.x) for split in (data.train, data.valid, data.calib))
    most = min(MOST_CODES, max(MOST_ROWS, MOST_READ // train[0].numel()))
    many = some(model, data.train.x, most) if len(data.train.x) > MOST_ROWS else None
    learned = bool(model.config.model.linear) and model.metrics.get("best_epoch") == 0
    model.calibrate(train, valid, calib, many, learned=learned)
    if data.calib.groups is not None:
        compare_images(model, data.calib)
    if not len(data.calib.x):
        warnings.warn(
            "no rows are held out to calibrate: p-values and intervals are compared with rows that training has used, "
            "and do not hold for new ones",
            stacklevel=2,
        )
    else:
        check_rates(model, data)


def check_rates(model: Model, data: Data) -> None:
    """Warn if held-out rows that are compared with the calibration rows are flagged more often than chance allows.

    These are rows of the test split, else of the validation set.
    """
    assert model.calibration is not None
    split, name = (data.test, "test") if len(data.test.x) else (data.valid, "validation")
    if not len(split.x):
        return
    p = model.calibration.compare(model.predict, some(model, split.x, CHECKED))[1]
    p, n = p[~np.isnan(p)], len(model.calibration.reference)
    for rate in RATES:
        flagged = int((p <= rate).sum())
        if by_chance(flagged, len(p), rate, n) < CHANCE:
            warnings.warn(
                f"{flagged} of {len(p)} {name} rows have p <= {rate}, where {rate * len(p):.0f} are expected: p-values "
                "do not hold for rows like these. The rows may have changed with time, or belong to groups",
                stacklevel=2,
            )
            return


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
