"""A block of samples that is predicted once, whatever is asked about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lapae.predict.prediction import Prediction


@dataclass(frozen=True)
class Once:
    """A predictor that knows some samples: asked about these, in any order, it answers without predicting again.

    Attributes:
        predict: predicts other samples.
        x: the samples that are known, (B, *features).
        found: their prediction, with all that `predict` finds.
    """

    predict: Callable[[Tensor], Prediction]
    x: Tensor
    found: Prediction

    def __call__(self, x: Tensor) -> Prediction:
        """Predict samples x (n, *features)."""
        places: list[int] = []
        for row in x.flatten(1).numpy():
            place = self._places.get(row.tobytes())
            if place is None:
                return self.predict(x)
            places.append(place)
        return self.found if places == list(range(len(self.x))) else self.found.take(torch.tensor(places))

    @cached_property
    def _places(self) -> dict[bytes, int]:
        """Places of the samples by their bytes."""
        return {row.tobytes(): i for i, row in enumerate(self.x.flatten(1).numpy())}
