"""Posteriors over networks as people write them: fitted, drawn from, and of some of their weights alone."""

from __future__ import annotations

import pytest
import torch
from narrow import as_a, h_of, sure
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from lapae.config import MethodConfig
from lapae.curvature import reference
from lapae.curvature.likelihoods import Gaussian
from lapae.curvature.stateless import functional_call
from lapae.errors import ConfigError
from lapae.methods import build
from lapae.methods.laplace import Laplace
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder
from lapae.networks.adapt import adapt
from lapae.posterior.uncertain import known_weights
from lapae.predict import predict

N_DATA = 12


class Transposed(nn.Module):
    """A decoder that is the encoder's layer transposed."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.bias = layer, nn.Parameter(torch.zeros(6))

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(z, self.layer.weight.T, self.bias)


def tied() -> Autoencoder:
    layer = nn.Linear(6, 2)
    return Autoencoder(nn.Sequential(layer, nn.Tanh()), Transposed(layer))


class Memory(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(n_in, n_out, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x.unflatten(1, (-1, self.lstm.input_size)))[0].flatten(1)


def recurrent() -> Autoencoder:
    return Autoencoder(nn.Sequential(Memory(2, 1), nn.Linear(3, 2)), nn.Sequential(nn.Linear(2, 3), Memory(1, 2)))


def attending() -> Autoencoder:
    block = nn.TransformerEncoderLayer(2, 1, 3, dropout=0.0, batch_first=True)
    encoder = nn.Sequential(nn.Unflatten(1, (3, 2)), block, nn.Flatten(), nn.Linear(6, 2))
    return Autoencoder(encoder, nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 6)))


NETWORKS = {"tied": tied, "recurrent": recurrent, "attending": attending}


def network(name: str) -> Autoencoder:
    torch.manual_seed(0)
    return NETWORKS[name]().double()


def data(n: int = N_DATA) -> Tensor:
    return torch.rand(n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def fitted(name: str, **options) -> Laplace:
    config = MethodConfig.taking("posthoc", optimize_prior="none", **options)
    method = as_a(Laplace, build(config, lambda: network(name), Gaussian(0.5), N_DATA)).double().eval()
    method.finish(lambda: data().split(5), N_DATA, StepContext())
    return method


@pytest.mark.parametrize("name", NETWORKS)
def test_the_post_hoc_posterior_is_that_of_the_definition(name):
    method = fitted(name, hessian="exact")
    found = method.posterior.split(h_of(method))
    assert_close(found, reference.ggn_diagonal(network(name), data(), Gaussian(0.5)))


@pytest.mark.parametrize("hessian", ["exact", "mc", "sketch", "bottleneck", "block"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_posterior_predicts(name, hessian):
    method = fitted(name, hessian=hessian)
    for predictive in ("mc", "linearized"):
        found = predict(method, data(), predictive=predictive, n_samples=5)
        assert sure(found.x_mean).shape == data().shape
        assert sure(found.x_var).isfinite().all()
        assert (sure(found.x_var) > 0).any()
        assert sure(found.z_mean).shape == (N_DATA, 2)


@pytest.mark.parametrize("name", ["recurrent", "attending"])
def test_kronecker_factors(name):
    method = fitted(name, hessian="kfac")
    assert sure(predict(method, data(), predictive="linearized").x_var).isfinite().all()


def test_kronecker_factors_of_a_weight_that_is_no_matrix_are_refused():
    with pytest.raises(ConfigError, match=r"'encoder\.0\.weight' is used in other ways.*hessian"):
        fitted("tied", hessian="kfac")


@pytest.mark.parametrize("name", NETWORKS)
def test_drawn_networks_have_their_weights_in_both_halves(name):
    method = fitted(name, hessian="exact")
    draws, x = method.draw([3, 4]), data()
    z = draws.encode(x[None])
    output = draws.decode(z).loc
    eps = method.draw([4])
    assert_close(eps.decode(eps.encode(x[None])).loc[0], output[1])
    for s in range(2):
        params = {n: v[s] for n, v in _stacked(method, [3, 4]).items()}
        assert_close(output[s], functional_call(method.network, params, (x,)))


def _stacked(method: Laplace, seeds: list[int]) -> dict[str, Tensor]:
    from lapae.posterior.noise import fill_normal

    eps = torch.empty(len(seeds), method.posterior.n_weights, dtype=torch.float64)
    return method.params_at(method.posterior.scale_noise(fill_normal(eps, seeds)))


@pytest.mark.parametrize("hessian", ["sketch", "mc", "bottleneck", "exact"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_of_training(name, hessian):
    config = MethodConfig.taking("online", hessian=hessian)
    method = as_a(Laplace, build(config, lambda: network(name), Gaussian(), N_DATA)).double().train()
    generator = torch.Generator().manual_seed(0)
    before = h_of(method).clone()
    loss = method(data(), StepContext(generator))
    method.after_forward(StepContext(generator))
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.network.parameters())
    assert (h_of(method) > 0.9 * before).all()
    assert not torch.equal(h_of(method), before)


def test_a_model_of_diffusers_from_end_to_end():
    diffusers = pytest.importorskip("diffusers", reason="diffusers is a test extra")
    torch.manual_seed(0)
    model = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(4, 8), norm_num_groups=2, latent_channels=2, layers_per_block=1,
    )  # fmt: skip
    x = torch.rand(6, 3, 8, 8)
    config = MethodConfig.taking("posthoc", hessian="sketch")
    method = build(config, lambda: Autoencoder(*adapt(model, (3, 8, 8))), Gaussian(), 6).eval()
    report = method.finish(lambda: x.split(3), 6, StepContext())
    assert report["prior_precision"] > 0
    found = predict(method, x, n_samples=3)
    assert sure(found.z_mean).shape == (6, 2 * 4 * 4)
    assert (sure(found.x_var) > 0).all()


NAMES = ["encoder.0.weight", "encoder.0.bias", "encoder.10.weight", "decoder.0.weight", "decoder.lora_a"]


@pytest.mark.parametrize(
    ("uncertain", "found"),
    [
        ("all", NAMES),
        ("encoder", NAMES[:3]),
        ("decoder", NAMES[3:]),
        ("*.weight", [NAMES[0], NAMES[2], NAMES[3]]),
        ("*lora*", NAMES[4:]),
        (("encoder.0.*", "decoder.lora_?"), [*NAMES[:2], NAMES[4]]),
        ("encoder.0.*, decoder.lora_?", [*NAMES[:2], NAMES[4]]),
        (("encoder", "decoder.lora*"), [*NAMES[:3], NAMES[4]]),
        ("encoder.[0-9].bias", [NAMES[1]]),
        ("*", NAMES),
    ],
)
def test_patterns_of_names(uncertain, found):
    assert known_weights(uncertain, NAMES) == set(NAMES) - set(found)


def test_a_pattern_that_matches_nothing_is_a_mistake():
    with pytest.raises(ConfigError, match=r"'encoder\.1': expected all, .* they are encoder\.0\.weight"):
        known_weights("decoder,encoder.1", NAMES)


@pytest.mark.parametrize("hessian", ["sketch", "exact"])
@pytest.mark.parametrize("method", ["online", "posthoc"])
def test_weights_outside_the_pattern_stay_at_their_mean(method, hessian):
    config = MethodConfig.taking(method, hessian=hessian, uncertain="*linear1*,decoder.2.bias")
    model = as_a(Laplace, build(config, lambda: network("attending"), Gaussian(), N_DATA)).double().eval()
    generator = torch.Generator().manual_seed(0)
    for x in data().split(4):
        model(x, StepContext(generator))
        model.after_forward(StepContext(generator))
    model.finish(lambda: data().split(4), N_DATA, StepContext())
    moved = {
        name
        for name, value in _stacked(model, [0]).items()
        if not torch.equal(value[0], dict(model.network.named_parameters())[name])
    }
    assert moved == {"encoder.1.linear1.weight", "encoder.1.linear1.bias", "decoder.2.bias"}
