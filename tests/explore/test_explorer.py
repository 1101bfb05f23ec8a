"""What the explorer says, against the functions it is made of."""

from __future__ import annotations

import base64
from dataclasses import replace

import numpy as np
import pytest
import torch
from serving import QUICK, explorer, images, rows
from test_uploads import png, square

from lapae.data import Split
from lapae.predict import predict
from lapae.predict.decode import decode, encode_mean
from lapae.predict.mc import draw_seeds
from lapae.tasks.base import tensor
from lapae.view.explore.comparison import Reference
from lapae.view.explore.explorer import SIDES, fitting
from lapae.view.explore.networks import KeptNetworks
from lapae.view.explore.opening import opening
from lapae.view.explore.uploads import read_upload


def pixels(picture: dict) -> np.ndarray:
    found = np.frombuffer(base64.b64decode(picture["data"]), np.uint8)
    return found.reshape(picture["h"], picture["w"], picture["c"])


def test_place_is_what_the_decoders_say(of_images):
    found = of_images.place((0, 1), (0.3, -0.2), None)
    decoded = decode(of_images.model.method, torch.tensor([[0.3, -0.2]]), n_samples=6)
    np.testing.assert_array_equal(pixels(found["mean"])[..., 0], (decoded.mean[0, 0].clamp(0, 1) * 255).round().numpy())
    assert found["total"] == pytest.approx(float(decoded.total[0]), rel=1e-3)
    assert found["deviation"]["top"] == pytest.approx(of_images.top, rel=1e-3)


def test_place_of_a_map_through_a_datum(of_rows):
    space = of_rows.space
    code = space.codes[7]
    u, v = (float(c) for c in (code - space.origin) @ space.directions[[0, 2]].T)
    found = of_rows.place((0, 2), (u, v), code)
    np.testing.assert_allclose(found["z"], code, rtol=1e-3, atol=1e-3)  # a datum lies in the plane through itself
    elsewhere = np.array(of_rows.place((0, 2), (u + 1, v), code)["z"])
    np.testing.assert_allclose((elsewhere - code) @ space.directions.T, [1, 0, 0], atol=1e-2)
    assert found["mean"] != of_rows.place((0, 2), (u, v), None)["mean"]


def test_shades_are_deviations_row_by_row(of_images):
    found = [value for r in (0, 4) for value in of_images.heat((0, 1), None, range(r, r + 4))]
    whole = decode(of_images.model.method, torch.as_tensor(of_images.space.grid((0, 1), 8)), n_samples=6)
    np.testing.assert_allclose(found, whole.total.numpy(), rtol=1e-3)


def test_item_is_the_prediction_for_it(of_images):
    test = of_images.material.parts["test"]
    found = of_images.item("test", 3)
    x = tensor(of_images.model, test, np.array([3]))
    want = ("codes", "covariance", "outputs", "density")
    told = predict(of_images.model.method, x, n_samples=6, want=want)
    np.testing.assert_allclose(found["covariance"], told.z_cov[0], rtol=2e-3)
    np.testing.assert_allclose(found["center"], told.z_mean[0], rtol=1e-3)
    np.testing.assert_allclose(found["at"], encode_mean(of_images.model.method, x)[0], rtol=1e-3)
    assert found["unusual"]["log_likelihood"] == pytest.approx(float(told.log_likelihood[0]), rel=1e-3)
    assert found["values"] == np.asarray(test.x[3]).reshape(-1).tolist()
    assert found["label"] == "<img src=x onerror=alert(1)>"  # datum 98 of all: its class is a hostile name
    np.testing.assert_array_equal(pixels(found["mean"])[..., 0], (told.x_mean[0, 0].clamp(0, 1) * 255).round().numpy())
    assert found["deviation_total"] == pytest.approx(float(told.x_var.sqrt().sum()), rel=1e-3)


def test_what_a_datum_is_compared_with(of_images):
    test, train = of_images.item("test", 0)["unusual"], of_images.item("train", 0)["unusual"]
    assert [rank["among"] for rank in test["ranks"]] == ["test data (not trained on)", "training data"]
    assert [rank["among"] for rank in train["ranks"]] == ["training data", "test data (not trained on)"]
    held_out = of_images.comparison.references["held_out"]
    assert test["ranks"][0]["n"] == len(held_out.index) - (0 in held_out.index)  # not with itself
    inverted = 255.0 - np.asarray(of_images.material.parts["test"].x[0])
    strange = of_images.look(inverted)["unusual"]["ranks"][0]
    assert strange["percentile"] == 0
    assert strange["verdict"] == "very unusual"
    assert strange["words"] == "More unusual than every one of 20 test data (not trained on)."


def test_percentiles_are_ranks():
    reference = Reference("data", "test", np.arange(5), torch.zeros(5, 1), np.array([1.0, 2.0, 2.0, 3.0, np.nan]))
    assert reference.rank(2.5).percentile == 75
    assert reference.rank(2.0).percentile == 50
    assert reference.rank(2.0, split="test", index=1).percentile == 50
    assert reference.rank(3.0, split="test", index=3).percentile == 100
    assert reference.rank(3.0, split="test", index=3).words == "More ordinary than every one of 3 data."
    assert reference.rank(0.0).verdict == "very unusual"
    assert reference.rank(-np.inf).percentile == 0
    assert reference.rank(np.nan) is None


def test_missing_values_are_compared_with_data_that_lack_them_too(of_rows):
    stored = np.array(of_rows.material.parts["test"].x[2])
    stored[[1, 4]] = np.nan
    found = of_rows.look(stored)["unusual"]
    (rank,) = found["ranks"]
    assert rank["among"] == "test data (not trained on), without the same values"
    x = torch.as_tensor(of_rows.model.space.convert(np.asarray(of_rows.material.parts["test"].x)))
    x = x[of_rows.comparison.references["held_out"].index]
    x[:, [1, 4]] = torch.nan
    scores = predict(of_rows.model.method, x, n_samples=6, want=("density",)).log_likelihood
    below = float((scores < found["log_likelihood"]).double().mean()) * 100
    assert rank["percentile"] == pytest.approx(below, abs=5.1)  # the score is told with four digits


def test_completions_keep_what_is_visible_and_differ_elsewhere(of_images):
    stored = np.asarray(of_images.material.parts["test"].x[1]).astype(np.float64)
    stored[:, :4] = np.nan
    found = of_images.complete(stored, 0)
    assert len(found["samples"]) == 6
    assert np.shape(found["at"]) == (6, 2)
    for sample in found["samples"]:
        np.testing.assert_array_equal(pixels(sample)[4:, :, 0], stored[0, 4:])
    assert len({sample["data"] for sample in found["samples"]}) > 1
    assert pixels(found["deviation"])[4:].max() == 0
    assert pixels(found["deviation"])[:4].max() == 255  # painted on the scale of its own largest
    assert of_images.complete(stored, 0) == found
    assert of_images.complete(stored, 1) != found


def test_rows_are_told_in_the_units_of_the_data(of_rows):
    found = of_rows.item("train", 0)
    assert found["values"] == np.asarray(of_rows.material.parts["train"].x[0]).tolist()
    assert all(50 < value < 150 for value in found["mean"])
    stored = np.asarray(of_rows.material.parts["train"].x[0]).copy()
    stored[2] = np.nan
    completed = of_rows.complete(stored, 0)
    assert completed["mean"][0] == pytest.approx(stored[0], rel=1e-3)
    assert 50 < completed["mean"][2] < 150
    assert completed["deviation"][2] > 0
    assert completed["deviation"][0] == 0
    told = opening(of_rows, "x")
    assert told["named"][0]["name"] == "mass"
    assert told["named"][0]["low"] < told["named"][0]["high"]


@pytest.mark.parametrize("method", ["posthoc", "ae", "ae-var", "vae", "dropout", "ensemble", "bbb"])
def test_every_method(tmp_path, method):
    made = explorer(images(), tmp_path, method)
    told, found = opening(made, "x"), made.item("test", 0)
    assert told["spread"] == (method not in ("ae", "ensemble"))
    assert ("no deviation to show" in told["uncertainty"]) == (method == "ae")
    assert (found["covariance"] is not None) == told["ellipse"] == (method not in ("ae", "ae-var", "ensemble"))
    assert (found["deviation_total"] > 0) == (method != "ae")
    assert made.item("test", 0) == found  # nothing goes on along a stream of noise
    assert made.place((0, 1), (0.1, 0.2), None) == made.place((0, 1), (0.1, 0.2), None)
    hidden = np.asarray(made.material.parts["test"].x[0]).astype(float)
    hidden[:, :, :4] = np.nan
    assert len(made.complete(hidden, 0)["samples"]) == 6


def test_without_data(tmp_path):
    made = explorer(rows(), tmp_path, with_data=False)
    told = opening(made, "x", "they are gone")
    assert told["splits"] == {}
    assert told["no_data"] == "they are gone"
    assert len(told["points"]) == QUICK.points
    found = made.look(np.full(6, 100.0))["unusual"]
    assert found["ranks"] == []
    assert found["reason"] == "There are no data to compare it with."


def test_colours_through_convolutions(tmp_path):
    gray = images()
    splits = {name: getattr(gray, name) for name in ("train", "valid", "test")}
    coloured = {
        name: Split(np.repeat(split.x, 3, 1) // [[[1]], [[2]], [[4]]], split.y) for name, split in splits.items()
    }
    made = explorer(
        replace(gray, space=replace(gray.space, shape=(3, 8, 8)), **coloured), tmp_path, network="conv", channels=(4,)
    )
    assert made.place((0, 1), (0, 0), None)["mean"]["c"] == 3
    found = made.item("test", 0)
    stored = np.reshape(found["values"], (3, 8, 8))
    stored[:, :, 4:] = np.nan
    for sample in made.complete(stored, 0)["samples"]:
        np.testing.assert_array_equal(pixels(sample)[:, :4], np.moveaxis(stored, 0, -1)[:, :4])
    upload = read_upload(png(square()), made.model)
    np.testing.assert_array_equal(upload.stored, np.repeat(square()[None], 3, 0))


def test_slow_networks_have_coarser_maps():
    assert fitting(1e-3, SIDES, 32) == 32
    assert fitting(0.02, SIDES, 32) == 16
    assert fitting(100.0, SIDES, 32) == 8
    assert fitting(1e-3, SIDES, 8) == 8
    assert fitting(100.0, SIDES, 4) == 4


def test_codes_of_one_dimension(tmp_path):
    made = explorer(rows(), tmp_path, latent_dim=1)
    told, found = opening(made, "x"), made.item("test", 0)
    assert [axis["name"] for axis in told["axes"]] == ["z1", "no second axis"]
    assert np.shape(found["covariance"]) == (2, 2)
    assert found["covariance"][1] == [0, 0]
    assert made.place((0, 1), (0.5, 0.9), None)["mean"] == made.place((0, 1), (0.5, -0.9), None)["mean"]


def test_networks_are_kept_once_and_within_their_room(of_images):
    method = of_images.model.method
    n_weights = sum(p.numel() for p in method.parameters())
    kept = KeptNetworks(method, most_weights=5 * n_weights)
    first = kept.draw([0, 1, 2])
    assert kept.draw([0, 1, 2]) is first
    assert kept.draw([3, 4, 5]) is not kept.draw([3, 4, 5])  # no room
    z = torch.randn(1, 4, 2)
    with torch.no_grad():
        torch.testing.assert_close(first.decode(z).loc, method.draw(draw_seeds(0, 3)).decode(z).loc)
