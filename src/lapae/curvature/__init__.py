"""The generalised Gauss-Newton matrix of any network. See README.md in this folder.

This package depends on torch only.
"""

from lapae.curvature import reference
from lapae.curvature.call import Call, call
from lapae.curvature.collect import Kronecker
from lapae.curvature.containers import Residual, Sum
from lapae.curvature.forward import Forward, record, walk
from lapae.curvature.ggn import blocks, diagonal, ggn_blocks, ggn_diagonal, ggn_kfac, kfac
from lapae.curvature.rules.activations import Elementwise
from lapae.curvature.rules.base import Leaf, Params, Rule, UnknownLayerError, register
from lapae.curvature.rules.linear_maps import LinearMap

__all__ = [
    "Call",
    "Elementwise",
    "Forward",
    "Kronecker",
    "Leaf",
    "LinearMap",
    "Params",
    "Residual",
    "Rule",
    "Sum",
    "UnknownLayerError",
    "blocks",
    "call",
    "diagonal",
    "ggn_blocks",
    "ggn_diagonal",
    "ggn_kfac",
    "kfac",
    "record",
    "reference",
    "register",
    "walk",
]
