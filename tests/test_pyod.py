"""The detector of PyOD; where PyOD is not installed, over a stand-in with what its base class gives."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone


class StandIn(BaseEstimator):
    """What `pyod.models.base.BaseDetector` 3.6 does of what the detector uses."""

    def __init__(self, contamination=0.1):
        self.contamination = contamination

    def _set_n_classes(self, y):
        self._classes = 2 if y is None else len(np.unique(y))

    def _process_decision_scores(self: Any):
        self.threshold_ = np.percentile(self.decision_scores_, 100 * (1 - self.contamination))
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(int)

    def predict(self: Any, X):
        return (self.decision_function(X) > self.threshold_).astype(int)


@pytest.fixture
def detector(monkeypatch):
    if "pyod" not in sys.modules:
        try:
            import pyod.models.base  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError:
            base = ModuleType("pyod.models.base")
            base.BaseDetector = StandIn  # pyright: ignore[reportAttributeAccessIssue]
            for name, module in {"pyod": ModuleType("pyod"), "pyod.models": ModuleType("pyod.models")}.items():
                monkeypatch.setitem(sys.modules, name, module)
            monkeypatch.setitem(sys.modules, base.__name__, base)
            monkeypatch.delitem(sys.modules, "lapae.pyod", raising=False)
    from lapae.pyod import LAE

    return LAE(contamination=0.1, epochs=3, random_state=0)


def rows(n: int = 200) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 2)) @ rng.standard_normal((2, 4)) + 0.1 * rng.standard_normal((n, 4))
    x[: n // 10] = 3 * rng.standard_normal((n // 10, 4))
    return x


def test_scores_labels_and_threshold(detector):
    x = rows()
    assert detector.fit(x) is detector
    assert detector.labels_.sum() == 20
    assert detector.labels_[:20].sum() >= 16
    np.testing.assert_array_equal(detector.decision_scores_, detector.decision_function(x))
    np.testing.assert_array_equal(detector.predict(x), detector.labels_)
    assert detector.decision_function(x + 100).min() > detector.threshold_
    assert detector.detector_.p_value(x + 100).max() <= 0.05


def test_ensembles_clone_it(detector):
    again: Any = clone(detector)
    assert again.get_params() == detector.get_params()
    assert again.set_params(latent_dim=1).fit(rows()).detector_.model_.config.model.latent_dim == 1


def test_missing_values(detector):
    x = rows()
    x[np.random.default_rng(1).random(x.shape) < 0.1] = np.nan
    assert np.isfinite(detector.fit(x).decision_scores_).all()
