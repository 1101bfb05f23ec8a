"""One rule per class of layers; importing this package registers them."""

from lapae.curvature.rules import activations, affine, convolution, groups, linear_maps, norm

__all__ = ["activations", "affine", "convolution", "groups", "linear_maps", "norm"]
