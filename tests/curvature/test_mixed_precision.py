"""Mixed precision: activations come in bfloat16, the curvature is made in the precision of the weights."""

import pytest
import torch

from lapae.curvature import diagonal, ggn_diagonal, record
from lapae.models import Gaussian, conv, mlp


@pytest.mark.parametrize("method", ["approx", "exact", "mixed", "mc", "bottleneck"])
@pytest.mark.parametrize("network", [mlp((1, 8, 8), 2, hidden=(16,)), conv((1, 8, 8), 2, channels=(3, 4), hidden=(8,))])
def test_curvature_of_a_forward_pass_in_bfloat16(network, method):
    x = torch.rand(5, 1, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        tape = record(network, x)
    assert tape.output.dtype is torch.bfloat16
    seed = {"generator": torch.Generator().manual_seed(0)}
    low = diagonal(tape, Gaussian(), method, **seed)
    full = ggn_diagonal(network, x, Gaussian(), method, generator=torch.Generator().manual_seed(0))
    for name, h in full.items():
        assert low[name].dtype is torch.float32
        assert (low[name] - h).norm() <= 0.05 * h.norm()
