"""What both Laplacian autoencoders share: draws of weights from the posterior."""

from __future__ import annotations

import pytest
import torch
from narrow import as_a, sure
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

from lapae.config import MethodConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.errors import ConfigError
from lapae.methods import build
from lapae.methods.laplace import HESSIANS, Laplace
from lapae.methods.posthoc import PostHoc
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder
from lapae.posterior import LowRankPrecision
from lapae.posterior.noise import fill_normal
from lapae.predict.moments import moments

N_DATA = 9


def network() -> Autoencoder:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2))
    decoder = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Unflatten(1, (2, 2, 2)), nn.ConvTranspose2d(2, 1, 2))
    return Autoencoder(encoder, decoder)


def data() -> torch.Tensor:
    return torch.randn(N_DATA, 1, 3, 3, generator=torch.Generator().manual_seed(0))


def finished(hessian: str = "approx") -> PostHoc:
    config = MethodConfig(method="posthoc", hessian=hessian, optimize_prior="none", prior_precision=5.0)
    method = PostHoc(network, Gaussian(), config.options, N_DATA).double().eval()
    method.finish(lambda: data().double().split(4), N_DATA, StepContext())
    return method


@pytest.mark.parametrize("hessian", HESSIANS)
def test_draws_are_networks_at_weights_of_the_posterior(hessian):
    method, x = finished(hessian), data().double()
    draws = method.draw([11, 5, 11])
    z = draws.encode(x[None])
    output = draws.decode(z).loc
    assert z.shape == (3, N_DATA, 2)
    assert output.shape == (3, *x.shape)
    assert torch.equal(output[0], output[2])
    assert not torch.equal(output[0], output[1])
    for s, seed in enumerate((11, 5)):
        eps = fill_normal(torch.empty(1, method.posterior.n_weights, dtype=torch.float64), [seed])[0]
        noise = method.posterior.split(method.posterior_of_networks().scale_noise(eps))
        params = {name: p + noise[name] for name, p in method.network.named_parameters()}
        assert_close(output[s], functional_call(method.network, params, (x,)))


def test_networks_of_a_low_rank_posterior_are_drawn_from_its_diagonal():
    method = finished("lowrank")
    precision = as_a(LowRankPrecision, method.posterior)
    eps = torch.randn(precision.n_weights, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(method.posterior_of_networks().scale_noise(eps), eps / (precision.d + 5).sqrt())  # 5 of the prior
    sketched = finished("sketch")
    assert sketched.posterior_of_networks() is sketched.posterior


@pytest.mark.parametrize("hessian", ["approx", "block", "kfac"])
def test_a_seed_gives_the_same_network_in_any_group(hessian):
    method, x = finished(hessian), data().double()
    together = method.draw([1, 2, 3]).encode(x[None])
    for i, seed in enumerate((1, 2, 3)):
        assert_close(method.draw([seed]).encode(x[None])[0], together[i])


def test_the_mean_is_the_network():
    method, x = finished(), data().double()
    draws = method.draw_mean()
    assert torch.equal(draws.decode(draws.encode(x[None])).loc[0], method.network(x))


@pytest.mark.parametrize("hessian", ["approx", "block", "kfac"])
def test_weights_of_draws_spread_as_the_posterior_says(hessian):
    method = finished(hessian)
    n = 4000
    stacked = method.draw(range(n)).parts["encoder"]["3.weight"].flatten(1)
    mean = method.network.get_parameter("encoder.3.weight").detach().reshape(-1)
    basis = method.posterior.scale_noise(torch.eye(method.posterior.n_weights, dtype=torch.float64))
    start = sum(method.posterior.sizes[:2])
    variance = basis.square().sum(0)[start : start + len(mean)]
    assert ((stacked.mean(0) - mean).abs() < 5 * (variance / n).sqrt()).all()
    assert_close(stacked.var(0), variance, rtol=0.15, atol=0)


def test_the_posterior_can_be_taken_elsewhere(tmp_path):
    from lapae.posterior import WeightPosterior

    method = finished("kfac")
    posterior = WeightPosterior(dict(method.network.named_parameters()), method.posterior)
    posterior.save(tmp_path / "q")
    loaded = WeightPosterior.load(tmp_path / "q")
    assert_close(loaded.entropy(), posterior.entropy())
    assert loaded.precision.transposed == {"decoder.3.weight"}


def test_in_float32():
    method = finished("approx").float()
    assert method.draw([0]).encode(data()[None]).dtype == torch.float32


@pytest.mark.parametrize("uncertain", ["encoder", "decoder"])
@pytest.mark.parametrize("method", ["online", "posthoc"])
def test_known_weights_stay_at_their_mean(method, uncertain):
    config = MethodConfig.taking(method, uncertain=uncertain, forgetting=0.5)
    model = as_a(Laplace, build(config, network, Gaussian(), N_DATA)).double()
    generator = torch.Generator().manual_seed(0)
    for x in data().double().split(4):
        model(x, StepContext(generator))
        model.after_forward(StepContext(generator))
    model.eval().finish(lambda: data().double().split(4), N_DATA, StepContext())
    x = data().double()
    z = model.draw_mean().encode(x[None])
    draws = model.draw([1, 2])
    encoders_differ = not torch.equal(draws.encode(x[None])[0], z[0])
    decoders_differ = not torch.equal(draws.decode(z).loc[0], model.draw_mean().decode(z).loc[0])
    assert (encoders_differ, decoders_differ) == (uncertain == "encoder", uncertain == "decoder")
    closed = moments(model, x)
    assert bool((sure(closed.z_cov) > 0).any()) == (uncertain == "encoder")
    assert bool((sure(closed.output_var) > 0).all())


def test_known_weights_ask_for_a_diagonal_that_is_kept():
    with pytest.raises(ConfigError, match="needs a diagonal hessian"):
        build(MethodConfig(uncertain="encoder", hessian="kfac"), network, Gaussian(), N_DATA)
    with pytest.raises(ConfigError, match="keeps nothing"):
        build(MethodConfig(uncertain="encoder", update="redux"), network, Gaussian(), N_DATA)
    with pytest.raises(
        ConfigError, match="expected all, encoder, decoder or a pattern of parameter names, and no name matches"
    ):
        build(MethodConfig(uncertain="half"), network, Gaussian(), N_DATA)
