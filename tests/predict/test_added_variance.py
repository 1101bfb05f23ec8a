"""Standard deviations of values whose variance over networks is added: it counts as the rest of the row says."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lapae.predict.deviation import Deviation, passed_on
from lapae.predict.prediction import Prediction

N, D = 500, 6


@pytest.fixture(scope="module")
def rows() -> Tensor:
    mixing = torch.tensor([[1.0, 1, 1, -1, 0.5, 0], [0, 1, -1, 1, 0.5, 1]], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    z, noise = (torch.randn(N, k, generator=generator, dtype=torch.float64) for k in (2, D))
    return z @ mixing + 0.3 * noise


@pytest.fixture(scope="module")
def projection(rows: Tensor) -> Tensor:
    """Principal components: the linear autoencoder of the rows."""
    directions = torch.linalg.svd(rows - rows.mean(0)).Vh[:2]
    return directions.T @ directions


def predict(rows: Tensor, projection: Tensor, variance: float = 0.1) -> Prediction:
    mean = rows.nan_to_num() @ projection
    return Prediction(1, {"z_mean": mean[:, :2], "x_mean": mean, "x_var": torch.full_like(mean, variance)})


@pytest.fixture(scope="module")
def deviation(rows: Tensor, projection: Tensor) -> Deviation:
    found = predict(rows, projection)
    return Deviation.fit(found, rows, found, rows, rows, adds_variance=True)


def test_the_variance_counts_as_often_as_the_other_values_say(rows, projection, deviation):
    x = 2 * rows[:5]
    x[1, 2] = torch.nan
    found = predict(x, projection)
    alone = replace(deviation, passed=None)
    found = replace(found, values={**found.values, "x_var": found.x_var * torch.arange(1.0, D + 1)})
    noise = alone(predict(x, projection, 0.0), x)
    error, own = x - found.x_mean, found.x_var
    variance = (own + noise.square() * own.mean(1, keepdim=True) / noise.square().mean(1, keepdim=True)) / 2
    expected = torch.empty_like(x)
    for i in range(len(x)):
        for j in range(D):
            others = [k for k in range(D) if k != j and not x[i, k].isnan()]
            total = [noise[i, k] ** 2 + variance[i, k] for k in others]
            excess = sum((error[i, k] ** 2 - noise[i, k] ** 2) / t for k, t in zip(others, total, strict=True))
            said = sum(variance[i, k] / t for k, t in zip(others, total, strict=True))
            square, v = noise[i, j] ** 2, variance[i, j]
            expected[i, j] = min(square + 2 * max(0, (1 + excess) / (1 + said)) * v, 9 * (square + v)) ** 0.5
    assert torch.allclose(alone(found, x), expected)


def test_a_row_that_is_off_has_wider_intervals_unless_the_posterior_leaves_nothing_open(rows, projection, deviation):
    off = rows[:50] + 2 * (torch.eye(D, dtype=rows.dtype) - projection)[0]  # what the network cannot say
    for variance, least, most in ((0.1, 1.3, 10.0), (1e-9, 0.99, 1.01)):
        usual, wider = (deviation(predict(x, projection, variance), x) for x in (rows[:50], off))
        assert least < (wider / usual).mean() < most


def test_an_odd_value_widens_the_intervals_of_the_others_and_not_its_own(rows, projection, deviation):
    odd = rows[:50].clone()
    odd[:, 0] += 6
    usual, found = (deviation(predict(x, projection), x) for x in (rows[:50], odd))
    own, others = found[:, 0] / usual[:, 0], found[:, 1:] / usual[:, 1:]
    assert own.mean() < 1.25 < 2 < others.mean()
    blamed = replace(deviation, passed=None)
    assert (blamed(predict(odd, projection), odd)[:, 0] / usual[:, 0]).mean() > 1.5


def test_rows_of_two_values_that_are_off_have_wider_intervals(rows):
    two = rows[:, :2]
    direction = torch.linalg.svd(two - two.mean(0)).Vh[:1]
    projection = direction.T @ direction
    found = predict(two, projection)
    of_two = Deviation.fit(found, two, found, two, two, adds_variance=True)
    off = two[:50] + 3 * (torch.eye(2, dtype=rows.dtype) - projection)[0]
    usual, wider = (of_two(predict(x, projection), x) for x in (two[:50], off))
    assert (wider / usual).mean() > 1.5
    blamed = replace(of_two, passed=passed_on(two, found.x_mean))
    assert (blamed(predict(off, projection), off) / usual).mean() < 0.8 * (wider / usual).mean()


def test_a_value_that_is_very_far_off_leaves_something_known_of_the_others(rows, projection, deviation):
    far = rows[:50].clone()
    far[:, 0] += 1e3
    found = predict(far, projection)
    noise = deviation(predict(far, projection, 0.0), far)
    assert (deviation(found, far) <= 3 * (noise.square() + deviation.shared(found, noise)).sqrt() + 1e-9).all()


def test_what_is_passed_on_is_that_of_a_linear_network(rows, projection):
    """A value that moves by 1 moves its own residual by 1 - b, and those of the others by what is passed on of this."""
    found = passed_on(rows, rows @ projection)
    left = torch.eye(D, dtype=rows.dtype) - projection
    own = left.diagonal()
    expected = (left * (own / (own.square() + 0.3**2))).fill_diagonal_(0)
    assert torch.allclose(found, expected, atol=0.02)
    lacking = torch.where(torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)) < 0.1, torch.nan, rows)
    assert torch.allclose(passed_on(lacking, predict(lacking, projection).x_mean), expected, atol=0.2)
