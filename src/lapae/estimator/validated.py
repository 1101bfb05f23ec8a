"""What a scikit-learn estimator is handed: frames as they are, anything else as an array that it has checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

if TYPE_CHECKING:
    from lapae.model import Model


def validated(estimator: Any, X: Any, *, reset: bool = False) -> Any:
    """X as the library takes it; `reset` is for `fit`, which notes the number and the names of the features."""
    if is_mixed(X):  # a frame of columns of several kinds goes in as it is
        if reset:
            estimator.n_features_in_ = X.shape[1]
            estimator.feature_names_in_ = np.asarray([str(name) for name in X.columns], dtype=object)
        return X
    if hasattr(X, "detach"):
        X = X.detach().cpu()
        X = (X.float() if str(X.dtype) == "torch.bfloat16" else X).numpy()  # numpy has no such type
    deep = isinstance(X, np.ndarray) and X.ndim > 2
    x: Any = validate_data(
        estimator,
        X,  # pyright: ignore[reportArgumentType]
        reset=reset,
        ensure_all_finite="allow-nan",
        ensure_2d=not deep,
        allow_nd=deep,
        dtype=None if deep else "numeric",
    )
    if deep and reset:
        for name in ("n_features_in_", "feature_names_in_"):
            estimator.__dict__.pop(name, None)
    return x if x.dtype.kind == "f" or (deep and x.dtype in (np.uint8, np.bool_)) else x.astype(np.float64)


def holds_integers(X: Any) -> bool:
    """Whether an array or a tensor holds whole numbers by its type; booleans are none."""
    return str(getattr(X, "dtype", "")).removeprefix("torch.").startswith(("int", "uint"))


def is_mixed(X: Any) -> bool:
    """Whether X is a frame, of pandas or polars, with columns that are no numbers."""
    if not hasattr(X, "columns") or not hasattr(X, "dtypes"):
        return False
    kinds = {str(kind).lower() for kind in np.atleast_1d(np.asarray(X.dtypes, dtype=object))}
    return not all(kind.startswith(("float", "int", "uint")) for kind in kinds)


class Fitted:
    """What every verb of a fitted estimator begins with."""

    model_: Model

    def _fitted(self) -> Model:
        check_is_fitted(self)
        return self.model_

    def _validated(self, X: Any) -> Any:
        check_is_fitted(self)
        return validated(self, X)
