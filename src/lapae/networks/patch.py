"""An autoencoder of feature maps that treats all positions in the same way: one small dense network for each vector."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from lapae.networks.builtin import Autoencoder, Shape, dense


def patch(
    shape: Shape, latent_dim: int, *, hidden: Sequence[int] = (64,), activation: type[nn.Module] = nn.GELU
) -> Autoencoder:
    """Build an autoencoder of maps (h, w, D): D - hidden - K - reversed hidden - D at each position.

    The code of a sample is (h, w, K).
    """
    if len(shape) != 3:
        raise ValueError(f"the patch network needs maps of shape (h, w, D), got data of shape {shape}")
    sizes = (shape[-1], *hidden, latent_dim)
    return Autoencoder(dense(sizes, activation), dense(sizes[::-1], activation))
