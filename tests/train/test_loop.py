"""The loop: what it keeps, when it stops, and that the seed decides everything."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
from contextlib import nullcontext
from typing import Literal

import pytest
import torch
from narrow import as_a, network_of

from lapae.config import Config, DataConfig, MethodConfig, ModelConfig, TrainConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.data import Batches
from lapae.errors import ConfigError, DivergedError, RunError
from lapae.fit import fit
from lapae.methods import METHODS, Method, Point
from lapae.methods.ae import AE
from lapae.networks import Autoencoder
from lapae.runs import HISTORY, POSTERIOR, Run
from lapae.storage import load_run
from lapae.train.checkpoint import copy_state
from lapae.train.finish import finish
from lapae.train.held_out import HeldOut
from lapae.train.loop import TrainResult, train
from lapae.train.progress import Bar, Lines
from lapae.train.select import Selection, select

SMALL = ModelConfig(hidden=(8,), latent_dim=2)


def config(method="ae", **options) -> Config:
    return Config(
        model=SMALL, method=MethodConfig(method=method), train=TrainConfig(**{"epochs": 3, "device": "cpu", **options})
    )


def state(model) -> dict[str, torch.Tensor]:
    return model.method.state_dict()


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Scripted(Method):
    """One weight that grows by about the learning rate a step; the validation losses are given."""

    def __init__(self, losses, train_loss=None):
        super().__init__(Gaussian())
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.losses, self.n_valid, self.train_loss = losses, 0, train_loss
        self.calls: list[str] = []

    def forward(self, x, step):
        self.calls.append("forward")
        loss = -self.weight.sum()
        return loss if self.train_loss is None else loss * self.train_loss(len(self.calls))

    def after_forward(self, step):
        assert self.weight.grad is None  # before the backward pass
        self.calls.append("after_forward")

    def validate(self, x, step):
        loss = self.losses[self.n_valid]
        self.n_valid += 1
        return {"loss": torch.tensor(float(loss)) * len(x), "other": torch.tensor(2.0) * len(x)}

    def draw_mean(self):
        return Point(Autoencoder(torch.nn.Identity(), torch.nn.Identity()))

    def finish(self, batches, n_data, step):
        self.calls.append("finish")
        return {"seen": float(sum(len(x) for x in batches())), "weight": self.weight.item()}


def run_scripted(losses, train_loss=None, *, batch_size=5, **options):
    method = Scripted(losses, train_loss)
    x = torch.zeros(10, 3)
    batches = Batches(x, None, batch_size, shuffle=True)
    valid = Batches(x[:4], None, 4)
    return method, train(method, batches, valid, TrainConfig(**{"epochs": 50, "device": "cpu", **options}))


def test_stops_eight_epochs_after_the_best_and_puts_its_weights_back():
    losses = [5, 4, 3, 3.5, 3.2, 3, 6, 3, 3.1, 3, 3, 1]
    method, result = run_scripted(losses)
    assert (len(result.history), result.best_epoch, result.best_loss) == (11, 3, 3.0)
    assert result.stopped == "no better validation loss in 8 epochs"
    assert method.weight.item() == pytest.approx(3 * 2 * 1e-3, rel=1e-3)  # two steps of Adam an epoch, three epochs
    assert method.calls[:4] == ["forward", "after_forward"] * 2
    assert result.history[0]["valid_other"] == 2.0


def test_learning_rate_is_halved_after_five_epochs_without_a_better_loss():
    _, result = run_scripted([3, *[3.0] * 8])
    rates = [record["learning_rate"] for record in result.history]
    assert rates == [1e-3] * 7 + [5e-4] * 2  # patience 5: the sixth epoch without a better loss halves it, for the next


def test_training_loss_is_a_mean_over_data_with_a_ragged_last_batch():
    class MeanOfX(Scripted):
        def forward(self, x, step):
            return x.mean() + 0 * self.weight.sum()

    x = torch.arange(7.0)[:, None]
    result = train(MeanOfX([1]), Batches(x, None, 4), Batches(x, None, 7), TrainConfig(epochs=1, device="cpu"))
    assert result.history[0]["loss"] == pytest.approx(3.0)


def test_without_validation_data_the_training_loss_steers():
    method = Scripted([])
    result = train(method, Batches(torch.zeros(10, 3), None, 5), None, TrainConfig(epochs=3, device="cpu"))
    assert (result.best_epoch, result.stopped) == (3, "3 epochs done")
    assert result.best_loss == result.history[2]["loss"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_stops_at_the_epoch_with_the_last_good_weights(bad):
    method = Scripted([3, 2, 1], lambda n_calls: 1.0 if n_calls <= 6 else bad)
    x = torch.zeros(10, 3)
    message = r"since step 2 of 2 in epoch 2; the weights of epoch 1 \(loss 3\) are kept. Try a smaller learning_rate"
    with pytest.raises(DivergedError, match=message):
        train(method, Batches(x, None, 5), Batches(x, None, 10), TrainConfig(device="cpu"))
    assert method.weight.item() == pytest.approx(2e-3, rel=1e-3)


def test_nan_in_validation_stops_too():
    with pytest.raises(DivergedError, match="the validation loss is nan in epoch 2"):
        run_scripted([3, math.nan, 1])


def test_nothing_to_train_is_no_training():
    method = Scripted([])
    method.weight.requires_grad_(False)
    result = train(method, Batches(torch.zeros(10, 3), None, 5), None, TrainConfig(device="cpu"))
    assert (result.history, result.stopped, method.calls) == ([], "nothing to train", [])
    assert select(method, result) == Selection("trained")


def test_a_method_finishes_at_its_selected_weights():
    method, batches = Scripted([1, 2]), Batches(torch.zeros(10, 3), None, 5)
    options = TrainConfig(epochs=2, device="cpu")
    result = train(method, batches, Batches(torch.zeros(4, 3), None, 4), options)
    assert "finish" not in method.calls
    found = finish(method, batches, options, result.held_out)
    assert found.report == {"seen": 10.0, "weight": pytest.approx(2e-3, rel=1e-3)}  # the best epoch is the first


class Offset(Method):
    """Reconstructs x as x + weight: its squared error is 3 weight² for three features."""

    def __init__(self, weight: float) -> None:
        super().__init__(Gaussian())
        self.weight = torch.nn.Parameter(torch.tensor(weight))
        self.register_buffer("seen", torch.zeros(()))

    def draw_mean(self):
        decoder = torch.nn.Module()
        decoder.forward = lambda z: z + self.weight
        return Point(Autoencoder(torch.nn.Identity(), decoder))


@pytest.mark.parametrize(
    ("trained", "rival", "weights", "ends_at"),
    [
        (0.2, None, "trained", 0.2),  # no rival: it has not diverged
        (0.9, None, "trained", 0.9),  # worse than at the start, but no worse than the mean
        (9.0, None, "start", 0.5),
        (0.2, 0.3, "trained", 0.2),
        (0.3, 0.3, "rival", 0.5),  # must be better
        (0.4, 0.3, "rival", 0.5),
        (9.0, 0.3, "start", 0.5),
    ],
)
def test_what_is_selected(trained, rival, weights, ends_at):
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    method = Offset(0.5)
    result = TrainResult(
        [{"learning_rate": 0.1}], 1, 0.0, "", copy_state(method), HeldOut(Batches(x, None, 9), torch.device("cpu"))
    )
    method.load_state_dict({"weight": torch.tensor(trained), "seen": torch.tensor(1.0)})

    def put(method):
        method.weight.data.fill_(rival)

    diverges = pytest.warns(UserWarning, match="diverged.*below 0.1") if weights == "start" else nullcontext()
    with diverges:
        found = select(method, result, None if rival is None else put)
    assert found.weights == weights
    assert method.weight.item() == pytest.approx(ends_at)
    assert float(method.get_buffer("seen")) == (weights != "start")  # the posterior of training stays with the rival
    variance = float((x - x.mean(0)).square().sum()) / len(x)
    expected = None if rival is None else pytest.approx(1 - 3 * rival**2 / variance, rel=1e-5)
    assert found.rival_explained == expected


def test_no_epochs_is_for_a_network_that_is_trained(table):
    network = torch.nn.Linear(6, 2), torch.nn.Linear(2, 6)
    model = fit(config(epochs=0), table, network=network)
    assert torch.equal(as_a(torch.nn.Linear, network_of(model.method).encoder).weight.float(), network[0].weight)
    assert model.metrics["stopped"] == "0 epochs done"
    plain = dataclasses.replace(config(epochs=0), model=dataclasses.replace(SMALL, linear=False))
    with pytest.raises(ConfigError, match="epochs = 0 is for a network that is trained already"):
        fit(plain, table)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_seed_decides_everything(name, table, tmp_path):
    """For every method that there is: bit-identical runs, other weights from another seed, and load what was saved."""
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    run = Run.create(tmp_path / "run")
    a = fit(config(name), table, run=run)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    b = fit(config(name), table)
    assert same(state(a), state(b))
    assert {k: v for k, v in a.metrics.items() if k != "seconds"} == {
        k: v for k, v in b.metrics.items() if k != "seconds"
    }
    assert not same(state(a), state(fit(config(name, seed=1), table)))
    loaded = load_run(run.path)
    assert same(state(a), state(loaded))
    assert (loaded.shape, loaded.config, loaded.metrics) == (a.shape, a.config, a.metrics)
    assert [json.loads(line) for line in (run / HISTORY).read_text("utf-8").splitlines()] == a.history


def test_posterior_tensors_have_their_own_file(table, tmp_path, monkeypatch):
    class WithPosterior(AE):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.posterior = torch.nn.Module()
            self.posterior.register_buffer("precision", torch.zeros(3))

        def finish(self, batches, n_data, step):
            self.posterior.get_buffer("precision").fill_(n_data)
            return {}

    monkeypatch.setitem(METHODS, "posterior-test", WithPosterior)
    run = Run.create(tmp_path / "run")
    fit(config("posterior-test"), table, run=run)
    assert (run / POSTERIOR).exists()
    assert load_run(run.path).method.get_buffer("posterior.precision").tolist() == [96.0] * 3


def test_own_modules_are_copied_and_needed_again_to_load(table, tmp_path):
    modules = torch.nn.Linear(6, 2), torch.nn.Linear(2, 6)
    before = modules[0].weight.clone()
    run = Run.create(tmp_path / "run")
    model = fit(config(), table, run=run, network=modules)
    assert torch.equal(modules[0].weight, before)
    assert same(state(load_run(run.path, network=modules)), state(model))
    with pytest.raises(RunError, match=r"modules of your own.*network=\.\.\."):
        load_run(run.path)


def test_own_modules_larger_than_the_configured_ones_are_needed_again(table, tmp_path):
    """More numbers than the configuration plans are no lie about memory: they fail at the loading."""
    wide = torch.nn.Sequential(torch.nn.Linear(6, 900), torch.nn.Linear(900, 2)), torch.nn.Linear(2, 6)
    run = Run.create(tmp_path / "run")
    fit(config(), table, run=run, network=wide)
    with pytest.raises(RunError, match=r"modules of your own.*network=\.\.\."):
        load_run(run.path)


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (ModelConfig(network="nope"), "unknown network 'nope'"),
        (ModelConfig(network="conv"), "images of shape"),
        (ModelConfig(network="paper-mnist", hidden=(3,)), "hidden"),
        (ModelConfig(activation="nope"), "unknown activation 'nope'"),
        (ModelConfig(likelihood="nope"), "unknown likelihood 'nope'"),
    ],
)
def test_models_that_cannot_be_built(table, model, complaint):
    with pytest.raises(ConfigError, match=complaint):
        fit(Config(model=model, method=MethodConfig(method="ae"), train=TrainConfig(device="cpu")), table)


def test_unknown_method(table):
    with pytest.raises(ConfigError, match="unknown method 'nope': expected one of online"):
        fit(config("nope"), table)


def test_bf16_trains(table):
    first, *_, last = fit(config(precision="bf16"), table).history
    assert last["loss"] < first["loss"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_where_there_is_none(table):
    with pytest.raises(ConfigError, match="no CUDA device"):
        fit(config(device="cuda"), table)


def test_progress_lines_and_bar(table):
    lines = io.StringIO()
    fit(config(), table, observers=[Lines(lines)])
    understood, first, *_, last, ended, outcome = lines.getvalue().splitlines()
    assert understood.startswith(
        table.space.describe(sum(map(len, (table.train, table.valid, table.calib, table.test))))
    )
    assert f"; {len(table.train)} for training, {len(table.valid)} for validation" in understood
    assert re.match(r"epoch 1/3  error per value [\d.]+  explained -?[\d.]+ %  loss \S+  valid loss ", first)
    assert last.startswith("epoch 3/3  error per value ")
    assert last.endswith("at most 0 s left")
    assert ended.startswith("training ended after 3 of 3 epochs; kept the weights ")
    assert "of the variance of held-out samples explained" in outcome
    bar = io.StringIO()
    fit(config(), table, observers=[Bar(bar)])
    assert "3/3" in bar.getvalue()


def test_tensorboard_events(table, tmp_path):
    pytest.importorskip("tensorboard", reason="the extra lapae[tensorboard] is not installed")
    run = Run.create(tmp_path / "run")
    fit(config(tensorboard=True), table, run=run)
    assert list((run / "tensorboard").glob("events*"))


def test_tf32_is_asked_for_while_training_and_no_longer(monkeypatch):
    seen = []
    forward = AE.forward
    monkeypatch.setattr(AE, "forward", lambda *a: seen.append(torch.get_float32_matmul_precision()) or forward(*a))
    before = torch.get_float32_matmul_precision()
    cases: tuple[tuple[Literal["tf32", "32"], str], ...] = (("tf32", "high"), ("32", before))
    for precision, expected in cases:
        seen.clear()
        train = TrainConfig(epochs=1, precision=precision, verbose=False, device="cpu")
        config = Config(DataConfig(limit=50), ModelConfig(hidden=(4,)), MethodConfig(method="ae"), train)
        fit(config)
        assert set(seen) == {expected}
        assert torch.get_float32_matmul_precision() == before
