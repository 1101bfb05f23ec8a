"""One rule per class of layers."""

from lapae.curvature.rules import activations, affine, convolution, groups, linear_maps, norm
from lapae.curvature.rules.activations import Elementwise
from lapae.curvature.rules.base import (
    CHUNK_FLOATS,
    Leaf,
    Params,
    Rule,
    UnknownLayerError,
    couples,
    find,
    hollow,
    identity_rows,
    product_with_itself,
    register,
    row_bound,
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
    "couples",
    "find",
    "groups",
    "hollow",
    "identity_rows",
    "linear_maps",
    "norm",
    "product_with_itself",
    "register",
    "row_bound",
]
