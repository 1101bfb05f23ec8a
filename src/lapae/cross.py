"""Cross-conformal p-values: every row of a table calibrates, with its score from a model that was trained without it.

The n rows are divided into K folds. Model k, with everything that belongs to it, is trained on the rows outside fold k.
With s_i the score of row i by the model that has not seen it, and s^k(x) that of a new row by model k,

    p = (1 + Σ_k #{i in fold k: s_i >= s^k(x)}) / (n + 1).

If the rows and the new one are exchangeable, then for every α (Barber, Candès, Ramdas and Tibshirani 2021, theorem 4;
the first term is that of Vovk and Wang 2020)

    P(p <= α) <= 2 α + min(2 (1 - 1/K) / (n/K + 1), (1 - K/n) / (K + 1)).

Split conformal prediction has P(p <= α) <= α, but calibrates with held-out rows only, so that its smallest p-value is
larger. The bound covers models that fit their own rows much better than other rows. With five folds P(p <= α) is close
to α, or below it, as each model has fewer training rows than a model of all rows would have.

Rows that belong together (`groups`), and copies of a row, are in the same fold, and one row of each group calibrates:
the n above are groups, and p-values hold for rows of new groups.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lapae.config import Config
from lapae.data import Data
from lapae.data.copies import copied
from lapae.data.groups import linked
from lapae.errors import ConfigError, RunError
from lapae.fit import fit
from lapae.generate.rows import RowSampler
from lapae.model import Model
from lapae.runs import MODEL, Run, read_tensor_file, tensor_file
from lapae.runs.files import make_folder, whole_folder, write_whole
from lapae.space.frames import is_frame
from lapae.storage import load_run, save

FOLDS = 5
LEAST_ROWS = 20
"""Minimum number of rows, so that each fold has some and each model has enough."""
CROSS, SCORES = "cross", "cross.safetensors"
"""In a run folder: the folder of the models, each a run folder of its own, and the file of the scores inside it."""


@dataclass(frozen=True)
class CrossCalibration:
    """Models that were each trained without one fold of the rows.

    Attributes:
        models: the K models.
        scores: for each of them, the anomaly scores of the rows that it has not seen, (m,).
    """

    models: tuple[Model, ...]
    scores: tuple[np.ndarray, ...]

    @classmethod
    def fit(cls, model: Model, config: Config, **options: Any) -> CrossCalibration:
        """Train the models.

        Args:
            model: a trained model, which keeps the rows of its table (at most 4,000).
            config: what to train; options that are left open are chosen by the rows of each model.
            options: those of `lapae.fit.fit`.
        """
        rows = as_fitted(model)
        assert model.sampler is not None
        group = together(model.sampler)
        n = len(np.unique(group))
        if n < LEAST_ROWS:
            raise ConfigError(f"calibration='cross' with {n} rows or groups of rows: expected at least {LEAST_ROWS}")
        fold = folds(group, model.seed)
        one = np.zeros(len(group), bool)
        order = np.random.default_rng(model.seed).permutation(len(group))
        one[order[np.unique(group[order], return_index=True)[1]]] = True
        models, scores = [], []
        for k in range(FOLDS):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as the model of all rows has warned
                known = None if model.sampler.groups is None else group[fold != k]
                found = fit(config, Data.of(rows[fold != k], groups=known), **options)
                scores.append(found.anomaly_score(rows[one & (fold == k)])[0])
            models.append(found)
        return cls(tuple(models), tuple(of[~np.isnan(of)] for of in scores))

    def p_values(self, model: Model, X: Any) -> np.ndarray:
        """Return the p-values (n,) of rows, NaN for a row with nothing observed.

        Args:
            model: the model of all rows.
            X: rows (n, F) as `model` takes them: the codes of levels differ between the K models.
        """
        X = X if is_frame(X) else model.space.uncode(model.space.code(X))
        at_least, n = np.zeros(len(X)), sum(map(len, self.scores))
        for model, theirs in zip(self.models, self.scores, strict=True):
            ours = model.anomaly_score(X)[0]
            ordered = np.sort(theirs)
            at_least += np.where(np.isnan(ours), np.nan, len(ordered) - np.searchsorted(ordered, ours, side="left"))
        return (1 + at_least) / (n + 1)

    def keep(self, run: Run) -> None:
        """Write the models into the run folder that they belong to."""
        of = read_tensor_file(run / MODEL)[1].get("calibration")
        with whole_folder(run / CROSS, replace=True) as folder:
            for k, model in enumerate(self.models):
                make_folder(folder / str(k))
                save(model, Run(folder / str(k)))
            scores = {str(k): torch.from_numpy(of_fold) for k, of_fold in enumerate(self.scores)}
            write_whole(folder / SCORES, tensor_file(scores, {"of": of}))

    @classmethod
    def load(cls, run: Run, device: Any = "cpu") -> CrossCalibration | None:
        """Return what `keep` wrote; None if there is nothing, or if it belongs to another training."""
        folder = run / CROSS
        if not (folder / SCORES).exists():
            return None
        scores, about = read_tensor_file(folder / SCORES)
        if about.get("of") != read_tensor_file(run / MODEL)[1].get("calibration"):
            return None
        try:
            found = tuple(scores[str(k)].double().numpy() for k in range(len(scores)))
        except KeyError as error:
            raise RunError(f"{folder / SCORES} is damaged: it has no scores of fold {error}") from error
        return cls(tuple(load_run(folder / str(k), device=device) for k in range(len(found))), found)


def together(sampler: RowSampler) -> np.ndarray:
    """Return the number (n,) of the group of each row; copies of a row are in the same group."""
    copies = copied(sampler.rows.double().numpy())
    copies = np.arange(len(sampler.rows)) if copies is None else copies
    return copies if sampler.groups is None else linked(sampler.groups.numpy(), copies)


def folds(group: np.ndarray, seed: int) -> np.ndarray:
    """Return the fold of each row, from 0 on, (n,): rows of the same `group` (n,) are in the same fold."""
    which = np.unique(group, return_inverse=True)[1].reshape(-1)
    order = np.random.default_rng(seed).permutation(which.max() + 1)
    return order[which] % FOLDS


def as_fitted(model: Model) -> Any:
    """Return the rows (n, F) that a model was fitted to, in their original form: a frame if columns have names."""
    if model.sampler is None or model.recent is not None:
        raise ConfigError("calibration='cross' is for tables of up to 128 columns, fitted as a whole: expected 'split'")
    return model.space.uncode(model.sampler.rows.double().numpy())
