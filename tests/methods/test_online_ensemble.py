"""An ensemble of online posteriors: members that learn as they would alone, and draws from each in turn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from narrow import as_a, h_of
from torch import nn

from lapae import LaplacianAutoencoder
from lapae.config.methods import OnlineEnsembleOptions, OnlineOptions
from lapae.curvature.likelihoods import Gaussian
from lapae.methods import Online, OnlineEnsemble
from lapae.methods.step import StepContext
from lapae.networks import Autoencoder


def network() -> Autoencoder:
    return Autoencoder(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), nn.Linear(2, 5))


def ensemble(members: int = 3) -> OnlineEnsemble:
    torch.manual_seed(0)
    return OnlineEnsemble(network, Gaussian(), OnlineEnsembleOptions(members=members), 20)


def test_a_member_learns_as_it_would_alone():
    torch.manual_seed(0)
    alone = Online(network, Gaussian(), OnlineOptions(), 20)
    together = ensemble(1)
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(1))
    for method in (alone, together):
        step = StepContext(generator=torch.Generator().manual_seed(2))
        loss = method(x, step)
        method.after_forward(step)
        loss.backward()
    member = as_a(Online, together.members[0])
    for (name, one), (_, other) in zip(alone.named_parameters(), member.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, msg=name)
    torch.testing.assert_close(h_of(alone), h_of(member))


def test_draws_are_of_the_members_in_turn():
    method, seeds = ensemble(), [7, 3, 5, 4]
    x = torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = method.draw(seeds).encode(x)
        for seed, one in zip(seeds, found, strict=True):
            torch.testing.assert_close(one, as_a(Online, method.members[seed % 3]).draw([seed]).encode(x)[0])
    method.temperature = 0.25
    assert [as_a(Online, member).posterior.temperature for member in method.members] == [0.25] * 3


def test_the_estimator_takes_it_and_gets_it_back(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)) @ rng.normal(size=(2, 6)) + 0.1 * rng.normal(size=(200, 6))
    model = LaplacianAutoencoder(method="online-ensemble", epochs=3, random_state=0, device="cpu").fit(x)
    single = LaplacianAutoencoder(epochs=3, random_state=0, device="cpu", predictive="mc").fit(x)
    far = 5 * rng.normal(size=(50, 6))
    assert model.reconstruct(x, return_std=True)[1].shape == x.shape
    assert np.median(model.p_value(far)) < 0.1
    wider = [m.score_parts(far)["latent_deviation"].mean() for m in (model, single)]
    assert wider[0] > wider[1]  # members disagree where there were no data
    model.save(tmp_path / "run")
    again = LaplacianAutoencoder.load(tmp_path / "run")
    np.testing.assert_allclose(again.score_samples(far), model.score_samples(far), rtol=1e-4)
    assert model.sample(3).shape == (3, 6)
    with pytest.raises(ValueError, match="use mc"):
        model.set_params(predictive="moments")
