"""Autoencoders that know what they do not know.

The public names are imported on first use, so that `lapae --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

if TYPE_CHECKING:
    from lapae.arrow.fitting import fit_mapper
    from lapae.arrow.mapper import mapper
    from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian
    from lapae.estimator import LaplacianAutoencoder  # pyright: ignore[reportMissingImports]

_HOME = {
    "LaplacianAutoencoder": "lapae.estimator",
    "fit_mapper": "lapae.arrow.fitting",
    "mapper": "lapae.arrow.mapper",
    "Gaussian": "lapae.curvature.likelihoods",
    "Bernoulli": "lapae.curvature.likelihoods",
    "Categorical": "lapae.curvature.likelihoods",
}

__all__ = ["Bernoulli", "Categorical", "Gaussian", "LaplacianAutoencoder", "__version__", "fit_mapper", "mapper"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lapae' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
