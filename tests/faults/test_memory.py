"""Out of memory: smaller pieces give the same numbers, and what never fits ends in an error that says what to try."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch
from torch import nn

from lapae import curvature
from lapae.config import MethodConfig
from lapae.curvature import ggn, ggn_blocks, ggn_diagonal, ggn_kfac
from lapae.curvature.chunking import OutOfMemory, is_out_of_memory, within_memory
from lapae.curvature.likelihoods import Bernoulli, Gaussian
from lapae.methods import build
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder
from lapae.networks.missing import filling
from lapae.predict import mc, predict

CPU = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate"
ERRORS = [torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), RuntimeError(CPU)]
X = torch.randn(23, 5, generator=torch.Generator().manual_seed(1))


def network() -> Autoencoder:
    torch.manual_seed(0)
    return Autoencoder(
        nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)),
        nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 5)),
    )


def failing_above(monkeypatch, owner, name: str, most: int, error: Exception, size) -> list[int]:
    """Have a function fail where `size` of its arguments is above `most`; returns the sizes that went through."""
    function, seen = getattr(owner, name), []

    def limited(*args, **kwargs):
        n = size(*args)
        if n > most:
            raise error
        seen.append(n)
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, limited)
    return seen


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["approx", "exact", "mixed", "bottleneck"])
def test_curvature_in_smaller_chunks_is_the_same(method, error, monkeypatch):
    whole = ggn_diagonal(network().double(), X.double(), Bernoulli(), method)
    seen = failing_above(monkeypatch, ggn, "diagonal", 5, error, lambda tape, *_: len(tape.output))
    message = rf"out of memory in the {method} curvature \(samples\), 23 at a time; trying 11"
    with pytest.warns(UserWarning, match=message):
        chunked = ggn_diagonal(network().double(), X.double(), Bernoulli(), method)
    assert seen == [5, 5, 5, 5, 3]
    assert whole.keys() == chunked.keys()
    for name in whole:
        torch.testing.assert_close(chunked[name], whole[name], rtol=1e-10, atol=1e-12)


def test_blocks_and_kronecker_factors_in_smaller_chunks(monkeypatch):
    module, x = network().double(), X.double()
    whole, factors = ggn_blocks(module, x), ggn_kfac(module, x, n_samples=None)
    size = lambda module, part, *_: len(part)  # noqa: E731
    failing_above(monkeypatch, ggn, "begin", 4, MemoryError(), size)
    with pytest.warns(UserWarning, match="out of memory in the blocks"):
        chunked = ggn_blocks(module, x)
    with pytest.warns(UserWarning, match="out of memory in the kfac curvature"):
        chunked_factors = ggn_kfac(module, x, n_samples=None)
    for name in whole:
        torch.testing.assert_close(chunked[name], whole[name])
    for name in factors:
        torch.testing.assert_close(chunked_factors[name].block(), factors[name].block())


@pytest.mark.parametrize("hessian", ["exact", "kfac", "block"])
def test_posthoc_fit_goes_on_in_smaller_chunks(hessian, monkeypatch):
    """With missing values too: which outputs are observed goes with the data."""
    x = X.clone()
    x[3, 1] = x[17, 4] = torch.nan
    config = MethodConfig(method="posthoc", hessian=hessian, optimize_prior="none")

    def posterior():
        method = build(config, filling(network), Gaussian().for_missing(), len(x))
        torch.manual_seed(5)
        method.finish(lambda: [x], len(x), StepContext())
        return method.state_dict()

    name = {"exact": "diagonal", "block": "blocks", "kfac": "kfac"}[hessian]
    whole = posterior()
    seen = failing_above(monkeypatch, curvature, name, 6, torch.OutOfMemoryError("CUDA"), lambda t, *_: len(t))
    with pytest.warns(UserWarning, match=f"out of memory in hessian {hessian}"):
        chunked = posterior()
    assert sum(seen) == len(x)
    assert max(seen) <= 6
    if hessian != "kfac":  # sampled: other parts draw other vectors
        for key in whole:
            torch.testing.assert_close(chunked[key], whole[key], rtol=1e-4, atol=1e-4)


def trained(method: str = "online"):
    made = build(MethodConfig(method), network, Gaussian(0.5), len(X))
    return made.double()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("most", [40, 7, 1])
def test_mc_in_smaller_chunks_is_the_same(most, error, monkeypatch):
    """Fewer networks at once first (40 pairs of 23 data), then fewer data."""
    method, options = trained(), {"n_samples": 9, "want": ("codes", "covariance", "outputs", "density", "error")}
    whole = predict(method, X, **options)
    failing_above(monkeypatch, mc.Statistics, "add", most, error, lambda s, draws, n: n * len(s.x))
    done = []
    with pytest.warns(UserWarning, match="out of memory in a prediction"):
        chunked = predict(method, X, progress=done.append, **options)
    assert sum(done) == 9 * len(X)
    for name in ("z_mean", "z_var", "z_cov", "x_mean", "x_var", "x_noise", "log_likelihood", "squared_error"):
        torch.testing.assert_close(getattr(chunked, name), getattr(whole, name))


@pytest.mark.parametrize("predictive", ["linearized", "moments"])
def test_closed_forms_in_smaller_chunks_are_the_same(predictive, monkeypatch):
    from lapae.predict import predictive as front

    method = trained()
    whole = predict(method, X, predictive=predictive)
    seen = failing_above(monkeypatch, front, predictive, 6, MemoryError(), lambda method, part: len(part))
    with pytest.warns(UserWarning, match=f"out of memory in the {predictive} predictive"):
        chunked = predict(method, X, predictive=predictive, batch_size=12)
    assert seen == [6, 6, 6, 5]  # the second batch does not try what failed in the first
    for name in ("z_mean", "z_var", "x_mean", "x_var", "log_likelihood"):
        torch.testing.assert_close(getattr(chunked, name), getattr(whole, name))


def test_hopeless_cases_say_what_to_try(monkeypatch):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    failing_above(monkeypatch, ggn, "diagonal", 0, error, lambda *_: 1)
    advice = r"the exact curvature \(samples\), one at a time too: try hessian approx.*Tried to allocate 2 GiB"
    with pytest.warns(UserWarning, match="out of memory"), pytest.raises(OutOfMemory, match=advice):
        ggn_diagonal(network(), X, method="exact")
    failing_above(monkeypatch, mc.Statistics, "add", 0, error, lambda *_: 1)
    with (
        pytest.warns(UserWarning, match="out of memory"),
        pytest.raises(OutOfMemory, match=r"in a prediction .* try device cpu"),
    ):
        predict(trained(), X, n_samples=2)


def test_other_errors_are_raised_as_they_are():
    assert not is_out_of_memory(ValueError("out of memory"))
    assert not is_out_of_memory(RuntimeError("size mismatch"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))

    def attempt(size):
        raise RuntimeError("size mismatch")

    with pytest.raises(RuntimeError, match="size mismatch"):
        within_memory(attempt, 8, "x", "y")


LIMITED = """
import resource, torch, warnings
from torch import nn
from lapae.curvature import ggn_diagonal
torch.set_num_threads(1)
module = nn.Sequential(nn.Flatten(), nn.Linear(4096, 4), nn.Tanh(), nn.Linear(4, 4096), nn.Tanh(), nn.Linear(4096, 1))
x = torch.randn(4096, 4096)
ggn_diagonal(module, x[:2])  # what the libraries take once
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 96 * 2**20, -1))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    h = ggn_diagonal(module, x)
messages = [str(w.message) for w in caught]
assert any("out of memory in the approx curvature" in m for m in messages), messages
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
whole = ggn_diagonal(module, x)
for name in whole:
    torch.testing.assert_close(h[name], whole[name], rtol=1e-3, atol=1e-3)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS") or sys.platform != "linux", reason="needs Linux's limits")
def test_for_real_under_a_limit_of_the_process():
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
