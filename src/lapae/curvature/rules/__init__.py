"""One rule a class of layers."""

from lapae.curvature.rules import activations, affine, convolution, linear_maps, norm
from lapae.curvature.rules.activations import Elementwise
from lapae.curvature.rules.base import (
    CHUNK_FLOATS,
    Leaf,
    Params,
    Rule,
    UnknownLayerError,
    find,
    hollow,
    identity_rows,
    product_with_itself,
    register,
)
from lapae.curvature.rules.linear_maps import LinearMap

__all__ = [
    "CHUNK_FLOATS",
    "Elementwise",
    "Leaf",
    "LinearMap",
    "Params",
    "Rule",
    "UnknownLayerError",
    "activations",
    "affine",
    "convolution",
    "find",
    "hollow",
    "identity_rows",
    "linear_maps",
    "norm",
    "product_with_itself",
    "register",
]
