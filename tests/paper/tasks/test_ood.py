"""Out-of-distribution detection on every method, and its scores by hand."""

import json

import numpy as np
import pytest
import torch
from bars import data_of, images, model_of
from matplotlib.figure import Figure
from narrow import sure
from sklearn.metrics import roc_auc_score

from lapae.data import Split
from lapae.errors import ConfigError
from lapae.predict import Predictive
from lapae.space import Space
from lapae_paper.tasks.ood import SCORES, OodOptions, detect, varying_features


def test_every_method(method):
    data, outside = data_of(images(60, 1)[0], images(40, 3)[0]), 1 - images(50, 2)[0]
    found = detect(model_of(method), data, {"inverted": outside}, OodOptions(n_samples=10, bootstrap=20))
    result = found.to_dict()
    json.dumps(result, allow_nan=False)
    assert set(result["sets"]["inverted"]) == set(SCORES)
    assert result["n_data"] == {"bars": 60, "inverted": 50}
    assert result["sets"]["inverted"]["log_likelihood"]["auroc"]["value"] > 0.9
    y = np.r_[np.zeros(60), np.ones(50)]
    for score, detection in found.detections["inverted"].items():
        s = np.r_[found.inside[score], found.outside["inverted"][score]]
        assert detection.auroc.value == pytest.approx(roc_auc_score(y, s))
    assert all(isinstance(figure, Figure) for figure in found.figures().values())
    assert len(found.figures()) == 2


@pytest.mark.parametrize("name", ["bbb", "vae"])
def test_scores_by_hand(name):
    model, x, train = model_of(name), images(20, 1)[0], images(30, 3)[0]
    found = detect(model, data_of(x, train), {"other": 1 - x}, OodOptions(n_samples=7, seed=2, bootstrap=0))
    want = ("codes", "outputs", "density")
    p, t = (model.predict(data, want, Predictive("mc", 7, 2)) for data in (x, train))
    np.testing.assert_allclose(found.inside["log_likelihood"], -sure(p.log_likelihood), rtol=1e-5)
    np.testing.assert_allclose(found.inside["latent_deviation"], sure(p.z_var).sqrt().sum(1), rtol=1e-4)
    var = sure(p.x_var) + sure(p.x_noise) if name == "vae" else sure(p.x_var)
    np.testing.assert_allclose(found.inside["output_deviation"], var.sqrt().flatten(1).sum(1), rtol=1e-4)
    typical = (sure(t.log_likelihood).mean() - sure(p.log_likelihood)).abs()
    np.testing.assert_allclose(found.inside["typicality"], typical, rtol=1e-3, atol=1e-3)


def test_deterministic_methods_have_constant_deviations():
    outside = {"a": images(20, 2)[0], "b": 1 - images(9, 2)[0]}
    found = detect(model_of("ae"), data_of(images(20, 1)[0]), outside, OodOptions(n_samples=5))
    assert set(found.detections) == {"a", "b"}
    assert found.detections["b"]["latent_deviation"].auroc.value == 0.5
    assert found.detections["a"]["log_likelihood"].auroc.low > 0


def test_a_learned_variance_is_part_of_the_output_deviation():
    x = images(20, 1)[0]
    found = detect(model_of("ae-var"), data_of(x), {"a": x}, OodOptions(n_samples=5))
    assert found.inside["output_deviation"].std() > 0


def test_empty_sets_are_errors():
    x = images(5)[0]
    with pytest.raises(ConfigError, match="'none' is empty"):
        detect(model_of("ae"), data_of(x), {"none": x[:0]}, OodOptions())
    with pytest.raises(ConfigError, match="at least one"):
        detect(model_of("ae"), data_of(x), {}, OodOptions())


def test_nan_data_are_an_error_and_not_a_number():
    x = images(5)[0]
    bad = x.clone()
    bad[0] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        detect(model_of("ae"), data_of(x), {"bad": bad}, OodOptions())


def test_what_never_varies_is_left_out_of_the_last_score():
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    x[:, 1] = 2.0
    varying = varying_features(Split(x, None), Space.of(x))
    assert varying is not None
    assert varying.tolist() == [True, False, True]
    assert varying_features(Split(x[:, [0, 2]], None), Space.of(x[:, [0, 2]])) is None
    model, images_in = model_of("dropout"), images(20, 1)[0]
    images_in[:, 0, 0] = 0.0
    found = detect(model, data_of(images_in), {"a": images_in}, OodOptions(n_samples=20, bootstrap=0)).inside
    deviation = sure(model.predict(images_in, predictive=Predictive("mc", 20, 0)).x_var).sqrt()
    np.testing.assert_allclose(found["varying_deviation"], deviation[:, 0, 1:].flatten(1).sum(1), rtol=1e-4)
    np.testing.assert_allclose(found["output_deviation"], deviation.flatten(1).sum(1), rtol=1e-4)
