"""Missing values: best guesses, completions and prediction intervals, with one protocol and four implementations.

| imputer          | data                                  | missing values come from                              |
|------------------|---------------------------------------|-------------------------------------------------------|
| NeighbourImputer | tables of up to 128 columns           | similar rows, weighted by copula and network          |
| NetworkImputer   | wider tables                          | the network, which was trained with hidden values     |
| ChainImputer     | tables without such a network         | the network's own reconstruction, iterated            |
| RecallImputer    | images, series, arrays                | training codes whose samples match the observed part  |

The effect of their constants is measured in benchmarks/imputation.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lapae.calibrate.calibration import FEW, SCARCE, Calibration
from lapae.impute.imputer import COPIES, ITERATED, Imputer, ImputerRows, Trained
from lapae.impute.neighbours import NeighbourImputer, has_donors
from lapae.impute.network import ChainImputer, NetworkImputer, is_masked
from lapae.impute.recall import RecallImputer
from lapae.methods import Method
from lapae.predict.rows import evenly
from lapae.space import Space

IMPUTERS: dict[str, type[Imputer]] = {
    "neighbours": NeighbourImputer,
    "network": NetworkImputer,
    "chains": ChainImputer,
    "recall": RecallImputer,
}
"""Imputers by the name under which a run saves them."""

__all__ = ["IMPUTERS", "Imputer", "ImputerRows", "Trained", "choose_imputer", "fit_imputer", "rows_to_impute"]


def choose_imputer(method: Method, space: Space, rows: ImputerRows) -> str:
    """Return the name of the imputer that suits a network and its data."""
    if space.kind != "table":
        return "recall"
    if not is_masked(method):
        return "chains"
    return "neighbours" if has_donors(space.parts, rows) else "network"


def rows_to_impute(method: Method, space: Space, train: Tensor, valid: Tensor, n_calib: int) -> ImputerRows:
    """Return the rows that an imputer is to be fitted to, whether or not it will be.

    Args:
        method: the trained method.
        space: what the data are.
        train: training rows (n, *features) in the model's space.
        valid: the validation set.
        n_calib: number of calibration rows: if they are few, training rows are used in addition to the validation set.
    """
    scarce = len(valid if len(valid) else train) < SCARCE
    rows = ImputerRows(train, valid, scarce)
    if choose_imputer(method, space, rows) == "neighbours":
        return rows
    valid = valid if len(valid) else train
    n = COPIES if space.kind == "table" else ITERATED
    seen = torch.cat([train, valid]) if n_calib < FEW else valid
    return ImputerRows(evenly(train, n), evenly(seen, n), scarce)


def fit_imputer(trained: Trained, rows: ImputerRows, calibration: Calibration) -> Imputer:
    """Fit the imputer that suits the data, with the radii of its intervals."""
    kind = IMPUTERS[choose_imputer(trained.method, trained.space, rows)]
    return kind.fit(trained, rows, calibration).with_radii(trained, calibration.held_out)
