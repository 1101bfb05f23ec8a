"""Features of images from a frozen network that was trained on other images: what a model learns in place of pixels.

A network is a name or a module that takes images (B, 3, H, W) with values from 0 to 1 and returns a feature map
(B, C, h, w), or several of them.
"""

from lapae.features.maps import feature_maps, load

__all__ = ["feature_maps", "load"]
