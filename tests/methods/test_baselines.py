"""Every method behind the protocol: what it minimises, what is stochastic about it, and how it draws."""

import math

import pytest
import torch
from narrow import as_a, network_of, sure
from torch import nn
from torch.distributions import Normal, kl_divergence

from lapae.config import MethodConfig
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian
from lapae.methods import METHODS, build
from lapae.methods.ae_var import AEVar
from lapae.methods.bbb import BBB
from lapae.methods.dropout import Dropout, MaskLayer
from lapae.methods.output_variance import MIN_LOG_VARIANCE, variance
from lapae.methods.step import StepContext
from lapae.methods.vae import VAE
from lapae.networks import conv, mlp
from lapae.networks.missing import FillMissing, filling

SHAPE, K, B = (1, 4, 4), 2, 6
ALL = ["ae", "ae-var", "vae", "dropout", "ensemble", "bbb"]
STOCHASTIC = ["vae", "dropout", "ensemble", "bbb"]


def dense():
    return mlp(SHAPE, K, hidden=(12, 8)).double()


def convolutional():
    return conv(SHAPE, K, channels=(3,), hidden=(5,)).double()


def make(name, network=dense, likelihood=None, n_data=50, **options):
    torch.manual_seed(0)
    return build(MethodConfig(name, **options), network, likelihood or Gaussian(), n_data)


def batch(n=B):
    return torch.rand(n, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def through(draws, x):
    z = draws.encode(x[None])
    return z, draws.decode(z)


@pytest.mark.parametrize("network", [dense, convolutional])
@pytest.mark.parametrize("name", ALL)
def test_training_lowers_the_loss_and_every_parameter_learns(name, network):
    method = make(name, network)
    x = batch(32)
    start = {key: value.clone() for key, value in method.named_parameters()}
    optimizer = torch.optim.Adam(method.parameters(), lr=5e-3)
    before = method.validate(x, StepContext(generator()))["loss"].item()
    for step in range(60):
        optimizer.zero_grad()
        method(x, StepContext(generator(step))).backward()
        method.after_forward(StepContext())
        optimizer.step()
    assert method.validate(x, StepContext(generator()))["loss"].item() < before
    assert all((value != start[key]).any() for key, value in method.named_parameters())


@pytest.mark.parametrize("name", ALL)
def test_the_loss_is_a_function_of_the_generator_alone(name):
    method = make(name)
    first = method(batch(), StepContext(generator(3)))
    torch.rand(7)
    assert torch.equal(first, method(batch(), StepContext(generator(3))))
    assert first.shape == ()


@pytest.mark.parametrize("network", [dense, convolutional])
@pytest.mark.parametrize("name", ALL)
def test_a_draw_depends_on_its_seed_and_not_on_its_company(name, network):
    method = make(name, network).eval()
    x, seeds = batch(), [4, 7, 11, 12]
    z, output = through(method.draw(seeds), x)
    n_draws = len(seeds) if method.stochastic else 1
    assert z.shape == (n_draws, B, K)
    assert output.loc.shape == (n_draws, B, *SHAPE)
    for s in range(n_draws):
        z_alone, alone = through(method.draw([seeds[s]]), x)
        torch.testing.assert_close(z_alone[0], z[s])
        torch.testing.assert_close(alone.loc[0], output.loc[s])


@pytest.mark.parametrize("name", ALL)
def test_draws_take_an_input_for_each_network(name):
    method = make(name).eval()
    x = torch.stack([batch(), batch().flip(0)])
    draws = method.draw([0, 1])
    z = draws.encode(x)
    assert draws.decode(z).loc.shape == x.shape
    if name in ("ensemble", "bbb"):
        for s in range(2):
            torch.testing.assert_close(method.draw([s]).encode(x[s : s + 1])[0], z[s])


@pytest.mark.parametrize("name", STOCHASTIC)
def test_stochastic_methods_differ_between_draws_in_evaluation_mode(name):
    method = make(name).eval()
    z, output = through(method.draw(range(5)), batch())
    assert z.std(0).min() > 0
    assert output.loc.std(0).min() > 0


@pytest.mark.parametrize("name", ALL)
def test_the_mean_draw_is_deterministic(name):
    method = make(name).eval()
    assert all(
        torch.equal(a, sure(b))
        for a, b in zip(through(method.draw_mean(), batch())[1], through(method.draw_mean(), batch())[1], strict=True)
        if a is not None
    )
    assert method.draw_mean().encode(batch()[None]).shape == (1, B, K)


@pytest.mark.parametrize("name", ALL)
def test_the_state_dict_holds_all_of_it(name):
    method, other = make(name), make(name)
    for value in other.parameters():
        value.data.normal_()
    other.load_state_dict(method.state_dict())
    for a, b in zip(through(method.draw([3]), batch())[1], through(other.draw([3]), batch())[1], strict=True):
        assert (a is None and b is None) or torch.equal(sure(a), sure(b))


def test_ae_var_minimises_the_gaussian_density_with_the_error_squared():
    method, x = as_a(AEVar, make("ae-var")), batch()
    z = method.network.encode(x)
    expected = -Normal(method.network.decode(z), variance(method.log_variance(z)).sqrt()).log_prob(x).flatten(1).sum(1)
    torch.testing.assert_close(method(x, StepContext(generator())), expected.mean())


def test_ae_var_finds_the_variance_of_noise():
    torch.manual_seed(0)
    x = 0.5 + 0.2 * torch.randn(400, *SHAPE, dtype=torch.float64)
    method = make("ae-var", lambda: mlp(SHAPE, 1, hidden=()).double())
    optimizer = torch.optim.Adam(method.parameters(), lr=2e-2)
    for _ in range(400):
        optimizer.zero_grad()
        method(x, StepContext(generator())).backward()
        optimizer.step()
    output = through(method.draw_mean(), x)[1]
    residual = (x - output.loc).var().item()
    assert sure(output.var).mean().item() == pytest.approx(residual, rel=0.1)


def test_the_variance_has_a_floor_that_lets_gradients_pass():
    raw = torch.tensor([-50.0, 0.0, 3.0], dtype=torch.float64, requires_grad=True)
    assert variance(raw).min().item() == pytest.approx(math.exp(MIN_LOG_VARIANCE))
    assert variance(raw)[2].item() == pytest.approx(math.exp(3.0), rel=1e-3)
    assert torch.autograd.grad(variance(raw - 5).log().sum(), raw)[0][1:].min() > 0


@pytest.mark.parametrize("name", ["ae-var"])
def test_a_learned_variance_needs_a_gaussian(name):
    with pytest.raises(ValueError, match="gaussian"):
        make(name, likelihood=Bernoulli())


@pytest.mark.parametrize("learned", [True, False])
def test_the_vae_minimises_the_bound(learned):
    method, x = as_a(VAE, make("vae", learned_variance=learned, kl_weight=0.5)), batch()
    mean, std = method.network.encode(x), variance(method.code_log_variance(x)).sqrt()
    z = mean + std * torch.randn(mean.shape, generator=generator(2), dtype=mean.dtype)
    scale = variance(sure(method.log_variance)(z)).sqrt() if learned else torch.ones_like(x)
    reconstruction = -Normal(method.network.decode(z), scale).log_prob(x).flatten(1).sum(1)
    kl = kl_divergence(Normal(mean, std), Normal(0.0, 1.0)).sum(1)
    torch.testing.assert_close(method(x, StepContext(generator(2))), (reconstruction + 0.5 * kl).mean())
    assert method.latent_prior


def test_vae_codes_have_the_predicted_variance():
    method, x = as_a(VAE, make("vae")).eval(), batch()
    z = method.draw(range(4000)).encode(x[None])
    torch.testing.assert_close(z.mean(0), method.network.encode(x), atol=0.06, rtol=0)
    torch.testing.assert_close(z.var(0), variance(method.code_log_variance(x)), rtol=0.12, atol=0)


def test_vae_and_dropout_draw_fresh_noise_for_the_next_batch():
    for name in ("vae", "dropout"):
        draws = make(name).eval().draw([0])
        x = batch()[None]
        assert not torch.equal(draws.encode(x), draws.encode(x))


@pytest.mark.parametrize("likelihood", [Bernoulli(), Categorical()])
@pytest.mark.parametrize("name", ["ae", "vae", "dropout", "ensemble", "bbb"])
def test_other_likelihoods(name, likelihood):
    method = make(name, likelihood=likelihood)
    assert method(batch().round(), StepContext(generator())).isfinite()
    assert through(method.draw([0]), batch())[1].var is None


def test_dropout_stands_between_trainable_layers_but_not_on_the_code():
    network = network_of(make("dropout", convolutional))
    for half in (as_a(nn.Sequential, network.encoder), as_a(nn.Sequential, network.decoder)):
        kinds = [isinstance(m, MaskLayer) for m in half]
        trainable = [any(True for _ in m.parameters()) for m in half]
        assert sum(kinds) == sum(trainable) - 1
        assert not kinds[0]
        assert all(trainable[i + 1] for i, kind in enumerate(kinds) if kind)


def test_dropout_masks_differ_between_data_and_have_the_rate():
    method = as_a(Dropout, make("dropout", dropout=0.3)).eval()
    layer = MaskLayer(method.masks)
    with method.masks.on([generator(s) for s in range(3)], 1000):
        out = layer(torch.ones(1000, 20, dtype=torch.float64))
    assert out.shape == (3000, 20)
    assert (out == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert out.max().item() == pytest.approx(1 / 0.7)
    assert (out[0] != out[1]).any()
    assert (out[0] != out[1000]).any()
    assert torch.equal(layer(out), out), "off outside of the context"
    same = method.draw([0]).encode(batch()[:1].expand(B, *SHAPE)[None])
    assert same.std(1).min() > 0, "equal data get masks of their own"


def test_dropout_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="two trainable layers"):
        make("dropout", lambda: mlp(SHAPE, K, hidden=()))
    with pytest.raises(ValueError, match="probability"):
        make("dropout", dropout=1.0)

    class Custom(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

    from lapae.networks import Autoencoder

    with pytest.raises(TypeError, match="Custom"):
        make("dropout", lambda: Autoencoder(Custom(), Custom()))


@pytest.mark.parametrize("network", [dense, convolutional])
def test_ensemble_members_train_as_alone(network):
    x = batch(16)
    method = make("ensemble", network, members=3)
    torch.manual_seed(0)
    alone = [build(MethodConfig("ae"), network, Gaussian(), 50) for _ in range(3)]
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (method, *alone)]
    for _ in range(10):
        for m, optimizer in zip((method, *alone), optimizers, strict=True):
            optimizer.zero_grad()
            m(x, StepContext(generator())).backward()
            optimizer.step()
    output = through(method.draw(range(3)), x)[1].loc
    for s, member in enumerate(alone):
        torch.testing.assert_close(output[s], network_of(member)(x))
    assert method.validate(x, StepContext(generator()))["loss"].item() == pytest.approx(
        sum(m.validate(x, StepContext(generator()))["loss"].item() for m in alone) / 3
    )


def test_ensemble_seeds_go_round_the_members():
    method = make("ensemble", members=3).eval()
    z = method.draw([0, 1, 2, 3, 7]).encode(batch()[None])
    assert torch.equal(z[0], z[3])
    torch.testing.assert_close(z[1], z[4])
    assert (z[0] != z[1]).all()
    assert method.distinct_draws == 3


def test_bbb_loss_is_the_bound_divided_by_the_data():
    method, x = as_a(BBB, make("bbb", prior_precision=4.0, n_data=20)), batch()
    q = [
        Normal(m, nn.functional.softplus(r))
        for m, r in zip(method.network.parameters(), method.rho.parameters(), strict=True)
    ]
    kl = sum(kl_divergence(part, Normal(torch.zeros_like(part.loc), 0.5)).sum() for part in q)
    torch.testing.assert_close(method.kl(), kl)
    noise = generator(5)
    params = {
        n: d.loc + d.scale * torch.randn(d.loc.shape, generator=noise, dtype=d.loc.dtype)
        for (n, _), d in zip(method.network.named_parameters(), q, strict=True)
    }
    output = torch.func.functional_call(method.network, params, (x,))
    torch.testing.assert_close(method(x, StepContext(generator(5))), -Gaussian().log_prob(output, x).mean() + kl / 20)


def test_unknown_names_and_all_names():
    assert set(ALL) <= set(METHODS)
    with pytest.raises(ValueError, match="ensemble"):
        MethodConfig("no-such")


def test_dropout_weights_fit_the_network_that_takes_missing_values():
    plain, filled = make("dropout"), make("dropout", filling(dense))
    filled.load_state_dict(plain.state_dict())
    assert any(isinstance(layer, FillMissing) for layer in filled.modules())
