"""Two processes learn what one learns on the same batches, ragged and empty parts included."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from narrow import h_of, sure
from ranks import on_processes
from torch import nn
from trained import in_splits

from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.data import Data, Split
from lapae.fit import fit
from lapae.methods import METHODS
from lapae.runs import Run
from lapae.space import Space
from lapae_paper.choices import as_in_the_paper

BATCH = 6
N_TRAIN = 43
"""Odd, and seven batches of six and one of a single sample: the second process has nothing of the last one."""
NOISE_OF_DATA = ("vae", "dropout")
"""Methods whose noise belongs to data: drawn elsewhere, it is other noise."""


def curve(n: int = N_TRAIN, n_valid: int = 11, n_test: int = 7) -> Data:
    generator = np.random.default_rng(0)
    t = generator.uniform(-1, 1, (n + n_valid + n_test, 1))
    x = np.concatenate([np.sin(2 * t), np.cos(2 * t), t, t**2, t**3], 1)
    x = (x + 0.05 * generator.standard_normal(x.shape)).astype(np.float32)
    parts = np.split(x, [n, n + n_valid])
    return in_splits(Space("table", x.shape[1:], name="curve"), *(Split(part, None) for part in parts))


def config(method: str, epochs: int = 2, *, paper: bool = True, **options) -> Config:
    """With the paper's choices, which add no noise to data, or with those of the data, which hide some values."""
    train = {name: options.pop(name) for name in ("patience", "precision") if name in options}
    given = Config(
        model=ModelConfig(hidden=(7,)),
        method=MethodConfig(method=method, **options),
        train=TrainConfig(epochs=epochs, batch_size=BATCH, learning_rate=0.01, device="cpu", **train),
    )
    return (as_in_the_paper(given) if paper else given).resolved()


def learn(options: Config, sizes: tuple[int, ...] = (N_TRAIN,)) -> dict:
    """Weights and precision, the history and the final numbers of a training, as plain values."""
    model = fit(options, curve(*sizes))
    history = [{k: v for k, v in record.items() if k != "seconds"} for record in model.history]
    state = {name: tensor.double().numpy() for name, tensor in model.method.state_dict().items()}
    metrics = {k: v for k, v in model.metrics.items() if k not in ("seconds", "processes")}
    return {"state": state, "history": history, "metrics": metrics}


def learn_all(cases: dict[str, Config]) -> dict[str, dict]:
    """Several trainings in the same processes: starting them takes longer than the training."""
    return {name: learn(options) for name, options in cases.items()}


def assert_close(one: dict, two: dict, rtol: float = 1e-4) -> None:
    assert one["state"].keys() == two["state"].keys()
    for name, value in one["state"].items():
        atol = rtol * np.abs(value).max(initial=0)
        np.testing.assert_allclose(two["state"][name], value, rtol=rtol, atol=atol, err_msg=name)
    assert len(one["history"]) == len(two["history"])
    for before, after in zip(one["history"], two["history"], strict=True):
        assert after == pytest.approx(before, rel=rtol)
    for name, value in one["metrics"].items():
        expected = value if value is None or isinstance(value, str) else pytest.approx(value, rel=rtol)
        assert two["metrics"][name] == expected, name


def assert_identical(one: dict, two: dict) -> None:
    for name, value in one["state"].items():
        np.testing.assert_array_equal(two["state"][name], value, err_msg=name)
    assert one["history"] == two["history"]
    assert one["metrics"] == two["metrics"]


CASES = {
    **{f"online {hessian}": config("online", hessian=hessian) for hessian in ("approx", "exact", "mixed", "block")},
    "online bottleneck": config("online", hessian="bottleneck"),
    "online sketch": config("online", hessian="sketch"),
    "online sketch, samples": config("online", hessian="sketch", samples_per_step=2),
    "posthoc sketch": config("posthoc", hessian="sketch"),
    "online lowrank": config("online", hessian="lowrank", vectors=40, temperature=1.0),
    "posthoc lowrank": config("posthoc", hessian="lowrank", vectors=40, temperature=1.0),
    "online redux": config("online", update="redux"),
    "online, samples": config("online", samples_per_step=3),
    "online, now and then": config("online", hessian_every=3),
    **{f"posthoc {hessian}": config("posthoc", hessian=hessian) for hessian in ("approx", "exact", "block")},
    "posthoc, a prior a layer": config("posthoc", optimize_prior="layer"),
    **{name: config(name) for name in ("ae", "ae-var", "bbb", "dropout", "ensemble", "vae")},
    # noise of data in the curvature: one weight sample all the same
    "online mc": config("online", hessian="mc"),
    "online kfac": config("online", hessian="kfac"),
    "posthoc kfac": config("posthoc", hessian="kfac"),
    "online bf16": config("online", precision="bf16"),
    "online, as the data choose": config("online", paper=False, epochs=4),
}
EXACT = [name for name in CASES if not any(noisy in name for noisy in (*NOISE_OF_DATA, "mc", "kfac", "bf16"))]


@pytest.fixture(scope="module")
def alone() -> dict[str, dict]:
    return learn_all(CASES)


@pytest.fixture(scope="module")
def together() -> list[dict[str, dict]]:
    return on_processes(learn_all, CASES)


@pytest.mark.parametrize("name", EXACT)
def test_two_processes_learn_what_one_learns(name, alone, together):
    assert_close(alone[name], together[0][name])


@pytest.mark.parametrize("name", CASES)
def test_processes_agree_to_the_last_bit(name, together):
    assert_identical(together[0][name], together[1][name])


@pytest.mark.parametrize("name", [name for name in CASES if name not in EXACT])
def test_where_noise_differs_training_works(name, alone, together):
    one, two = (found["history"] for found in (alone[name], together[0][name]))
    assert two[-1]["loss"] < two[0]["loss"]
    assert two[-1]["loss"] == pytest.approx(one[-1]["loss"], rel=0.5)
    assert any(not np.array_equal(alone[name]["state"][k], v) for k, v in together[0][name]["state"].items())


def draws(options: Config) -> tuple[list, list, list]:
    """What the processes draw for the weights and for data, and the precision, after each of three steps."""
    from lapae.config.methods import OnlineOptions
    from lapae.methods.online import Online

    weights, data, precision = [], [], []

    class Watched(Online):
        options = OnlineOptions

        def sample_params(self, generator):
            params = super().sample_params(generator)
            weights.append(float(next(iter(params.values())).detach().sum()))
            return params

        def after_backward(self, step):
            super().after_backward(step)
            data.append(float(torch.randn((), generator=step.noise_of_data)))
            precision.append(float(h_of(self).double().sum()))

    METHODS["watched"] = Watched
    fit(dataclasses.replace(options, method=MethodConfig("watched", options.method.options)), curve(18, 0, 0))
    return weights, data, precision


def test_weight_samples_are_shared():
    first, second = on_processes(draws, config("online", epochs=1))
    assert len(first[0]) == 3
    assert first[0] == second[0]
    assert all(a != b for a, b in zip(first[1], second[1], strict=True))  # noise of data: each its own
    assert first[2] == second[2]


def test_posthoc_of_a_trained_autoencoder(tmp_path):
    """Nothing is trained, and the one all-reduce is that of the curvature."""
    run = Run.create(tmp_path / "ae")
    fit(config("ae"), curve(), run=run)
    options = config("posthoc", pretrained=str(run.path))
    first, second = on_processes(learn, options)
    assert_close(learn(options), first)
    assert_identical(first, second)


def estimate() -> tuple[list, list]:
    from lapae import LaplacianAutoencoder

    x = np.asarray(curve().train.x)
    torch.manual_seed(0)
    network = (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)), nn.Linear(2, 5))  # hides no values
    options = {"network": network, "hessian": "approx", "epochs": 2, "batch_size": BATCH}
    model = LaplacianAutoencoder(**options, random_state=0, device="cpu").fit(x)
    z, std = model.transform(x, return_std=True)
    return z.tolist(), std.tolist()


def test_the_estimator_learns_on_several_processes_too():
    first, second = on_processes(estimate)
    assert first == second
    for alone, together in zip(estimate(), first, strict=True):
        np.testing.assert_allclose(together, alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["online approx", "online sketch", "posthoc sketch"])
def test_three_processes_and_batches_smaller_than_their_number(name):
    options = dataclasses.replace(CASES[name], train=TrainConfig(epochs=2, batch_size=2, device="cpu"))
    sizes = (13, 2, 1)
    found = on_processes(learn, options, sizes, world_size=3)
    assert_close(learn(options, sizes), found[0])
    assert_identical(found[0], found[1])
    assert_identical(found[0], found[2])


def test_early_stopping_is_decided_alike(alone):
    """Noise in the validation loss ends training well before its last epoch."""
    options = config("vae", epochs=60, patience=2)
    first, second = on_processes(learn, options)
    assert_identical(first, second)
    assert "no better validation loss" in first["metrics"]["stopped"]


def bytes_of_a_step(hessian_every: int, hessian: str) -> tuple[int, int, int]:
    """Bytes all-reduced in two steps for the gradient and for the curvature; number of weights."""
    from torch import distributed as dist

    from lapae.train import distributed as processes
    from lapae.train import loop, step

    counted = {"gradient": 0, "curvature": 0}
    all_reduce, make_step, averaging_gradients = dist.all_reduce, loop.make_step, step.averaging_gradients

    def hook(state, bucket):
        counted["gradient"] += bucket.buffer().nbytes
        future = sure(dist.all_reduce(bucket.buffer().div_(2), async_op=True)).get_future()
        return future.then(lambda done: done.value()[0])

    def counting(tensor, *args, **kwargs):
        counted["curvature"] += tensor.nbytes
        return all_reduce(tensor, *args, **kwargs)

    def hooked(method):
        module = averaging_gradients(method)
        module.register_comm_hook(None, hook)
        return module

    def watched(*args, **kwargs):
        step = make_step(*args, **kwargs)

        def counted_step(*args):
            processes.dist.all_reduce = counting
            try:
                return step(*args)
            finally:
                processes.dist.all_reduce = all_reduce

        return counted_step

    loop.make_step, step.averaging_gradients = watched, hooked
    options = config("online", epochs=1, hessian=hessian, hessian_every=hessian_every)
    model = fit(options, curve(2 * BATCH, 3, 3))
    n_weights = sum(p.numel() for p in model.method.parameters())
    # the hook's own all-reduces are counted with the curvature's
    return counted["gradient"], counted["curvature"] - counted["gradient"], n_weights


@pytest.mark.parametrize(("hessian_every", "hessian"), [(1, "approx"), (2, "approx"), (1, "sketch")])
def test_bytes_of_a_step_are_those_of_the_page(hessian_every, hessian):
    """docs/large_data.md: 4 P for the gradient, 4 P for the curvature every hessian_every-th step, nothing else."""
    for gradient, curvature, n_weights in on_processes(bytes_of_a_step, hessian_every, hessian):
        assert gradient == 2 * 4 * n_weights
        assert curvature == 2 * 4 * n_weights // hessian_every
