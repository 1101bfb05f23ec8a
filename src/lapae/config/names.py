"""Registries of what a model is made of: networks, activations, likelihoods, Hessians.

Everything that a configuration can name is listed here and nowhere else. Methods have their own file in this folder;
tasks, data sets and commands are listed in theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lapae.registry import Entry, Registry

NETWORKS: Registry[Entry] = Registry(
    "network",
    {
        "mlp": Entry("dense layers", "lapae.networks.builtin:mlp"),
        "conv": Entry("convolutions for images, then dense layers", "lapae.networks.builtin:conv"),
        "patch": Entry("dense layers at each position of feature maps", "lapae.networks.patch:patch"),
    },
    group="lapae.networks",
)
"""An entry leads to a function `(shape, latent_dim, **options) -> Autoencoder`."""

ACTIVATIONS: Registry[Entry] = Registry(
    "activation",
    {
        "tanh": Entry("hyperbolic tangent, as in the paper", "torch.nn:Tanh"),
        "relu": Entry("rectified linear unit", "torch.nn:ReLU"),
        "gelu": Entry("Gaussian error linear unit", "torch.nn:GELU"),
        "silu": Entry("sigmoid linear unit", "torch.nn:SiLU"),
        "elu": Entry("exponential linear unit", "torch.nn:ELU"),
        "leaky_relu": Entry("rectified linear unit with a slope below zero", "torch.nn:LeakyReLU"),
        "softplus": Entry("smooth rectified linear unit", "torch.nn:Softplus"),
        "sigmoid": Entry("logistic function", "torch.nn:Sigmoid"),
    },
)

LIKELIHOODS: Registry[Entry] = Registry(
    "likelihood",
    {
        "gaussian": Entry("real numbers, with normal noise", "lapae.curvature.likelihoods:Gaussian"),
        "student": Entry("real numbers with outliers, by heavy tails", "lapae.curvature.likelihoods:StudentT"),
        "bernoulli": Entry("zeros and ones, or intensities from 0 to 1", "lapae.curvature.likelihoods:Bernoulli"),
        "categorical": Entry("one-hot classes along the first axis", "lapae.curvature.likelihoods:Categorical"),
    },
)


FEATURES: Registry[Entry] = Registry(
    "features",
    {
        "efficientnet_lite0": Entry(
            "EfficientNet-Lite0, trained on photographs", "lapae.features.efficientnet:EfficientNetLite0.trained"
        )
    },
)
"""Frozen networks whose features can be learned instead of pixels."""


@dataclass(frozen=True)
class Hessian:
    """Curvature of a Laplace posterior."""

    title: str
    form: Literal["diagonal", "block", "kron", "lowrank"]
    """Form of the precision that it yields (`lapae.posterior`)."""


HESSIANS: Registry[Hessian] = Registry(
    "hessian",
    {
        "approx": Hessian("the paper's diagonal, at linear cost", "diagonal"),
        "exact": Hessian("the exact diagonal, quadratic in the features", "diagonal"),
        "mixed": Hessian("approx where feature maps are large, exact near the code", "diagonal"),
        "mc": Hessian("an unbiased estimate of the exact diagonal by sampled vectors", "diagonal"),
        "sketch": Hessian("an unbiased estimate for any module, by one more backward pass", "diagonal"),
        "bottleneck": Hessian("exact in the encoder at linear cost, approx in the decoder", "diagonal"),
        "block": Hessian("a full block for each layer", "block"),
        "lowrank": Hessian("covariances between all weights, from random vectors; for any module", "lowrank"),
        "kfac": Hessian("Kronecker factors for each layer", "kron"),
    },
)
