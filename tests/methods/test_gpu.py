"""The baselines on a GPU: the same networks as on the CPU, and draws that depend on the seed alone."""

from typing import Any

import pytest
import torch
from narrow import sure

from lapae.config import MethodConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.methods import build
from lapae.methods.step import StepContext
from lapae.networks import conv, mlp
from lapae.predict import predict

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
NETWORKS = {
    "dense": lambda: mlp((1, 8, 8), 2, hidden=(16,)),
    "conv": lambda: conv((1, 8, 8), 2, channels=(4,), hidden=(8,)),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["ae", "ae-var", "vae", "dropout", "ensemble", "bbb"])
def test_a_gpu_says_what_the_cpu_says(name, network):
    torch.manual_seed(0)
    x = torch.rand(40, 1, 8, 8)
    method = build(MethodConfig(name), NETWORKS[network], Gaussian(), 100)
    on_cpu = predict(method, x, n_samples=400)
    method.cuda()
    on_gpu, in_chunks = (predict(method, x, n_samples=400, draws_at_once=n) for n in (None, 7))
    # noise differs between devices: means of 400 draws agree to a few standard errors
    sampled = method.stochastic and method.distinct_draws is None
    close: dict[str, Any] = (
        {"atol": 5 * sure(on_cpu.x_var).max().sqrt().item() / 20, "rtol": 0.0}
        if sampled
        else {"atol": 1e-4, "rtol": 1e-3}
    )
    torch.testing.assert_close(on_gpu.x_mean, on_cpu.x_mean, **close)
    torch.testing.assert_close(sure(on_gpu.x_var).mean(), sure(on_cpu.x_var).mean(), rtol=0.1, atol=1e-5)
    torch.testing.assert_close(on_gpu.x_var, in_chunks.x_var, rtol=1e-2, atol=1e-5)
    loss = method(x.cuda(), StepContext(torch.Generator("cuda").manual_seed(0)))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())
