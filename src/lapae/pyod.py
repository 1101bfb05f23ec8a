"""A PyOD detector, `lapae.pyod.LAE`, for PyOD's ensembles and everything else that takes a `BaseDetector`."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from lapae.estimator import LaplacianAutoencoder

try:
    from pyod.models.base import BaseDetector  # pyright: ignore[reportMissingImports]
except ImportError:
    raise ImportError("lapae.pyod needs PyOD: pip install pyod") from None


class LAE(BaseDetector):
    """Laplacian autoencoder as a PyOD detector.

    Scores are anomaly scores: higher is more unusual. A fitted row is not compared with itself, so that
    `decision_scores_` are comparable with scores of new rows. Labels follow PyOD's rule, a share `contamination` of the
    fitted rows; `detector_.predict` flags by p-values instead, which is better for new rows.

    Args:
        contamination: share of the fitted rows that are outliers, or an object of PyThresh.
        latent_dim: see `LaplacianAutoencoder`.
        method: see there.
        hessian: see there.
        likelihood: see there.
        epochs: see there.
        batch_size: see there.
        learning_rate: see there.
        device: see there.
        random_state: see there.

    Attributes:
        detector_: the fitted `LaplacianAutoencoder`: p-values, reasons, intervals, imputation.
        decision_scores_: anomaly scores (n,) of the fitted rows.
        threshold_: score above which a row is labelled an outlier.
        labels_: (n,) 1 for outliers among the fitted rows, else 0.
    """

    def __init__(
        self,
        contamination: Any = 0.1,
        *,
        latent_dim: int | None = None,
        method: str = "online",
        hessian: str | None = None,
        likelihood: Any = "gaussian",
        epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        super().__init__(contamination=contamination)
        self.latent_dim = latent_dim
        self.method = method
        self.hessian = hessian
        self.likelihood = likelihood
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> LAE:
        """Fit to rows X (n, F), NaN for missing values; y is not used."""
        X = _rows(X)
        self._set_n_classes(y)
        own = {name: value for name, value in self.get_params(deep=False).items() if name != "contamination"}
        self.detector_ = LaplacianAutoencoder(**own).fit(X)
        self.decision_scores_ = self.decision_function(X)
        self._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return anomaly scores (n,) of rows X (n, F): higher is more unusual."""
        check_is_fitted(self, ["detector_"])
        return -self.detector_.score_samples(_rows(X))


def _rows(X: Any) -> np.ndarray:
    check: Any = check_array
    return check(X, dtype=np.float64, ensure_all_finite="allow-nan")
