"""Imputation: what is fixed, what is filled, and the errors by hand."""

import json

import numpy as np
import pytest
import torch
from bars import SHAPE, images, model_of, trained
from torch import nn

from lapae import LaplacianAutoencoder
from lapae.curvature.likelihoods import Gaussian
from lapae.data import Data
from lapae.impute.chains import impute, noise_like
from lapae.methods import Method, Output
from lapae_paper.tasks.completion import CompletionOptions, MaskName, completed, evaluate, judge, mask


class Constant(Method):
    """Reconstructs everything as the number seed % 2, whatever comes in: two modes, known exactly."""

    def __init__(self):
        super().__init__(Gaussian())
        self.weight = nn.Parameter(torch.zeros(()))

    def draw(self, seeds):
        class It:
            def encode(self, x):
                return x.flatten(2).expand(len(x), -1, -1)

            def decode(self, z):
                values = torch.tensor([float(s % 2) for s in seeds])
                return Output(values[:, None, None, None, None].expand(len(z), z.shape[1], *SHAPE))

        return It()

    def draw_mean(self):
        return self.draw([0])


def judged(method, x, observed, **options):
    return judge(x, observed, completed(model_of(method), x, observed, CompletionOptions(**options)))


def test_every_method(method):
    x = images(10, 5)[0]
    found = judged(method, x, mask("upper", SHAPE), modes=3, average=2)
    result = found.to_dict()
    json.dumps(result, allow_nan=False)
    assert found.imputation.samples.shape == (3, 10, *SHAPE)
    assert torch.equal(found.imputation.samples[:, :, :, 4:], x[None, :, :, 4:].expand(3, -1, -1, -1, -1))
    assert found.imputation.var[:, :, 4:].max() == 0
    assert result["missing"] == 0.5
    assert set(found.figures()) == {"completion_modes"}
    noise = impute(method, x, mask("upper", SHAPE), modes=1, average=0, steps=1)
    again = impute(method, x, mask("upper", SHAPE), modes=1, average=0, steps=1)
    assert torch.equal(noise.samples, again.samples)


def test_imputing_is_better_than_noise():
    x = images(50, 5)[0]
    observed = mask("random", SHAPE, n=50, missing=0.3)
    found = judged("ensemble", x, observed, steps=3)
    fill = noise_like(x, (0.0, 1.0), 0)
    assert found.mse_missing < 0.5 * (fill - x)[~observed].square().mean().item()
    assert found.missing == pytest.approx(0.3, abs=0.03)


def test_errors_by_hand():
    x = torch.rand(4, *SHAPE)
    observed = mask("left", SHAPE)
    found = judged(Constant(), x, observed, modes=2, average=0)
    hidden = x[..., :4]
    # one mode says 0, the other 1: mean 1/2, deviation sqrt(1/2), distance 1
    assert found.mse_missing == pytest.approx((hidden - 0.5).square().mean().item(), rel=1e-5)
    assert found.error_missing == pytest.approx((hidden - 0.5).square().flatten(1).sum(1).mean().item(), rel=1e-5)
    both = 0.5 * (hidden.square() + (hidden - 1).square())
    assert found.error_missing_samples == pytest.approx(both.flatten(1).sum(1).mean().item(), rel=1e-5)
    assert found.error_whole == pytest.approx((x - 0.5).square().flatten(1).sum(1).mean().item(), rel=1e-5)
    whole = 0.5 * (x.square() + (x - 1).square())
    assert found.error_whole_samples == pytest.approx(whole.flatten(1).sum(1).mean().item(), rel=1e-5)
    assert found.mode_distance == pytest.approx(1.0)
    assert found.missing == 0.5
    samples = found.imputation.samples
    assert sorted(samples[:, 0, 0, 0, 0].tolist()) == [0.0, 1.0], "modes are kept apart"


def test_the_second_stage_averages_within_a_mode():
    found = impute(Constant(), torch.full((3, *SHAPE), torch.nan), modes=2, average=4)
    torch.testing.assert_close(found.reconstructions, torch.full((2, 3, *SHAPE), 0.5))
    assert found.var.max() == 0


def test_the_observed_part_reaches_the_networks_at_every_step():
    seen = []

    class Spy(Constant):
        def draw(self, seeds):
            it = super().draw(seeds)
            encode = it.encode
            it.encode = lambda x: (seen.append(x.clone()), encode(x))[1]
            return it

    x = torch.rand(2, *SHAPE)
    impute(Spy(), x, mask("lower", SHAPE), modes=2, average=1, steps=3)
    assert len(seen) == 4
    for inputs in seen:
        rows = inputs.reshape(-1, 2, *SHAPE)
        assert torch.equal(rows[..., :4, :], x[None, ..., :4, :].expand_as(rows[..., :4, :]))
    assert seen[0][..., 4:, :].min() >= 0
    assert seen[0][..., 4:, :].std() > 0.05, "noise first"


def test_nan_marks_missing_values_in_tables():
    x = torch.rand(6, 5)
    x[0, 1] = x[3, 4] = torch.nan
    torch.manual_seed(0)
    from lapae.config import MethodConfig
    from lapae.methods import build
    from lapae.networks import mlp

    method = build(MethodConfig("bbb"), lambda: mlp((5,), 2, hidden=(4,)), Gaussian(), 6)
    found = impute(method, x)
    assert found.mean.isfinite().all()
    assert torch.equal(found.samples[:, ~x.isnan()], x[~x.isnan()].expand(5, -1))
    assert found.var[0, 1] > 0
    with pytest.raises(ValueError, match="truth"):
        judge(torch.full_like(x, torch.nan), mask("none", (5,)), found)


def test_holes_of_the_data_do_not_count():
    """`eval completion` of a table with holes of its own: values that are known are hidden, and judged."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(120, 1))
    x = np.where(
        rng.random((120, 4)) < 0.2, np.nan, np.hstack([a, 2 * a, -a, a + 1]) + 0.01 * rng.normal(size=(120, 4))
    )
    model = LaplacianAutoencoder(epochs=2, random_state=0).fit(x).model_
    found = evaluate(model, Data.of(x), CompletionOptions(missing=0.3, modes=3))
    hidden = ~found.observed & ~found.x.isnan()
    gap = (found.imputation.mean - found.x)[hidden]
    assert found.mse_missing == pytest.approx(float(gap.square().mean()), rel=1e-4)
    assert 0 < found.mse_missing < 0.5
    assert found.missing == pytest.approx(float(hidden.double().mean()))


def test_fully_observed_and_fully_missing():
    x = images(5, 2)[0]
    seen = judged("bbb", x, mask("none", SHAPE))
    assert torch.equal(seen.imputation.mean, x)
    assert seen.mse_missing == seen.error_missing == seen.mode_distance == seen.missing == 0
    assert seen.error_whole > 0
    gone = judged("bbb", x, mask("all", SHAPE))
    assert gone.missing == 1
    again = judged("bbb", torch.zeros_like(x), mask("all", SHAPE))
    assert torch.equal(gone.imputation.samples, again.imputation.samples), "nothing of the truth is used"


def test_shared_noise_leaves_modes_to_the_networks():
    x = images(3, 2)[0]
    hidden = mask("all", SHAPE)
    assert impute(trained("ae"), x, hidden, shared_noise=True).var.max() == 0
    assert impute(trained("ae"), x, hidden).var.max() > 0
    assert impute(trained("bbb"), x, hidden, shared_noise=True).var.max() > 0


def test_batches_do_not_matter_for_weight_draws():
    x, hidden = images(9, 2)[0], mask("upper", SHAPE)
    whole, parts = (impute(trained("bbb"), x, hidden, batch_size=b) for b in (100, 4))
    torch.testing.assert_close(whole.samples, parts.samples)


def test_masks():
    sides: tuple[tuple[MaskName, int | None, int | None], ...]
    sides = (("upper", 0, None), ("lower", 7, None), ("left", None, 0), ("right", None, 7))
    for which, rows, columns in sides:
        observed = mask(which, SHAPE)
        assert observed.float().mean() == 0.5
        assert not (observed[0, 0, rows] if rows is not None else observed[0, 0, :, columns]).any()
    assert mask("upper", (1, 5, 5)).sum() == 15
    assert not torch.equal(*mask("random", SHAPE, n=2))
    with pytest.raises(ValueError, match="unknown mask"):
        mask("middle", SHAPE)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="needs images"):
        mask("upper", (5,))


def test_errors():
    x = images(3)[0]
    with pytest.raises(TypeError, match="boolean"):
        impute(trained("ae"), x, torch.ones(SHAPE))
    with pytest.raises(ValueError, match="infinities"):
        impute(trained("ae"), x / 0)
    with pytest.raises(ValueError, match="none"):
        impute(trained("ae"), x[:0])
    with pytest.raises(ValueError, match="modes"):
        impute(trained("ae"), x, modes=0)
