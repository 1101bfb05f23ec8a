"""Data that a fitted estimator makes: missing values, what it expected in place of others, and new data."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from lapae.estimator.validated import Fitted, is_mixed


class Making(Fitted):
    """To impute, to say what was expected, and to sample; a part of `LaplacianAutoencoder`."""

    def impute(self, X: Any, n_samples: int | None = None) -> np.ndarray:
        """X with its missing values (NaN) filled in, observed ones untouched.

        Args:
            X: n data.
            n_samples: plausible completions of each; the best guess where None.

        Returns:
            The best guess (n, ...), or completions (n_samples, n, ...), each from a network and noise of its own: their
            spread is the uncertainty of the missing values.
        """
        filled = self._fitted().impute(self._validated(X), n_samples)
        return self.model_.space.uncode(filled, X) if hasattr(X, "columns") and is_mixed(X) else filled

    def impute_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Where missing values (NaN) lie.

        Args:
            X: n data.
            level: share of missing values that lie within.

        Returns:
            low, high: arrays like X; an observed value is its own interval.
        """
        return self._fitted().impute_interval(self._validated(X), level)

    def counterfactual(self, X: Any, top: int | None = None, level: float = 0.9) -> tuple[np.ndarray, ...]:
        """What the model would have expected in place of each value, with an interval.

        In a table that is what the other values of the row say: each is hidden in its turn and filled in, as `impute`
        does, without the value that `explain` names first, which would mislead. Of images and series it is the
        reconstruction, in which an unusual value has a part.

        Args:
            X: n data.
            top: ask only about so many values of each datum, those that `explain` names first; about all where None.
            level: share of the values of normal data that lie within.

        Returns:
            expected, low, high: arrays like X, categories as their numbers; NaN where not asked about.
        """
        return self._fitted().counterfactual(self._validated(X), top, level)

    def sample(self, n_samples: int = 1, random_state: Any = None, *, noise: bool | None = None) -> np.ndarray:
        """New data (n_samples, ...): codes from their density, decoded by networks drawn from the posterior.

        Args:
            n_samples: how many.
            random_state: seed or generator; the one of `fit` where None.
            noise: add the residuals of rows that were held out; to all but images by default.

        Returns:
            (n_samples, ...), a frame where X of `fit` was a frame with categories, booleans or dates.
        """
        if int(n_samples) < 1:
            raise ValueError(f"n_samples={n_samples}: expected at least 1")
        seed = None if random_state is None else int(check_random_state(random_state).randint(2**31 - 1))
        made, space = self._fitted().sample(int(n_samples), seed, noise=noise), self.model_.space
        return space.uncode(made) if any(column.kind != "number" for column in space.columns or ()) else made
