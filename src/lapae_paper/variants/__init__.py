"""The paper's networks, and methods and networks that the experiments compare with: made known through entry points.

Nothing heavy is imported here: `lapae train --help-all` lists them.
"""

from __future__ import annotations

from dataclasses import dataclass

from lapae.config import Entry
from lapae.config.fields import Share
from lapae.config.methods import LaplaceOptions


@dataclass(frozen=True)
class NoisyAdamOptions(LaplaceOptions):
    """Precision by squared gradients; --hessian only says its form, which must be diagonal."""

    forgetting: Share = 1e-3
    """The α of the update."""


noisy_adam = Entry(
    "Noisy Adam, to compare with", "lapae_paper.variants.noisy_adam:NoisyAdam", NoisyAdamOptions, research=True
)
paper_mnist = Entry("the paper's dense network for MNIST", "lapae_paper.variants.networks:paper_mnist", research=True)
paper_fashion = Entry(
    "the paper's convolutional network for FashionMNIST", "lapae_paper.variants.networks:paper_fashion", research=True
)
paper_celeba = Entry(
    "the paper's convolutional network for CelebA", "lapae_paper.variants.networks:paper_celeba", research=True
)
faulty_conv = Entry(
    "conv with the fault of the authors' code, to compare with",
    "lapae_paper.variants.faulty_upsampling:faulty_conv",
    research=True,
)
faulty_paper_fashion = Entry(
    "paper-fashion with the fault of the authors' code, to compare with",
    "lapae_paper.variants.faulty_upsampling:faulty_paper_fashion",
    research=True,
)
