"""The post-hoc fit: the sum over the data, where the network may come from, and the prior precision."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from narrow import as_a, diagonal_of, h_of, network_of, sure
from torch import Tensor, nn
from torch.testing import assert_close
from trained import in_splits

from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.curvature import ggn_blocks, ggn_diagonal, ggn_kfac, reference
from lapae.curvature.likelihoods import Bernoulli, Gaussian
from lapae.data import Data, Split
from lapae.errors import ConfigError
from lapae.fit import fit
from lapae.methods.posthoc import PostHoc
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder
from lapae.posterior import BlockPrecision, KronPrecision, log_marginal_likelihood
from lapae.predict import predict
from lapae.runs import Run
from lapae.space import Space
from lapae.storage import load_run
from lapae_paper.choices import as_in_the_paper


def network() -> Autoencoder:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 2))
    return Autoencoder(encoder, nn.Sequential(nn.Linear(2, 7), nn.Tanh(), nn.Linear(7, 6))).double()


def data() -> Tensor:
    return torch.rand(23, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def finished(likelihood=None, **options) -> tuple[PostHoc, dict[str, float]]:
    config = MethodConfig(**{"method": "posthoc", "optimize_prior": "none", **options})
    method = PostHoc(network, likelihood or Gaussian(), config.options, 23).double().eval()
    return method, method.finish(lambda: data().split(5), 23, StepContext())  # the last batch is short


@pytest.mark.parametrize("likelihood", [Gaussian(0.5), Bernoulli()])
@pytest.mark.parametrize("hessian", ["approx", "exact", "mixed", "bottleneck"])
def test_the_sum_is_that_of_all_data_at_once(hessian, likelihood):
    method, report = finished(likelihood, hessian=hessian)
    found = method.posterior.split(h_of(method))
    for name, value in ggn_diagonal(network(), data(), likelihood, hessian).items():
        assert_close(found[name], value)
    expected = likelihood.log_prob(network()(data()), data()).sum().item()
    assert report["log_likelihood"] == pytest.approx(expected)


def test_the_sum_is_that_of_the_definition():
    method, _ = finished(hessian="exact")
    found = method.posterior.split(h_of(method))
    for name, value in reference.ggn_diagonal(network(), data()).items():
        assert_close(found[name], value)


def test_a_sketch_is_the_sum_over_batches():
    method, _ = finished(hessian="sketch")
    torch.manual_seed(3)
    report = method.finish(lambda: data().split(5), 23, StepContext())
    torch.manual_seed(3)
    parts = [ggn_diagonal(method.network, x, method="sketch") for x in data().split(5)]
    found = method.posterior.split(h_of(method))
    for name in found:
        assert_close(found[name], sum(part[name] for part in parts))
    assert all(p.grad is None for p in method.network.parameters())
    assert report["log_likelihood"] == pytest.approx(Gaussian().log_prob(network()(data()), data()).sum().item())


def test_blocks():
    method, _ = finished(hessian="block")
    assert isinstance(method.posterior, BlockPrecision)
    whole = ggn_blocks(network(), data())
    for i, layer in enumerate(method.posterior.layers):
        assert_close(method.posterior.block(i), whole[layer])


def test_kronecker_factors():
    """Input factors are exact; output factors come from one vector per sample: right on average."""
    method, _ = finished(hessian="kfac")
    assert isinstance(method.posterior, KronPrecision)
    exact = ggn_kfac(network(), data(), n_samples=None)
    for i, name in enumerate(method.posterior.shapes):
        if exact[name].a is not None:
            found = method.posterior.get_buffer(f"a{i}") / method.posterior.get_buffer(f"n{i}")
            assert_close(found, sure(exact[name].a) / exact[name].n)
    generator = torch.Generator().manual_seed(0)
    many = ggn_kfac(network(), data(), n_samples=3000, generator=generator)
    for name, factor in exact.items():
        assert (many[name].g - factor.g).abs().max() < 0.05 * factor.g.abs().max()


@pytest.mark.parametrize("hessian", ["approx", "block", "kfac"])
@pytest.mark.parametrize("choice", ["none", "scalar", "layer"])
def test_prior_choices(hessian, choice):
    method, report = finished(hessian=hessian, optimize_prior=choice, prior_precision=3.0)
    prior = method.posterior.prior
    distinct = len(set(prior.tolist()))
    assert distinct == (4 if choice == "layer" else 1)
    if choice == "none":
        assert prior[0] == 3.0
    assert report["prior_precision"] == pytest.approx(float(prior.mean()))
    mean = dict(method.network.named_parameters())
    found = log_marginal_likelihood(report["log_likelihood"], mean, method.posterior)
    assert report["log_marginal_likelihood"] == pytest.approx(found)
    if choice != "none":  # no other δ is better
        for factor in (0.9, 1.1):
            method.posterior.set_prior(prior * factor)
            assert log_marginal_likelihood(report["log_likelihood"], mean, method.posterior) < found
            method.posterior.set_prior(prior / factor)


def test_at_a_temperature_there_is_no_marginal_likelihood():
    _, report = finished(temperature=2.0, optimize_prior="scalar")
    assert "log_marginal_likelihood" not in report
    assert math.isfinite(report["prior_precision"])


def test_finishing_twice_does_not_count_the_data_twice():
    method, report = finished(hessian="approx", optimize_prior="scalar")
    assert method.finish(lambda: data().split(5), 23, StepContext()) == report


# --- from a run, and with modules of one's own ---

TRAIN = TrainConfig(epochs=4, device="cpu", batch_size=32, learning_rate=0.01)
MODEL = ModelConfig(hidden=(8,))


def trained(method: str, table: Data, path) -> Run:
    run = Run.create(path)
    fit(paper_config(MethodConfig(method=method)), table, run=run)
    return run


def paper_config(method: MethodConfig, model: ModelConfig = MODEL) -> Config:
    return as_in_the_paper(Config(model=model, method=method, train=TRAIN))


def from_run(run, table: Data, model: ModelConfig = MODEL, **options):
    method = MethodConfig(method="posthoc", pretrained=str(getattr(run, "path", run)), **options)
    return fit(paper_config(method, model), table)


@pytest.mark.parametrize("source", ["ae", "online"])
def test_weights_of_a_run_are_taken_as_they_are(source, table, tmp_path):
    run = trained(source, table, tmp_path / "ae")
    model = from_run(run, table)
    taken = network_of(load_run(run.path).method).state_dict()
    for name, value in network_of(model.method).state_dict().items():
        assert torch.equal(value, taken[name]), name
    assert model.metrics["epochs"] == 0
    assert model.metrics["stopped"] == "nothing to train"
    assert math.isfinite(model.metrics["log_marginal_likelihood"])
    h = ggn_diagonal(network_of(model.method).requires_grad_(True), torch.from_numpy(table.train.x).double())
    assert_close(diagonal_of(model.method).split(h_of(model.method)), h, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("predictive", ["linearized", "moments", "mc"])
@pytest.mark.parametrize("hessian", ["approx", "kfac"])
def test_a_taken_network_predicts_as_a_trained_one(predictive, hessian, table, tmp_path):
    """Its weights are frozen, and still uncertain."""
    if (predictive, hessian) == ("moments", "kfac"):
        return  # a diagonal posterior only: tests/predict/test_moments.py
    method = from_run(trained("ae", table, tmp_path / "ae"), table, hessian=hessian).method
    assert not any(p.requires_grad for p in network_of(method).parameters())
    thawed = copy.deepcopy(method)
    network_of(thawed).requires_grad_(True)
    x = torch.from_numpy(table.test.x)
    found, expected = (predict(m, x, predictive=predictive, n_samples=5) for m in (method, thawed))
    assert (sure(found.z_var) > 0).all()
    assert_close(found.z_var, expected.z_var)
    assert_close(found.x_var, expected.x_var)


def test_saved_and_loaded(table, tmp_path):
    run = Run.create(tmp_path / "posthoc")
    source = Run.create(tmp_path / "ae")
    model = replace(MODEL, linear=False)  # a start from principal components that is kept is fitted again in the end
    fit(Config(model=model, method=MethodConfig(method="ae"), train=TRAIN), table, run=source)  # as the data choose
    noise = load_run(source.path).method.sigma
    config = Config(model=model, method=MethodConfig(method="posthoc", pretrained=str(source.path)), train=TRAIN)
    before = fit(config, table, run=run).method.state_dict()
    assert_close(before["sigma"], noise)  # that of the same residuals, though nothing was trained
    for file in source.path.iterdir():
        file.unlink()  # what it was made from is not needed again
    after = load_run(run.path).method.state_dict()
    assert before.keys() == after.keys()
    for name in before:
        assert torch.equal(before[name], after[name]), name


def test_network_of_another_shape(table, tmp_path):
    run = trained("ae", table, tmp_path / "ae")
    with pytest.raises(ConfigError, match="its network differs from that of this run: size mismatch"):
        from_run(run, table, ModelConfig(hidden=(9,)))


def test_run_of_several_networks(table, tmp_path):
    run = trained("ensemble", table, tmp_path / "ensemble")
    with pytest.raises(ConfigError, match="its network differs from that of this run"):
        from_run(run, table)


def test_absent_run(table, tmp_path):
    from lapae.errors import RunError

    with pytest.raises(RunError, match="there is no run at"):
        from_run(tmp_path / "nothing", table)


@pytest.mark.parametrize("frozen", [False, True])
def test_modules_of_ones_own_trained_before(frozen, table):
    torch.manual_seed(3)
    encoder = nn.Sequential(nn.Linear(6, 5), nn.ELU(), nn.Linear(5, 2)).requires_grad_(not frozen)
    decoder = nn.Sequential(nn.Linear(2, 5), nn.ELU(), nn.Linear(5, 6))
    before = [p.clone() for p in [*encoder.parameters(), *decoder.parameters()]]
    config = Config(method=MethodConfig(method="posthoc"), train=TrainConfig(epochs=0, device="cpu"))
    model = fit(config, table, network=(encoder, decoder))
    for old, new in zip(before, network_of(model.method).parameters(), strict=True):
        assert torch.equal(old, new)
    h = as_a(PostHoc, model.method).posterior.split(h_of(model.method))
    assert all((value > 0).all() for value in h.values())
    for name, value in h.items():  # what is frozen is certain
        assert bool(value.isinf().all()) == (frozen and name.startswith("encoder")), name
    assert [p.requires_grad for p in encoder.parameters()] == [not frozen] * 4
    assert not any(p.requires_grad for p in model.method.parameters())  # what is trained stays as it is


def test_it_trains_as_an_autoencoder_first():
    """Same weights as the plain autoencoder of the same seed."""
    x = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    parts = (Split(x[:30], None), Split(x[30:35], None), Split(x[35:], None))
    table = in_splits(Space("table", (6,), name="noise"), *parts)
    plain, posthoc = (
        network_of(fit(Config(model=MODEL, method=MethodConfig(method=name), train=TRAIN), table).method).state_dict()
        for name in ("ae", "posthoc")
    )
    for name in plain:
        assert torch.equal(plain[name], posthoc[name])


def test_unknown_choice_of_prior():
    with pytest.raises(ConfigError, match="optimize_prior = 'weight': expected one of scalar, layer, none"):
        finished(optimize_prior="weight")
