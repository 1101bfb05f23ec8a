"""What makes the blocks of the guide quick enough to be run with the other tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

import lapae.fit
import lapae.predict.mc

EPOCHS, NETWORKS = 3, 5
"""Passes over the data, and networks drawn for a prediction, in the blocks of the guide and in the examples: they are
run to see that they run. The README, whose commands people try first, runs as it is written."""


@pytest.fixture
def short(monkeypatch):
    """Training, by the estimator or by a command, ends after a few epochs, and predictions draw few networks."""
    fit, n_distinct = lapae.fit.fit, lapae.predict.mc.n_distinct

    def few(config, *arguments, **options):
        epochs = min(EPOCHS if config.train.epochs is None else config.train.epochs, EPOCHS)
        return fit(replace(config, train=replace(config.train, epochs=epochs)), *arguments, **options)

    monkeypatch.setattr(lapae.fit, "fit", few)
    monkeypatch.setattr(lapae.predict.mc, "n_distinct", lambda method, n: min(NETWORKS, n_distinct(method, n)))
