"""One function for three predictives: which is called, what comes back, and that they agree where they must."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from narrow import sure
from torch import nn
from torch.distributions import Normal
from torch.testing import assert_close

from lapae.config import MethodConfig, MethodOptions
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian
from lapae.methods.ae import AE
from lapae.methods.online import Online
from lapae.methods.posthoc import PostHoc
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder
from lapae.predict import PREDICTIVES, Prediction, Predictive, linearized, moments, predict
from lapae.predict import mc as monte_carlo
from lapae.predict.prediction import Quantity

ALL = ("codes", "covariance", "outputs", "density", "error")
CLOSED = ("linearized", "moments")
LIKELIHOODS = {"gaussian": Gaussian(0.6), "bernoulli": Bernoulli(), "categorical": Categorical()}


def network() -> Autoencoder:
    """One hidden layer in the encoder, one layer in the decoder: two codes that share hidden units."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    return Autoencoder(encoder, nn.Sequential(nn.Linear(2, 6), nn.Unflatten(1, (3, 2))))


def data(n: int = 7) -> torch.Tensor:
    x = torch.rand(n, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return x / x.sum(1, keepdim=True)


def fitted(likelihood="gaussian", prior_precision: float = 10.0, cls: type = PostHoc, **options):
    name = "posthoc" if cls is PostHoc else "online"
    config = MethodConfig.taking(name, prior_precision=prior_precision, optimize_prior="none", **options)
    method = cls(network, LIKELIHOODS[likelihood], config.options, 7).double().eval()
    method.posterior.set_prior(prior_precision)
    if cls is PostHoc:
        method.finish(lambda: [data()], 7, StepContext())
    return method


def assert_same(a: Prediction, b: Prediction, **tolerance) -> None:
    assert (a.n_draws, a.x_learned, set(a.values)) == (b.n_draws, b.x_learned, set(b.values))
    for name, left in a.values.items():
        assert_close(left, b.values[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("cls", [PostHoc, Online])
def test_each_name_calls_its_function(cls):
    method, x = fitted(cls=cls), data()
    (block,) = monte_carlo.predict_blocks(method, x, n_samples=9, seed=3)
    assert_same(predict(method, x, n_samples=9, seed=3), block)
    with torch.no_grad():
        for name, function in (("linearized", linearized), ("moments", moments)):
            found, expected = predict(method, x, predictive=name, want=ALL), function(method, x)
            assert_close(found.z_mean, expected.z_mean)
            assert_close(found.z_cov, expected.z_cov)
            assert_close(found.z_var, sure(expected.z_cov).diagonal(dim1=1, dim2=2))
            assert_close(found.x_mean, expected.output)
            assert_close(found.x_var, expected.output_var)
            assert found.n_draws == 1


@pytest.mark.parametrize("predictive", PREDICTIVES)
def test_only_what_is_wanted_comes_back(predictive):
    method, x = fitted(), data()
    whole = predict(method, x, predictive=predictive, want=ALL, n_samples=5)
    wanted: dict[Quantity, set[str]] = {
        "codes": {"z_mean", "z_var"},
        "covariance": {"z_cov"},
        "outputs": {"x_mean", "x_var", "x_noise"},
        "density": {"log_likelihood"},
        "error": {"squared_error"},
    }
    for quantity, names in wanted.items():
        part = predict(method, x, predictive=predictive, want=[quantity], n_samples=5)
        assert set(part.values) - {"squared_error_of_mean"} == names
        for name in names:
            assert_close(getattr(part, name), getattr(whole, name))


@pytest.mark.parametrize("predictive", PREDICTIVES)
def test_data_come_in_any_form(predictive):
    method, x = fitted(), data()
    options = {"predictive": predictive, "want": ALL, "n_samples": 5}
    whole = predict(method, x, **options)
    assert_same(predict(method, x, batch_size=3, **options), whole)
    assert_same(predict(method, iter(x.split(2)), **options), whole)
    blocks = list(Predictive(predictive, 5).blocks(method, x, ALL))
    assert_close(torch.cat([sure(block.z_mean) for block in blocks]), whole.z_mean)


@pytest.mark.parametrize("predictive", CLOSED)
def test_progress_and_state(predictive):
    method, done = fitted().train(), []
    predict(method, data(), predictive=predictive, batch_size=3, progress=done.append)
    assert done == [3, 3, 1]
    assert all(module.training for module in method.modules())


@pytest.mark.parametrize("predictive", CLOSED)
def test_densities_and_errors_of_a_gaussian(predictive):
    method, x = fitted(), data()
    found = predict(method, x, predictive=predictive)
    total = (sure(found.x_var) + 0.36).sqrt()
    assert_close(found.x_noise, torch.full_like(x, 0.36))
    assert_close(found.log_likelihood, Normal(sure(found.x_mean), total).log_prob(x).sum((1, 2)))
    error = (sure(found.x_mean) - x).square().sum((1, 2))
    assert_close(found.squared_error_of_mean, error)
    assert_close(found.squared_error, error + sure(found.x_var).sum((1, 2)))


@pytest.mark.parametrize("likelihood", sorted(LIKELIHOODS))
def test_they_agree_as_the_posterior_narrows(likelihood):
    """Means to the last digits; variances to the error of 3,000 draws. `moments` takes outputs as independent."""
    method, x = fitted(likelihood, prior_precision=1e7), data()
    sampled, line, moment = (predict(method, x, predictive=p, want=ALL, n_samples=3000) for p in PREDICTIVES)
    for found in (line, moment):
        for name in ("z_mean", "x_mean", "log_likelihood", "squared_error", "x_noise"):
            assert_close(getattr(found, name), getattr(sampled, name), rtol=1e-3, atol=1e-3)
        assert_close(found.z_var, sampled.z_var, rtol=0.15, atol=0)
    assert_close(line.x_var, sampled.x_var, rtol=0.2, atol=0)
    scale = sure(sampled.z_var).mean()
    assert_close(sure(line.z_cov) / scale, sure(sampled.z_cov) / scale, rtol=0.15, atol=0.1)
    assert_close(moment.x_var, sampled.x_var, rtol=0.6, atol=0)


def test_moments_of_classes_take_logits_as_independent():
    """Var π_c = Σ_d (∂π_c/∂f_d)² v_d in full; the diagonal alone would leave out what the other logits do."""
    method, x = fitted("categorical"), data()
    found = predict(method, x, predictive="moments", want=["outputs"])
    with torch.no_grad():
        logits = moments(method, x)
        probs = logits.output.softmax(1)
        j = torch.diag_embed(probs.mT) - probs.mT[..., :, None] * probs.mT[..., None, :]  # (B, positions, C, C)
        expected = torch.einsum("bpcd,bdp->bcp", j.square(), logits.output_var)
    assert_close(found.x_var, expected)


# --- what cannot be ---


@pytest.mark.parametrize("predictive", CLOSED)
def test_methods_without_a_posterior(predictive):
    method = AE(network, Gaussian(), MethodOptions(), 7).double()
    with pytest.raises(
        ValueError, match=f"the {predictive} predictive needs a posterior over weights .*got AE; use mc"
    ):
        predict(method, data(), predictive=predictive)


def test_unknown_predictive():
    with pytest.raises(ValueError, match="unknown predictive 'laplace': expected one of mc, linearized, moments"):
        predict(fitted(), data(), predictive="laplace")


@pytest.mark.parametrize("predictive", PREDICTIVES)
def test_unknown_quantity(predictive):
    want: Any = ["codes", "colours"]
    with pytest.raises(ValueError, match="cannot predict colours: expected some of means, codes, covariance"):
        predict(fitted(), data(), predictive=predictive, want=want)


@pytest.mark.parametrize("predictive", PREDICTIVES)
def test_means_are_those_of_a_whole_prediction(predictive):
    method, x = fitted(), data()
    found = predict(method, x, predictive=predictive, want=["means"])
    whole = predict(method, x, predictive=predictive)
    assert set(found.values) == {"z_mean", "x_mean"}
    torch.testing.assert_close(found.z_mean, whole.z_mean)
    torch.testing.assert_close(found.x_mean, whole.x_mean)


@pytest.mark.parametrize("predictive", PREDICTIVES)
def test_no_data(predictive):
    with pytest.raises(ValueError, match="at least one sample"):
        predict(fitted(), data()[:0], predictive=predictive)


@pytest.mark.parametrize("hessian", ["block", "kfac"])
def test_posteriors_that_are_no_diagonal(hessian):
    method, x = fitted(hessian=hessian), data()
    assert (sure(predict(method, x, predictive="linearized").x_var) > 0).all()
    with pytest.raises(ValueError, match="needs a diagonal posterior"):
        predict(method, x, predictive="moments")
