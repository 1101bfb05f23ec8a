"""The same numbers on a GPU, and under CUDA graph capture (no host synchronisation, nothing that depends on data)."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, Case
from torch.testing import assert_close

from lapae.curvature import diagonal, ggn_blocks, ggn_diagonal, ggn_kfac, record, reference
from lapae.curvature.likelihoods import Bernoulli, Gaussian
from lapae.networks import conv, mlp

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_against_brute_force(case: Case):
    """On the same device: torch's upsampling by a broken factor is another function on a GPU than on a CPU."""
    module, x = case.module().cuda(), case.x().cuda()
    expected = reference.ggn_diagonal(module, x, Bernoulli())
    assert any(h.abs().sum() > 0 for h in expected.values())
    assert_close(ggn_diagonal(module, x, Bernoulli(), "exact"), expected)
    assert_close(ggn_blocks(module, x, Bernoulli()), reference.ggn_blocks(module, x, Bernoulli()))


@pytest.mark.parametrize("case", [case for case in CASES if "broken" not in case.name], ids=lambda case: case.name)
def test_as_on_the_cpu(case: Case):
    module, x = case.module(), case.x()
    for method in ("approx", "bottleneck", "mixed"):
        expected = ggn_diagonal(module, x, Bernoulli(), method)
        actual = ggn_diagonal(case.module().cuda(), x.cuda(), Bernoulli(), method)
        assert all(h.is_cuda for h in actual.values())
        assert_close({k: h.cpu() for k, h in actual.items()}, expected)
    if not any(getattr(layer, "groups", 1) > 1 for layer in module.modules()):
        factors = ggn_kfac(case.module().cuda(), x.cuda(), n_samples=None)
        assert_close(
            {k: f.g.cpu() for k, f in factors.items()}, {k: f.g for k, f in ggn_kfac(module, x, n_samples=None).items()}
        )


@pytest.mark.parametrize("method", ["approx", "mc", "sketch", "bottleneck", "mixed"])
@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_captured_in_a_graph(network, method):
    module = (
        mlp((1, 8, 8), 2, hidden=(9,)) if network == "mlp" else conv((1, 8, 8), 2, channels=(3, 4), hidden=(9,))
    ).cuda()
    x = torch.rand(5, 1, 8, 8, device="cuda")

    def work() -> dict[str, torch.Tensor]:
        tape = record(module, x)
        h = diagonal(tape, Gaussian(), method)
        (-Gaussian().log_prob(tape.output, x).sum()).backward()
        return h

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    x.uniform_()
    graph.replay()
    torch.cuda.synchronize()
    if method in ("mc", "sketch"):
        assert all(torch.isfinite(h).all() and h.sum() > 0 for h in captured.values())
    else:
        assert_close(captured, ggn_diagonal(module, x, method=method), rtol=1e-3, atol=1e-3)
