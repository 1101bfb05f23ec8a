"""The online posterior: a step by hand, every option, and training that gets somewhere."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from narrow import as_a, diagonal_of, h_of
from observers import StopAfter
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close

from lapae import LaplacianAutoencoder
from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.config.methods import OnlineOptions
from lapae.curvature import reference
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from lapae.errors import ConfigError, DivergedError
from lapae.fit import fit
from lapae.methods.laplace import HESSIANS
from lapae.methods.online import Online
from lapae.methods.seeds import seed_all
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder
from lapae.networks import build as build_network
from lapae.posterior import RULES
from lapae.posterior.noise import normal
from lapae.runs import Run
from lapae.train.loop import train

N_DATA = 96


def network(shape=(6,)) -> Autoencoder:
    torch.manual_seed(0)
    return build_network("mlp", shape, 2, hidden=(8,))


def make(likelihood: Likelihood | None = None, shape=(6,), **options) -> Online:
    """In float64, with no data in the precision yet."""
    config = MethodConfig(**{"method": "online", "forgetting": 0.1, **options})
    method = Online(lambda: network(shape), likelihood or Gaussian(), config.options, N_DATA)
    return method.double().train()


def batch(n: int = 16, seed: int = 0) -> Tensor:
    """Points on a curve."""
    t = torch.rand(n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return torch.cat([t, t**2, (3 * t).sin(), (3 * t).cos(), -t, t**3], 1)


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def step(method: Online, x: Tensor, generator: torch.Generator) -> Tensor:
    loss = method(x, StepContext(generator))
    method.after_forward(StepContext(generator))
    return loss


def sampled(method: Online, generator: torch.Generator) -> dict[str, Tensor]:
    """Weights drawn by hand: θ + ε √(T / (h + δ)), over the parameters in their order."""
    posterior = diagonal_of(method)
    eps = normal(posterior.prior, posterior.n_weights, generator)
    noise = eps * (posterior.temperature / (posterior.h + posterior.flat_prior())).sqrt()
    params, start = {}, 0
    for name, p in method.network.named_parameters():
        params[name] = (p.detach() + noise[start : start + p.numel()].reshape(p.shape)).requires_grad_()
        start += p.numel()
    return params


def flat(params: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.reshape(-1) for value in params.values()])


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_a_step_by_hand(temperature):
    """Weights from the generator, gradient at the sample, GGN at the sample times N / B by brute force."""
    method, x = make(hessian="exact", temperature=temperature), batch()
    h_of(method).uniform_(1.0, 50.0, generator=seeded(1))
    before = h_of(method).clone()
    params = sampled(method, seeded())
    expected = -Gaussian().log_prob(functional_call(method.network, params, (x,)), x).mean()
    gradients = torch.autograd.grad(expected, list(params.values()))

    loss = step(method, x, seeded())
    loss.backward()
    assert_close(loss, expected)
    for parameter, gradient in zip(method.network.parameters(), gradients, strict=True):
        assert_close(parameter.grad, gradient)
    ggn = flat(reference.ggn_diagonal(method.network, x, Gaussian(), params))
    assert_close(h_of(method), 0.9 * before + N_DATA / len(x) * ggn)


def test_a_sketch_goes_back_through_the_graph_of_the_loss():
    """The same loss and gradient as without; one vector per sample, from the generator after the weights."""
    method, x = make(hessian="sketch"), batch()
    before, generator = h_of(method).clone(), seeded()
    params = sampled(method, generator)
    output = functional_call(method.network, params, (x,))
    eps = torch.randn(1, *output.shape, dtype=output.dtype, generator=generator)[0]
    squares = [g.square() for g in torch.autograd.grad(output, list(params.values()), eps, retain_graph=True)]
    expected = -Gaussian().log_prob(output, x).mean()
    gradients = torch.autograd.grad(expected, list(params.values()))

    loss = step(method, x, seeded())
    loss.backward()
    assert_close(loss, expected)
    for parameter, gradient in zip(method.network.parameters(), gradients, strict=True):
        assert_close(parameter.grad, gradient)
    ggn = torch.cat([square.reshape(-1) for square in squares])
    assert_close(h_of(method), 0.9 * before + N_DATA / len(x) * ggn)


class OneBatch:
    """The data as the loop takes them, in float64."""

    n_data = 16

    def __len__(self) -> int:
        return 1

    def epoch(self, epoch: int = 0):
        return iter([batch()])

    def sizes(self) -> list[int]:
        return [self.n_data]


def test_the_loop_takes_that_step():
    """Two epochs of a batch each against Adam and the rule by hand."""
    method, expected = make(hessian="exact"), make(hessian="exact")
    options = TrainConfig(epochs=2, learning_rate=0.01, device="cpu", batch_size=16)
    train(method, OneBatch(), None, options)  # pyright: ignore[reportArgumentType]
    adam = torch.optim.Adam(expected.network.parameters(), 0.01)
    for epoch in (1, 2):
        generator = torch.Generator()
        seed_all(options.seed, "train", epoch, generator=generator)
        params = sampled(expected, generator)
        loss = -Gaussian().log_prob(functional_call(expected.network, params, (batch(),)), batch()).mean()
        gradients = torch.autograd.grad(loss, list(params.values()))
        for parameter, gradient in zip(expected.network.parameters(), gradients, strict=True):
            parameter.grad = gradient
        ggn = flat(reference.ggn_diagonal(expected.network, batch(), Gaussian(), params))
        h_of(expected).mul_(0.9).add_(ggn * N_DATA / 16)
        adam.step()
    for name, value in expected.state_dict().items():
        assert_close(method.state_dict()[name], value)


def data_for(likelihood: Likelihood) -> tuple[Tensor, tuple[int, ...]]:
    x = batch(64)
    if isinstance(likelihood, Gaussian):
        return x, (6,)
    if isinstance(likelihood, Bernoulli):
        return (x > 0).double(), (6,)
    return torch.stack([x > 0.3, (x <= 0.3) & (x > -0.3), x <= -0.3], 1).double(), (3, 6)


def losses_of(method: Online, x: Tensor, n_steps: int = 80) -> Tensor:
    adam, generator, losses = torch.optim.Adam(method.parameters(), 0.02), seeded(), []
    for i in range(n_steps):
        adam.zero_grad()
        loss = step(method, x[16 * (i % 4) : 16 * (i % 4) + 16], generator)
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    return torch.tensor(losses)


@pytest.mark.parametrize("likelihood", [Gaussian(0.5), Bernoulli(), Categorical()], ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("hessian", HESSIANS)
def test_every_hessian_and_likelihood_trains(hessian, likelihood):
    x, shape = data_for(likelihood)
    method = make(likelihood, shape, hessian=hessian, initial_precision="data")
    losses = losses_of(method, x)
    assert losses.isfinite().all()
    assert losses[-16:].mean() < losses[:4].mean() - 0.1
    assert method.posterior.log_det() > method.posterior.n_weights * torch.tensor(1.0).log()  # above the prior's


@pytest.mark.parametrize("update", RULES)
def test_every_update_trains(update):
    x, _ = data_for(Gaussian(0.3))
    losses = losses_of(make(Gaussian(0.3), update=update, initial_precision="data"), x, 120)
    assert losses.isfinite().all()
    assert losses[-16:].mean() < losses[:4].mean() - 0.1


def test_two_samples_a_step_are_averaged():
    method, x = make(hessian="exact", samples_per_step=2), batch()
    start = h_of(method).clone()
    generator = seeded()
    draws = [sampled(method, generator) for _ in range(2)]
    losses = [-Gaussian().log_prob(functional_call(method.network, params, (x,)), x).mean() for params in draws]
    loss = step(method, x, seeded())
    assert_close(loss, torch.stack(losses).mean())
    ggn = sum(flat(reference.ggn_diagonal(method.network, x, Gaussian(), params)) for params in draws) / 2
    assert_close(h_of(method), 0.9 * start + N_DATA / len(x) * ggn)
    loss.backward()
    gradients = torch.autograd.grad(losses[0] + losses[1], [v for params in draws for v in params.values()])
    half = len(gradients) // 2
    for i, parameter in enumerate(method.network.parameters()):
        assert_close(parameter.grad, (gradients[i] + gradients[half + i]) / 2)


def test_two_sketches_a_step_are_averaged():
    method, x = make(hessian="sketch", samples_per_step=2), batch()
    start, generator = h_of(method).clone(), seeded()
    outputs = []
    for params in [sampled(method, generator) for _ in range(2)]:
        outputs.append((functional_call(method.network, params, (x,)), list(params.values())))
    ggn = torch.zeros_like(start)
    for output, params in outputs:
        eps = torch.randn(output.shape, dtype=output.dtype, generator=generator)
        ggn += torch.cat([g.square().reshape(-1) for g in torch.autograd.grad(output, params, eps)]) / 2
    step(method, x, seeded())
    assert_close(h_of(method), 0.9 * start + N_DATA / len(x) * ggn)


@pytest.mark.parametrize("hessian", ["approx", "kfac", "block"])
def test_refreshed_every_third_step_with_the_discount_of_three(hessian):
    method, x = make(hessian=hessian, hessian_every=3), batch()
    once = make(hessian=hessian)
    once.rule = once.rule.every(3)
    generator = seeded()
    before = {name: value.clone() for name, value in method.posterior.state_dict().items()}
    for _ in range(2):
        step(method, x, generator)
        for name, value in method.posterior.state_dict().items():
            assert torch.equal(value, before[name])
    step(once, x, torch.Generator().set_state(generator.get_state()))
    step(method, x, generator)
    for name, value in method.posterior.state_dict().items():
        assert_close(value, once.posterior.state_dict()[name])
    assert method.rule.keep == pytest.approx(0.9**3)
    assert method.rule.gain == pytest.approx(1 + 0.9 + 0.81)


def test_epochs_shorter_than_the_interval_refresh_it_too():
    method, x = make(hessian_every=5), batch()
    before = h_of(method).clone()
    for _ in range(2):  # epochs of three steps
        method.train()
        for _ in range(3):
            step(method, x, seeded())
        method.eval()
    assert not torch.equal(h_of(method), before)


@pytest.mark.parametrize(("initial", "value"), [("prior", 0.0), ("data", 96.0)])
@pytest.mark.parametrize("hessian", ["approx", "kfac", "block"])
def test_initial_precision(hessian, initial, value):
    method = make(hessian=hessian, initial_precision=initial, prior_precision=2.5)
    for values in method.posterior.eigenvalues().values():
        assert_close(values, torch.full_like(values, value))


def test_the_first_precision_is_the_priors():
    """H_0 = 0: the posterior adds the prior precision to H, and a draw has the deviation of the prior."""
    method = make(hessian="approx", initial_precision="prior", prior_precision=4.0)
    eps = torch.ones(1, method.posterior.n_weights, dtype=torch.float64)
    assert_close(method.posterior.scale_noise(eps), 0.5 * eps)


def test_default_forgetting_is_the_learning_rate(table):
    config = Config(method=MethodConfig(hessian_every=1), train=TrainConfig(epochs=1, learning_rate=0.02, device="cpu"))
    method = fit(dataclasses.replace(config, model=ModelConfig(hidden=(4,))), table).method
    assert as_a(Online, method).rule.keep == pytest.approx(0.98)


def test_what_can_be_captured():
    for hessian in HESSIANS:
        assert make(hessian=hessian).capturable == (hessian not in ("kfac", "block"))
    assert not make(hessian_every=2).capturable


def test_validation_reports_a_sample_and_the_mean():
    method, x = make().eval(), batch()
    params = sampled(method, seeded())
    with torch.no_grad():
        sums = method.validate(x, StepContext(seeded()))
    assert sums.keys() == {"loss", "loss_of_mean"}
    assert_close(sums["loss"], -Gaussian().log_prob(functional_call(method.network, params, (x,)), x).sum().detach())
    assert_close(sums["loss_of_mean"], -Gaussian().log_prob(method.network(x), x).sum().detach())
    assert sums["loss"] != sums["loss_of_mean"]


@pytest.mark.parametrize(
    "options",
    [
        {"hessian": "mc"},
        {"hessian": "approx", "hessian_every": 4, "samples_per_step": 2},  # an epoch has three steps
        {"hessian": "kfac", "hessian_every": 2, "update": "nng"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_resumes_to_the_same_posterior(options, table, tmp_path):
    config = Config(
        model=ModelConfig(hidden=(8,)),
        method=MethodConfig(method="online", **options),
        train=TrainConfig(epochs=6, batch_size=32, device="cpu"),
    )
    run = Run.create(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fit(config, table, run=run, observers=[StopAfter(3)])
    resumed = fit(config, table, run=run, resume=True).method.state_dict()
    whole = fit(config, table).method.state_dict()
    assert resumed.keys() == whole.keys()
    for name in whole:
        assert torch.equal(resumed[name], whole[name]), name


@pytest.mark.parametrize("hessian", ["approx", "exact", "kfac", "block"])
def test_divergence_is_said_to_be_one(hessian, table):
    config = Config(
        model=ModelConfig(hidden=(8,), activation="relu"),
        method=MethodConfig(method="online", hessian=hessian, forgetting=0.1),
        train=TrainConfig(epochs=3, learning_rate=1e30, device="cpu"),
    )
    with pytest.raises(DivergedError, match="loss is"):
        fit(config, table)


@pytest.mark.parametrize("hessian", ["exact", "mixed", "bottleneck"])
def test_precision_stays_positive_where_the_curvature_cancels(hessian):
    """A decoder blind to what the encoder's hidden units say: in float32 their curvature is zero but for rounding."""
    worst = 0.0
    for seed in range(20):
        torch.manual_seed(seed)
        encoder = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        decoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6))
        out, first = as_a(nn.Linear, encoder[2]), as_a(nn.Linear, decoder[0])
        seen = 30 * torch.randn(3)
        with torch.no_grad():
            first.weight.copy_(0.1 * torch.outer(torch.randn(8), seen))
            out.weight.sub_(torch.outer(seen, seen @ out.weight) / seen.square().sum()).mul_(10)
            first.bias.zero_()
            out.bias.zero_()
        config = MethodConfig(hessian=hessian, update="redux", prior_precision=1e-6)
        method = Online(lambda e=encoder, d=decoder: Autoencoder(e, d), Gaussian(), config.options, 10_000)
        method.posterior.reset(1e12)  # the sample is the mean
        step(method.train(), torch.randn(8, 6), seeded())
        worst = min(worst, float(h_of(method).min()))
        assert method.posterior.scale_noise(torch.ones(method.posterior.n_weights)).isfinite().all()
    assert worst == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hessian": "full"}, "unknown hessian 'full'"),
        ({"update": "adam"}, "update = 'adam': expected one of laplacian"),
        ({"forgetting": 0.0}, "forgetting = 0.0"),
        ({"forgetting": 2.0}, "forgetting = 2.0"),
        ({"prior_precision": 0.0}, "prior_precision = 0.0"),
        ({"prior_precision": float("nan")}, "prior_precision = nan"),
        ({"temperature": -1.0}, "temperature = -1.0"),
        ({"initial_precision": "one"}, "initial_precision = 'one': expected"),
        ({"hessian_every": 0}, "hessian_every = 0"),
        ({"samples_per_step": 0}, "samples_per_step = 0"),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_frozen_weights_are_refused():
    frozen = network()
    frozen.encoder.requires_grad_(False)
    with pytest.raises(ConfigError, match=r"every weight, but encoder\.0\.weight"):
        Online(lambda: frozen, Gaussian(), OnlineOptions(), N_DATA)


def normalised() -> tuple[nn.Sequential, nn.Sequential]:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    decoder = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 6))
    return encoder, decoder


@pytest.mark.parametrize("hessian", ["sketch", "approx", "kfac"])
@pytest.mark.parametrize("evaluates", [False, True])
def test_batch_normalisation(hessian, evaluates):
    """Statistics are fixed: those of the data at the start, or those that layers in evaluation mode came with."""
    pair, x = normalised(), 5 + 3 * batch(200).numpy()
    with torch.no_grad():
        for module in pair:
            module[1].get_buffer("running_mean").fill_(0.25)
            module.train(not evaluates)
    model = LaplacianAutoencoder(network=pair, hessian=hessian, epochs=40, random_state=0, device="cpu").fit(x)
    method = as_a(Online, model.model_.method)
    found = [layer for layer in method.network.modules() if isinstance(layer, nn.BatchNorm1d)]
    for layer in found:
        assert bool((layer.running_mean == 0.25).all()) == evaluates
    assert model.model_.metrics["explained"] > 0.5
    method.train()
    assert not any(layer.training for layer in found)


def test_statistics_are_those_of_the_training_data():
    x = 5 + 3 * batch(64)
    options = MethodConfig(method="online").options
    method = Online(lambda: Autoencoder(*normalised()).double(), Gaussian(), options, 64)
    method.begin(lambda: [x[:32], x[32:], x[:1], x[:0]], StepContext())
    first, norm, *_ = as_a(nn.Sequential, method.network.encoder)
    y = first(x).detach().unflatten(0, (2, 32))
    assert_close(norm.running_mean, y.mean((0, 1)))
    assert_close(norm.running_var, y.var(1).mean(0))
    assert norm.momentum == 0.1

    def of_two(tensors):
        """As if another process had seen twice as many batches, whose statistics add up to 4."""
        *sums, count = tensors
        for part in sums:
            part.add_(4.0)
        count.mul_(3)
        return lambda: None

    expected = (2 * y.mean((0, 1)) + 4) / 6
    method.begin(lambda: [x[:32], x[32:]], StepContext(world_size=2, start_sum=of_two))
    assert_close(norm.running_mean, expected)
    method.begin(lambda: [x[:1]], StepContext())
    assert_close(norm.running_var, torch.ones(8, dtype=torch.float64))


def test_layers_in_evaluation_mode_stay_in_it():
    """Dropout too, which the posterior of one network cannot have."""
    dropping = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2)), nn.Linear(2, 6)
    x = batch(100).numpy()
    with pytest.raises(ValueError, match=r"dropout is on.*call \.eval\(\) first"):
        LaplacianAutoencoder(network=dropping, epochs=1, device="cpu").fit(x)
    dropping[0][1].eval()
    LaplacianAutoencoder(network=dropping, epochs=1, device="cpu").fit(x)
