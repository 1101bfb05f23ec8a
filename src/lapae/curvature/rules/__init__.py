"""One rule a class of layers."""

from lapae.curvature.rules import activations, affine, linear_maps, norm
from lapae.curvature.rules.activations import Elementwise
from lapae.curvature.rules.base import Leaf, Params, Rule, UnknownLayerError, find, identity_rows, register
from lapae.curvature.rules.linear_maps import LinearMap

__all__ = [
    "Elementwise",
    "Leaf",
    "LinearMap",
    "Params",
    "Rule",
    "UnknownLayerError",
    "activations",
    "affine",
    "find",
    "identity_rows",
    "linear_maps",
    "norm",
    "register",
]
