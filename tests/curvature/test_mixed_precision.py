"""Mixed precision: activations come in bfloat16, the curvature is made in the precision of the weights."""

import pytest
import torch
from torch import nn

from lapae.curvature import diagonal, ggn_diagonal, record
from lapae.curvature.likelihoods import Gaussian
from lapae.networks import mlp

DENSE = mlp((1, 8, 8), 2, hidden=(16,))
# No max-pooling: the winner of equal bfloat16 values is another, a difference of the network and not of the curvature.
CONVOLUTIONAL = nn.Sequential(
    nn.Conv2d(1, 3, 3),
    nn.Tanh(),
    nn.Flatten(),
    nn.Linear(108, 2),
    nn.Linear(2, 18),
    nn.Tanh(),
    nn.Unflatten(1, (2, 3, 3)),
    nn.ConvTranspose2d(2, 1, 4, stride=2),
)


@pytest.mark.parametrize("method", ["approx", "exact", "mixed", "mc", "sketch", "bottleneck"])
@pytest.mark.parametrize("network", [DENSE, CONVOLUTIONAL])
def test_curvature_of_a_forward_pass_in_bfloat16(network, method):
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        tape = record(network, x)
    assert tape.output.dtype is torch.bfloat16
    low = diagonal(tape, Gaussian(), method, generator=torch.Generator().manual_seed(0))
    full = ggn_diagonal(network, x, Gaussian(), method, generator=torch.Generator().manual_seed(0))
    for name, h in full.items():
        assert low[name].dtype is torch.float32
        assert (low[name] - h).norm() <= 0.05 * h.norm()
