"""The Monte Carlo predictive against statistics over all draws at once."""

import pytest
import torch
from narrow import network_of, sure

from lapae.config import MethodConfig
from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian
from lapae.methods import Method, Output, build
from lapae.methods.output_variance import log_prob
from lapae.networks import mlp
from lapae.predict import predict
from lapae.predict.mc import draw_seeds, predict_blocks

SHAPE, N = (1, 4, 4), 11
EVERYTHING = ("codes", "covariance", "outputs", "density", "error")


def make(name, likelihood=None):
    torch.manual_seed(0)
    config = MethodConfig.taking(name, members=4)
    method = build(config, lambda: mlp(SHAPE, 2, hidden=(9,)).double(), likelihood or Gaussian(0.5), 50)
    for value in getattr(method, "rho", method).parameters():
        if name == "bbb":
            value.data.fill_(-2.0)
    return method


def data():
    return torch.rand(N, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def by_hand(method, x, n):
    with torch.no_grad():
        draws = method.eval().draw(draw_seeds(3, n))
        z = draws.encode(x[None])
        return z, draws.decode(z)


@pytest.mark.parametrize("name", ["vae", "dropout", "ensemble", "bbb"])
@pytest.mark.parametrize("chunk", [1, 3, None])
def test_statistics_over_draws(name, chunk):
    method, x = make(name), data()
    n = 4 if name == "ensemble" else 10
    z, output = by_hand(method, x, n)
    got = predict(method, x, n_samples=10, seed=3, want=EVERYTHING, draws_at_once=chunk)
    assert got.n_draws == n
    torch.testing.assert_close(got.z_mean, z.mean(0))
    torch.testing.assert_close(got.z_var, z.var(0))
    torch.testing.assert_close(sure(got.z_cov)[2], torch.cov(z[:, 2].T))
    torch.testing.assert_close(got.x_mean, output.loc.mean(0))
    torch.testing.assert_close(got.x_var, output.loc.var(0))
    noise = torch.full_like(x, 0.25) if output.var is None else output.var.mean(0)
    torch.testing.assert_close(got.x_noise, noise)
    assert got.x_learned == (name == "vae")
    terms = log_prob(method.likelihood, output, x)
    torch.testing.assert_close(got.log_likelihood, terms.exp().mean(0).log())
    errors = (output.loc - x).square().flatten(2).sum(2)
    torch.testing.assert_close(got.squared_error, errors.mean(0))
    torch.testing.assert_close(got.squared_error_of_mean, (output.loc.mean(0) - x).square().flatten(1).sum(1))


@pytest.mark.parametrize("name", ["ae", "ae-var"])
def test_a_single_network_has_no_variance(name):
    got = predict(make(name), data(), n_samples=10, want=EVERYTHING)
    assert got.n_draws == 1
    assert sure(got.z_var).abs().max() == sure(got.x_var).abs().max() == sure(got.z_cov).abs().max() == 0
    torch.testing.assert_close(got.squared_error, got.squared_error_of_mean)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Categorical()])
def test_outputs_are_in_the_space_of_the_data(likelihood):
    method, x = make("bbb", likelihood), data().round()
    output = by_hand(method, x, 5)[1].loc
    mean = torch.stack([likelihood.mean(o) for o in output])
    got = predict(method, x, n_samples=5, seed=3)
    torch.testing.assert_close(got.x_mean, mean.mean(0))
    torch.testing.assert_close(got.x_var, mean.var(0))
    torch.testing.assert_close(got.x_noise, (mean * (1 - mean)).mean(0))


def test_batches_blocks_and_iterables_agree():
    method, x = make("bbb"), data()
    whole = predict(method, x, n_samples=6)

    class Epochs:
        def epoch(self, epoch=0):
            yield from x.split(2)

    for source in (list(x.split(4)), iter(x.split(3)), Epochs()):
        got = predict(method, source, n_samples=6)
        torch.testing.assert_close(got.x_var, whole.x_var)
        torch.testing.assert_close(got.log_likelihood, whole.log_likelihood)
    blocks = list(predict_blocks(method, x, n_samples=6, batch_size=2, block_elements=4 * 16))
    assert [len(sure(b.z_mean)) for b in blocks] == [4, 4, 3]
    torch.testing.assert_close(torch.cat([sure(b.z_mean) for b in blocks]), whole.z_mean)


def test_seeds_reproduce_and_differ():
    method, x = make("bbb"), data()
    a, b, c = (predict(method, x, n_samples=4, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(sure(a.x_mean), sure(b.x_mean))
    assert not torch.equal(sure(a.x_mean), sure(c.x_mean))
    assert not set(draw_seeds(0, 1000)) & set(draw_seeds(1, 1000))
    assert max(draw_seeds(2**31, 10)) < 2**32


def test_far_away_values_keep_their_variance():
    """Deviations of 1e-3 around 1e3 in float32: a sum of squares would lose them."""

    class Far(Method):
        def __init__(self):
            super().__init__(Gaussian())
            self.p = torch.nn.Parameter(torch.zeros(()))

        def draw(self, seeds):
            class It:
                def encode(self, x):
                    return 1000 + torch.tensor([1e-3 * s for s in seeds])[:, None, None].expand(-1, x.shape[1], 2)

                def decode(self, z):
                    return Output(z)

            return It()

    got = predict(Far(), torch.zeros(3, 2), n_samples=9, want=("codes",), draws_at_once=2)
    assert sure(got.z_var)[0, 0].item() == pytest.approx(7.5e-6, rel=0.1)


def test_the_method_keeps_its_modes_and_gradients_are_off():
    method = make("bbb").train()
    network_of(method).eval()
    got = predict(method, data(), n_samples=2)
    assert method.training
    assert not network_of(method).training
    assert not sure(got.x_mean).requires_grad


def test_only_what_is_asked_for_is_computed():
    got = predict(make("bbb"), data(), n_samples=2, want=("codes",))
    assert set(got.values) == {"z_mean", "z_var"}
    with pytest.raises(AttributeError, match="has no x_mean: ask for 'outputs'"):
        _ = got.x_mean


def test_progress_counts_networks_times_data():
    done = []
    predict(make("bbb"), data(), n_samples=6, batch_size=4, draws_at_once=4, progress=done.append)
    assert sum(done) == 6 * N


def test_errors():
    method = make("bbb")
    with pytest.raises(ValueError, match="n_samples=0"):
        predict(method, data(), n_samples=0)
    with pytest.raises(ValueError, match="nonsense"):
        predict(method, data(), want=("nonsense",))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="none"):
        predict(method, data()[:0])


def test_density_far_in_the_tail_is_finite():
    got = predict(make("bbb", Gaussian(1e-3)), data() + 50, n_samples=3)
    assert sure(got.log_likelihood).isfinite().all()
