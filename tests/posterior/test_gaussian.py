"""The posterior as a distribution: against torch.distributions, and in a file."""

from __future__ import annotations

import pytest
import torch
from explicit import EVERY, fitted, matrix
from safetensors.torch import save_file
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from lapae.errors import RunError
from lapae.posterior import WeightPosterior

every_form = pytest.mark.parametrize("form", sorted(EVERY))


def posterior_of(form: str, prior: str = "many", temperature: float = 1.6) -> WeightPosterior:
    module, precision = fitted(form, prior, temperature)
    return WeightPosterior(dict(module.named_parameters()), precision)


def oracle(posterior: WeightPosterior) -> MultivariateNormal:
    return MultivariateNormal(posterior.precision.join(posterior.mean), precision_matrix=matrix(posterior.precision))


@every_form
def test_density_and_entropy(form):
    posterior = posterior_of(form)
    exact = oracle(posterior)
    flat = exact.mean + torch.randn(len(exact.mean), dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    assert_close(posterior.log_prob(posterior.precision.split(flat)), exact.log_prob(flat))
    assert_close(posterior.log_prob(posterior.mean), exact.log_prob(exact.mean))
    assert_close(posterior.entropy(), exact.entropy())


@every_form
def test_samples_have_the_mean_and_the_covariance(form):
    posterior = posterior_of(form)
    n, exact = 20_000, oracle(posterior)
    drawn = posterior.sample(n, torch.Generator().manual_seed(5))
    assert {name: value.shape[1:] for name, value in drawn.items()} == posterior.precision.shapes
    flat = torch.cat([drawn[name].flatten(1) for name in posterior.precision.shapes], dim=1)
    white = (flat - exact.mean) @ torch.linalg.cholesky(matrix(posterior.precision))  # standard normal, if it is right
    assert white.mean(0).abs().max() < 5 / n**0.5
    assert (white.T @ white / n - torch.eye(flat.shape[1], dtype=torch.float64)).abs().max() < 7 / n**0.5


@every_form
def test_a_generator_fixes_the_sample(form):
    posterior = posterior_of(form)
    one, same, other = (posterior.sample(2, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    for name in one:
        assert torch.equal(one[name], same[name])
        assert not torch.equal(one[name], other[name])


def test_mean_of_other_parameters():
    module, precision = fitted("diagonal")
    mean = dict(module.named_parameters())
    mean.pop("encoder.0.bias")
    with pytest.raises(ValueError, match="not over the same parameters"):
        WeightPosterior(mean, precision)


@every_form
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_saved_and_loaded_it_is_the_same(form, dtype, tmp_path):
    posterior = posterior_of(form)
    posterior.precision.to(dtype)
    posterior.mean = {name: value.to(dtype) for name, value in posterior.mean.items()}
    posterior.save(tmp_path / "q")
    loaded = WeightPosterior.load(tmp_path / "q")
    assert type(loaded.precision) is type(posterior.precision)
    assert list(loaded.mean) == list(posterior.mean)
    before, after = (q.sample(3, torch.Generator().manual_seed(0)) for q in (posterior, loaded))
    for name in before:
        assert after[name].dtype == dtype
        assert torch.equal(after[name], before[name])
    assert torch.equal(loaded.entropy(), posterior.entropy())


@pytest.mark.parametrize("how", ["empty", "truncated", "flipped"])
def test_damaged_file(how, tmp_path):
    path = tmp_path / "q"
    posterior_of("kron").save(path)
    content = path.read_bytes()
    last = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes({"empty": b"", "truncated": content[: len(content) // 2], "flipped": last}[how])
    with pytest.raises(RunError, match="damaged"):
        WeightPosterior.load(path)


def test_foreign_and_absent_files(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(RunError, match="not written by lapae"):
        WeightPosterior.load(tmp_path / "foreign")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(RunError, match="damaged or not"):
        WeightPosterior.load(tmp_path / "text")
    with pytest.raises(RunError, match="no file"):
        WeightPosterior.load(tmp_path / "absent")


def test_another_file_of_lapae(tmp_path):
    from lapae.runs import tensor_file

    (tmp_path / "model").write_bytes(tensor_file({"a": torch.ones(2)}, {"format": "lapae model 1"}))
    with pytest.raises(RunError, match="is not a posterior"):
        WeightPosterior.load(tmp_path / "model")
