"""The vectors of a low-rank posterior: unbiased for the whole GGN, in training and after it, saved and resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from narrow import as_a, sure
from observers import StopAfter
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.testing import assert_close

from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.errors import ConfigError
from lapae.fit import fit
from lapae.methods.laplace import Laplace
from lapae.methods.online import Online
from lapae.methods.posthoc import PostHoc
from lapae.methods.step import StepContext
from lapae.methods.vectors import FEW_VECTORS, MOST_BYTES, Collected, collect, how_many
from lapae.networks import Autoencoder
from lapae.posterior import LowRankPrecision
from lapae.predict import predict
from lapae.runs import Run
from lapae.storage import load_run

N = 22
SIGMA = 0.5


def network() -> Autoencoder:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    return Autoencoder(encoder, nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 4))).double()


def data(n: int = N) -> Tensor:
    return torch.rand(n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def posthoc(**options) -> PostHoc:
    config = MethodConfig(method="posthoc", hessian="lowrank", **options)
    return PostHoc(network, Gaussian(SIGMA), config.options, N).double().eval()


def ggn(x: Tensor) -> Tensor:
    """The whole matrix, by brute force."""
    module = network()
    params = {name: p.detach() for name, p in module.named_parameters()}
    parts = vmap(jacrev(lambda p, x: functional_call(module, p, (x[None],))[0]), (None, 0))(params, x)
    j = torch.cat([parts[name].flatten(2) for name in params], 2).flatten(0, 1)
    return j.T @ j / SIGMA**2


def vectors(n_vectors: int, seed: int, batch: int = 8) -> Collected:
    """Vectors of batches, of which the last is short."""
    method = posthoc()
    torch.manual_seed(seed)
    return collect(method, lambda: iter(data().split(batch)), N, StepContext(), n_vectors)


def outer(n_vectors: int, seed: int, batch: int = 8) -> Tensor:
    u = vectors(n_vectors, seed, batch).u
    return u.T @ u


def errors(draws: list[Tensor], expected: Tensor) -> Tensor:
    """Errors of the mean of draws, in its standard errors."""
    stacked = torch.stack(draws)
    return (stacked.mean(0) - expected) / (stacked.std(0) / len(draws) ** 0.5)


@pytest.mark.parametrize(("n_vectors", "batch"), [(3, 8), (2, 8), (4, 3)])
def test_the_outer_products_have_the_whole_matrix_as_their_mean(n_vectors, batch):
    """One vector for each batch, of which the last is short, or fewer vectors than batches."""
    draws = [outer(n_vectors, seed, batch) for seed in range(200)]
    assert errors(draws, ggn(data())).abs().max() < 4


def test_the_diagonal_is_that_of_every_batch():
    found = [vectors(2, seed, batch=2) for seed in range(200)]
    assert {(len(f.u), f.n_squares) for f in found} == {(2, 11)}
    draws = [f.d for f in found if f.d is not None]
    assert len(draws) == len(found)
    assert errors(draws, ggn(data()).diagonal()).abs().max() < 4
    of_u = torch.stack([f.u.square().sum(0) for f in found])
    assert torch.stack(draws).var(0).sum() < 0.5 * of_u.var(0).sum()  # of eleven, not of two
    enough = vectors(11, 0, batch=2)
    assert (enough.d, enough.n_squares) == (None, 11)


def test_too_few_vectors_have_their_diagonal_in_the_coordinates_of_what_the_layers_get(monkeypatch):
    """It is unbiased, and a combination of inputs that no sample has is as uncertain as a weight without data."""
    monkeypatch.setattr("lapae.methods.vectors.ALONE", 0)
    x = data()
    x[:, 1] = x[:, 0]
    truth, draws, method = ggn(x), [], posthoc()
    precision = as_a(LowRankPrecision, method.posterior)
    for seed in range(200):
        torch.manual_seed(seed)
        found = collect(method, lambda: iter(x.split(2)), N, StepContext(), 2)
        rotation = precision.turn(torch.eye(precision.n_weights, dtype=torch.float64))
        draws.append(sure(found.d) - torch.einsum("pi,pq,qi->i", rotation, truth, rotation))
    assert errors(draws, torch.zeros(())).nan_to_num().abs().max() < 4.5

    def of_first_layer(difference: bool) -> float:
        row = torch.zeros(precision.n_weights, dtype=torch.float64)
        row[0], row[1] = 1.0, -1.0 if difference else 1.0
        return float(precision.variance(row))

    for rotated in (True, False):
        monkeypatch.setattr("lapae.methods.vectors.ALONE", 0 if rotated else 300)
        found = collect(method, lambda: iter(x.split(2)), N, StepContext(), 2)
        precision.set_vectors(found.u, found.d, 0.1)
        assert (len(precision.q) > 0) == rotated
        assert (of_first_layer(True) == pytest.approx(2.0, rel=1e-3)) == rotated  # that of the prior
        assert of_first_layer(False) < 1.5
    monkeypatch.setattr("lapae.methods.vectors.ALONE", 0)
    collect(method, lambda: iter(x[:7].split(2)), 7, StepContext(), 2)
    assert not len(precision.q)  # seven samples do not determine the four directions of a layer


def test_a_weight_that_few_samples_use_is_seen():
    """Its diagonal is 0 in most batches; a prior that is weak must not take it as unused."""
    rare = data()
    rare[:, 0] = 0
    rare[20, 0] = 1.0
    found = collect(posthoc(), lambda: iter(rare.split(2)), N, StepContext(), 2)
    assert found.d is not None
    assert (found.d[:12].reshape(3, 4)[:, 0] > 0).all()  # weights of the first input


def test_the_error_falls_as_one_over_the_root_of_their_number():
    whole = ggn(data())

    def error(n_vectors: int) -> float:
        parts = [(outer(n_vectors, seed) - whole).square().sum() for seed in range(24)]
        return float(torch.stack(parts).mean().sqrt())

    assert error(6) / error(6 * 16) == pytest.approx(4, rel=0.25)


def test_they_are_of_whole_epochs():
    expected = Gaussian(SIGMA).log_prob(network()(data()), data()).sum().item()
    found = vectors(10, 0)
    assert len(found.u) == 9  # three epochs of three
    few = vectors(4, 0, batch=2)  # of eleven batches
    assert len(few.u) == 4
    for each in (found, few):
        assert each.log_likelihood == pytest.approx(expected)


def test_the_first_batches_represent_larger_data(monkeypatch):
    monkeypatch.setattr("lapae.methods.vectors.MOST_BATCHES", 4)
    method, read = posthoc(), []

    def batches() -> Iterator[Tensor]:
        for x in data().split(2):
            read.append(len(x))
            yield x

    torch.manual_seed(0)
    found = collect(method, batches, N, StepContext(), 3)
    assert read == [2] * 4
    torch.manual_seed(0)
    alone = collect(method, lambda: iter(data()[:8].split(2)), 8, StepContext(), 3)
    assert_close(found.u, alone.u * (N / 8) ** 0.5)
    assert_close(sure(found.d), sure(alone.d) * (N / 8))
    assert found.log_likelihood == pytest.approx(alone.log_likelihood * N / 8)


def test_how_many_there_are_is_bound_by_memory():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert how_many(6_000, cpu) == (500, None)
    for n_weights, device, wanted in ((1_068_306, cpu, None), (17_164_739, gpu, None), (17_164_739, cpu, 3000)):
        n, kind = how_many(n_weights, device, wanted)
        assert n * n_weights * (4 if kind is None else 2) <= MOST_BYTES
        assert n > 10
    assert how_many(1_068_306, gpu) == how_many(1_068_306, cpu) == (FEW_VECTORS, torch.bfloat16)
    assert how_many(1_068_306, gpu, 500) == (500, torch.bfloat16)
    assert how_many(6_000, cpu, 7) == (7, None)


def test_post_hoc_it_reports_what_was_chosen():
    method = posthoc(vectors=300)
    torch.manual_seed(0)
    report = method.finish(lambda: iter(data().split(8)), N, StepContext())
    precision = as_a(LowRankPrecision, method.posterior)
    assert report["vectors"] == precision.n_vectors == 300
    assert report["low_rank_share"] == float(precision.rho) == 1  # as they reach the rank
    assert report["prior_precision"] == pytest.approx(float(precision.prior[0]))
    assert 0 < report["determined_weights"] < precision.n_weights
    assert report["vectors_gb"] == pytest.approx(300 * precision.n_weights * 8 / 1e9)
    given = posthoc(vectors=300, optimize_prior="none", prior_precision=2.5)
    given.finish(lambda: iter(data().split(8)), N, StepContext())
    assert (given.posterior.prior == 2.5).all()
    with pytest.raises(ConfigError, match="one prior precision"):
        posthoc(optimize_prior="layer")


def test_known_weights_stay_known():
    method = posthoc(vectors=50, uncertain="decoder")
    method.finish(lambda: iter(data().split(8)), N, StepContext())
    drawn = method.draw_params([1, 2])
    for name, p in method.network.named_parameters():
        assert (drawn[name] == p).all() == name.startswith("encoder")
    found = predict(method, data(), predictive="linearized", want=("codes", "outputs"))
    assert (found.z_var == 0).all()
    assert (found.x_var > 0).all()


def test_variances_of_draws_are_those_of_the_rows(monkeypatch):
    method = posthoc(vectors=60)
    method.finish(lambda: iter(data().split(8)), N, StepContext())
    network, params = method.network, {name: p.detach() for name, p in method.network.named_parameters()}

    def exact(verb: str) -> Tensor:
        def f(p: dict[str, Tensor], x: Tensor) -> Tensor:
            z = functional_call(
                network.encoder, {k[8:]: v for k, v in p.items() if k.startswith("encoder")}, (x[None],)
            )
            return z[0] if verb == "codes" else functional_call(network, p, (x[None],))[0]

        parts = vmap(jacrev(f), (None, 0))(params, data())
        posterior = method.posterior_of_codes() if verb == "codes" else method.posterior
        return as_a(LowRankPrecision, posterior).variance(torch.cat([parts[name].flatten(2) for name in params], 2))

    monkeypatch.setattr("lapae.predict.linearized_lowrank.DRAWS", 4000)
    found = predict(method, data(), predictive="linearized", want=("codes", "outputs"))
    assert_close(found.z_var, exact("codes"), rtol=0.12, atol=0.0)
    assert_close(found.x_var, exact("outputs"), rtol=0.12, atol=0.0)  # √(2 / 4000) is 0.022
    method.temperature = 4.0
    warm = predict(method, data(), predictive="linearized", want=("outputs",))
    assert_close(warm.x_var, 4 * found.x_var)


@pytest.mark.parametrize("rotated", [False, True])
def test_networks_are_drawn_from_the_diagonal_of_the_weights(rotated, monkeypatch):
    monkeypatch.setattr("lapae.methods.vectors.ALONE", 0 if rotated else 300)
    method = posthoc(vectors=4)
    method.finish(lambda: iter(data().split(2)), N, StepContext())
    precision, drawn = as_a(LowRankPrecision, method.posterior), method.posterior_of_networks()
    assert (len(precision.q) > 0) == rotated
    assert torch.equal(drawn.get_buffer("h"), precision.diagonal_of_weights())
    assert torch.equal(precision.diagonal_of_weights(), precision.d) != rotated


def config(hessian: str, method: str = "online", epochs: int = 3) -> Config:
    return Config(
        model=ModelConfig(hidden=(6,)),
        method=MethodConfig(method, hessian=hessian, temperature=1.0),
        train=TrainConfig(epochs=epochs, learning_rate=0.01, batch_size=32, device="cpu"),
    )


def test_online_it_trains_as_a_sketch_and_ends_with_vectors(table):
    given = [config(hessian) for hessian in ("sketch", "lowrank")]
    flat = [replace(c, method=MethodConfig("online", c.method.options, prior_scale="flat")) for c in given]
    sketch, low_rank = (as_a(Laplace, fit(c, table).method) for c in flat)
    for a, b in zip(sketch.network.parameters(), low_rank.network.parameters(), strict=True):
        assert torch.equal(a, b)
    precision = as_a(LowRankPrecision, low_rank.posterior)
    assert torch.equal(precision.h, sketch.posterior.get_buffer("h"))
    assert precision.n_vectors > 100
    low_rank.double().train().requires_grad_(True)
    as_a(Online, low_rank)(torch.zeros(2, *table.space.model_shape, dtype=torch.float64), StepContext())
    assert precision.n_vectors == 0  # to learn on from the running diagonal


@pytest.mark.parametrize("method", ["online", "posthoc"])
def test_saved_loaded_and_resumed_it_is_the_same_to_the_last_bit(method, table, tmp_path):
    options = config("lowrank", method)
    whole = fit(options, table, run=Run.create(tmp_path / "whole"))
    loaded = load_run(tmp_path / "whole")
    stopped = Run.create(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        fit(options, table, run=stopped, observers=[StopAfter(2)])
    resumed = fit(options, table, run=stopped, resume=True)
    expected = whole.method.state_dict()
    assert expected["posterior.u"].shape[0] > 100
    for other in (loaded, resumed):
        found = other.method.state_dict()
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name
    x = torch.zeros(2, *whole.space.model_shape)
    one, two = (predict(m.method, x, predictive="linearized", want=("codes", "outputs")) for m in (whole, loaded))
    assert torch.equal(one.x_var, two.x_var)
    assert torch.equal(one.z_var, two.z_var)
    assert dataclasses.asdict(loaded.config.method.options)["hessian"] == "lowrank"
