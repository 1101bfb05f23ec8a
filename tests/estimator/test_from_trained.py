"""A trained network in two lines: nothing of it is changed, and every verb works."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from narrow import network_of
from torch import Tensor, nn

from lapae import LaplacianAutoencoder


class UNet(nn.Module):
    """A model with a skip inside each half, a spatial code, and verbs of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(5, 2, 3, stride=2, padding=1)
        self.up, self.last = nn.ConvTranspose2d(2, 4, 2, stride=2), nn.Conv2d(4, 1, 3, padding=1)

    def encode(self, x: Tensor) -> Tensor:
        return self.down(torch.cat([x, torch.relu(self.first(x))], 1))

    def decode(self, z: Tensor) -> Tensor:
        return self.last(torch.relu(self.up(z)))


def images(n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    place = rng.uniform(2, 6, (n, 2, 1, 1))
    y, x = np.mgrid[:8, :8]
    return np.exp(-((y - place[:, 0]) ** 2 + (x - place[:, 1]) ** 2) / 3)


@pytest.fixture(scope="module")
def trained() -> UNet:
    torch.manual_seed(0)
    network, x = UNet(), torch.from_numpy(images(200)[:, None]).float()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        (network.decode(network.encode(x)) - x).square().mean().backward()
        optimizer.step()
    return network


@pytest.fixture(scope="module")
def model(trained) -> LaplacianAutoencoder:
    return LaplacianAutoencoder.from_trained(trained, random_state=0, device="cpu").fit(images(150))


def test_nothing_is_trained(model, trained):
    x = torch.from_numpy(images(5)[:, None]).float()
    with torch.no_grad():
        code = trained.encode(x)
    network = model.model_.method.network
    with torch.no_grad():
        torch.testing.assert_close(network.encoder(x), code.flatten(1))
        torch.testing.assert_close(network.decoder(code.flatten(1)), trained.decode(code))
    assert model.latent_dim_ == 32
    assert all(parameter.requires_grad for parameter in trained.parameters())


def test_a_pair_of_modules_is_the_same(model, trained):
    class Half(nn.Module):
        def __init__(self, verb: str) -> None:
            super().__init__()
            self.network, self.verb = copy.deepcopy(trained), verb

        def forward(self, x: Tensor) -> Tensor:
            return getattr(self.network, self.verb)(x)

    pair = LaplacianAutoencoder.from_trained(Half("encode"), Half("decode"), random_state=0, device="cpu")
    theirs = pair.fit(images(150)).model_
    x = torch.from_numpy(images(20)[:, None]).float()
    with torch.no_grad():
        torch.testing.assert_close(network_of(model.model_.method)(x), network_of(theirs.method)(x))
    # Weights that a half does not use do not change what is unusual.
    gaps = np.corrcoef(model.model_.surprise(images(60))[0], theirs.surprise(images(60))[0])[0, 1]
    assert gaps > 0.8


def test_every_verb(model, tmp_path, trained):
    x = images(40)
    z, z_std = model.transform(x, return_std=True)
    assert z.shape == z_std.shape == (40, 32)
    assert (z_std > 0).any()
    low, high = model.predict_interval(x, 0.9)
    assert 0.8 < ((low <= x) & (x <= high)).mean() < 0.98
    noise = np.random.default_rng(0).uniform(size=(40, 8, 8))
    assert model.p_value(noise).max() < 0.05 < np.median(model.p_value(x))
    hidden = x.copy()
    hidden[:, :4] = np.nan
    assert np.isfinite(model.impute(hidden)).all()
    assert model.explain(x).shape == model.sample(40).shape == x.shape
    model.save(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = LaplacianAutoencoder.load(tmp_path / "run", network=trained)
    np.testing.assert_array_equal(again.p_value(x), model.p_value(x))


def test_a_network_that_reproduces_everything_tells_by_its_codes():
    """Trained on anything at all, it leaves no error: but the codes of other data lie elsewhere."""

    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x

    model = LaplacianAutoencoder.from_trained(Same(), Same(), random_state=0, device="cpu").fit(images(300))
    assert "distance" in model.score_parts(images(5))
    far = np.flip(images(40), 0).transpose(0, 2, 1)[:, ::-1] * 0.5 + 0.3  # as smooth, but elsewhere
    assert np.median(model.p_value(far)) < 0.05 < np.median(model.p_value(images(100)))
