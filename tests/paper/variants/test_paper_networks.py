"""The paper's networks: their numbers of weights, and their names."""

from __future__ import annotations

from torch import nn

from lapae.config import NETWORKS
from lapae_paper.variants.networks import paper_celeba, paper_fashion, paper_mnist


def n_weights(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_the_paper_s_networks_have_its_numbers_of_weights():
    assert n_weights(paper_mnist()) == 1_068_306
    assert n_weights(paper_fashion()) == 17_164_739
    sizes = [p.shape for name, p in paper_mnist().named_parameters() if name.endswith("weight")]
    assert [tuple(s) for s in sizes] == [(512, 784), (256, 512), (2, 256), (256, 2), (512, 256), (784, 512)]
    celeba = [m for m in paper_celeba().modules() if isinstance(m, nn.Conv2d)]
    assert len(celeba) == 11
    assert {m.kernel_size for m in celeba} == {(5, 5)}


def test_they_can_be_named_and_are_not_listed():
    for name, network in (
        ("paper-mnist", paper_mnist),
        ("paper-fashion", paper_fashion),
        ("paper-celeba", paper_celeba),
    ):
        assert NETWORKS.find(name).load() is network
        assert name not in NETWORKS.visible()
