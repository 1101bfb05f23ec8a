"""What the explorer says, against the functions it is made of."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from narrow import sure
from serving import QUICK, explorer, images, rows
from test_uploads import png, square

from lapae.data import Split
from lapae.generate.geometry import Geometry
from lapae.methods.base import Output
from lapae.predict import predict
from lapae.predict.decode import decode, encode_mean
from lapae.predict.mc import draw_seeds
from lapae.runs.numbers import number
from lapae.view.explore.explorer import fitting
from lapae.view.explore.networks import KeptNetworks
from lapae.view.explore.opening import opening
from lapae.view.explore.uploads import read_upload
from lapae.view.named_splits import NamedSplits
from lapae.view.verdicts import in_words


def pixels(picture: dict) -> np.ndarray:
    found = np.frombuffer(base64.b64decode(picture["data"]), np.uint8)
    return found.reshape(picture["h"], picture["w"], picture["c"])


def test_place_is_what_the_decoders_say(of_images):
    found = of_images.place((0, 1), (0.3, -0.2), None)
    decoded = decode(of_images.model.method, torch.tensor([[0.3, -0.2]]), n_samples=6)
    np.testing.assert_array_equal(pixels(found["mean"])[..., 0], (decoded.mean[0, 0].clamp(0, 1) * 255).round().numpy())
    assert found["total"] == pytest.approx(float(decoded.total[0]), rel=1e-3)
    assert found["deviation"]["top"] == pytest.approx(of_images.top, rel=1e-3)


def test_place_of_a_map_through_a_sample(of_rows):
    space = of_rows.space
    code = space.codes[7]
    u, v = (float(c) for c in (code - space.origin) @ space.directions[[0, 2]].T)
    found = of_rows.place((0, 2), (u, v), code)
    np.testing.assert_allclose(found["z"], code, rtol=1e-3, atol=1e-3)  # a sample lies in the plane through itself
    elsewhere = np.array(of_rows.place((0, 2), (u + 1, v), code)["z"])
    np.testing.assert_allclose((elsewhere - code) @ space.directions.T, [1, 0, 0], atol=1e-2)
    assert found["mean"] != of_rows.place((0, 2), (u, v), None)["mean"]


def test_shades_are_deviations_row_by_row(of_images):
    found = [value for r in (0, 4) for value in of_images.heat((0, 1), None, range(r, r + 4))]
    whole = decode(of_images.model.method, torch.as_tensor(of_images.space.grid((0, 1), 8)), n_samples=6)
    np.testing.assert_allclose(found, whole.total.numpy(), rtol=1e-3)


def test_volume_elements_are_those_of_the_plane(of_rows):
    """Against finite differences: how far decoders move along the two axes of the map, and at what angle."""
    space, geometry = of_rows.space, of_rows.geometry
    assert of_rows.volume_side == 8
    found = of_rows.volume((2, 0), None, range(3, 5))
    z = torch.as_tensor(space.grid((2, 0), 8)[24:40])
    steps = [1e-5 * torch.as_tensor(space.directions[axis]) for axis in (2, 0)]
    slopes = torch.stack([(geometry.decode(z + d).loc - geometry.decode(z - d).loc) / 2e-5 for d in steps])
    weighed = geometry.likelihood.hessian_product(slopes[0, 0], slopes.flatten(0, 1)).view_as(slopes)
    metric = torch.einsum("asbd,csbd->bac", slopes, weighed) / slopes.shape[1]
    np.testing.assert_allclose(found, metric.det().log() / 2, rtol=1e-3)


def test_a_path_is_the_geodesic(of_rows):
    found = of_rows.path((0, 1), None, ({"point": 3}, {"code": of_rows.space.codes[9]}))
    a, b = of_rows.space.codes[[3]], of_rows.space.codes[[9]]
    points = of_rows.geometry.geodesic(torch.as_tensor(a), torch.as_tensor(b))
    assert found["length"] == pytest.approx(float(of_rows.model.distance(a, b)[0]), rel=1e-3)
    assert found["length"] <= found["straight"]
    np.testing.assert_allclose(
        found["at"], (points[0].numpy() - of_rows.space.origin) @ of_rows.space.directions.T, atol=2e-3
    )
    ends = decode(of_rows.model.method, torch.as_tensor(np.concatenate([a, b])), n_samples=20).mean
    shown = of_rows.model.space.to_user(ends.double().numpy())[:, of_rows.display.features]
    np.testing.assert_allclose([found["samples"][0], found["samples"][-1]], shown, rtol=0.02)
    same = of_rows.path((0, 1), None, ({"point": 3}, {"point": 3}))
    assert max(same["length"], same["straight"]) < 1e-9


@pytest.mark.parametrize(("method", "latent_dim"), [("ae", 1), ("ensemble", 2), ("vae", 5), ("posthoc", 1)])
def test_paths_and_volumes_without_a_posterior_and_in_other_dimensions(tmp_path, method, latent_dim):
    made = explorer(rows(), tmp_path, method, latent_dim)
    volume = made.volume((0, 1), None, range(8))
    assert np.isfinite(volume).all()
    if latent_dim == 1:  # the second axis leads nowhere
        assert volume[:8] == volume[8:16]
    found = made.path((1, 0), None, ({"at": (0.0, 0.5)}, {"at": (0.0, -0.5)}))
    assert 0 < found["length"] <= found["straight"] * (1 + 1e-3)
    assert len(found["samples"]) == 7
    json.dumps(found, allow_nan=False)


def test_a_decoder_that_ignores_the_code_has_a_map_without_volume(of_images, monkeypatch):
    blind = Geometry(lambda z: Output(0 * z[None]), of_images.geometry.likelihood)
    monkeypatch.setattr(of_images, "geometry", blind)
    assert set(of_images.volume((0, 1), None, range(8))) == {-60}
    found = of_images.geometry.shortest(torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    assert float(found[1]) == 0
    assert bool(found[0].isfinite().all())


def test_item_is_what_the_model_says_of_it(of_images):
    test, model = of_images.splits.parts["test"], of_images.model
    given = np.asarray(test.x[3:4])
    found = of_images.item("test", 3)
    x = model.tensor(np.asarray(test.x[3:4]))
    told = predict(model.method, x, n_samples=6, want=("codes", "covariance"))
    np.testing.assert_allclose(found["covariance"], sure(told.z_cov)[0], rtol=2e-3)
    np.testing.assert_allclose(found["center"], sure(told.z_mean)[0], rtol=1e-3)
    np.testing.assert_allclose(found["at"], encode_mean(model.method, x)[0], rtol=1e-3)
    assert found["unusual"]["p"] == number(float(model.anomaly_score(given)[1][0]), 2)
    assert found["values"] == given.reshape(-1).tolist()
    assert (found["split"], found["index"], found["id"]) == ("test", 3, f"row {test.row(3)}")
    assert found["label"] == "<img src=x onerror=alert(1)>"  # sample 98 of all: its class is a hostile name
    expected = model.reconstruct(given)[0][0, 0]
    np.testing.assert_allclose(pixels(found["mean"])[..., 0], expected.clip(0, 255), atol=0.51)
    low, high = model.interval(given)
    assert found["width"]["top"] == pytest.approx(float((high - low).max() / 2), rel=1e-3)
    share = model.explain(given)[0, 0]
    brightest = np.unravel_index(share.argmax(), share.shape)
    assert pixels(found["blame"])[brightest] == 255


def test_what_is_strange_is_called_that(of_images):
    inverted = 255.0 - np.asarray(of_images.splits.parts["test"].x[0])
    found, n = of_images.look(inverted)["unusual"], of_images.verdicts.n_references
    assert found["p"] == number(1 / (n + 1), 2)
    assert found["words"] == f"More unusual than all of {n} normal samples that training has not seen."


def test_p_values_in_words():
    assert in_words(0.004, 9.0, 500)["verdict"] == "very unusual"
    assert in_words(0.03, 1.0, 500)["verdict"] == "unusual"
    told = in_words(0.42, 1.234, 500)
    assert told["verdict"] == "ordinary"
    assert told["words"] == "Of 500 normal samples that training has not seen, 42 % are at least as unusual."
    assert (told["p"], told["score"]) == ("0.42", "1.23")
    empty = in_words(np.nan, np.nan, 500)
    assert empty["p"] is None
    assert empty["words"] == "Nothing observed."
    assert [in_words(p, 1.0, 500)["rare"] for p in (0.05, 0.0501, np.nan)] == [True, False, False]
    assert in_words(0.08, 1.0, 500, rate=0.1) | {"rare": True, "verdict": "unusual"} == in_words(0.08, 1.0, 500, 0.1)


def test_a_row_is_found_by_its_number(of_rows):
    split = of_rows.splits.parts["test"]
    assert of_rows.splits.find("2") == ("train", 2)
    parts = {"train": replace(split, rows=np.arange(0, 60, 2)), "test": replace(split, rows=np.array([7]))}
    with_rows = NamedSplits(parts)
    assert with_rows.find("8") == ("train", 4)
    assert with_rows.find("7") == ("test", 0)
    assert with_rows.find("9") is None
    named = NamedSplits.given(split.x, ids=[f"{i}.png" for i in range(len(split))])
    assert named.find("4.png") == ("given", 4)
    assert named.id("given", 4) == "4.png"
    assert named.find("4") == ("given", 4)
    assert named.find("no.png") is None
    assert named.find("٣") is None


def test_completions_keep_what_is_visible_and_differ_elsewhere(of_images):
    stored = np.asarray(of_images.splits.parts["test"].x[1]).astype(np.float64)
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
    assert found["values"] == np.asarray(of_rows.splits.parts["train"].x[0]).tolist()
    assert all(50 < value < 150 for value in found["mean"])
    stored = np.asarray(of_rows.splits.parts["train"].x[0]).copy()
    stored[2] = np.nan
    completed = of_rows.complete(stored, 0)
    assert completed["mean"][0] == pytest.approx(stored[0], rel=1e-3)
    assert 50 < completed["mean"][2] < 150
    assert completed["low"][2] < completed["mean"][2] < completed["high"][2]
    assert completed["low"][0] == completed["high"][0] == pytest.approx(stored[0], rel=1e-3)
    shares = [sum(of_rows.item("train", i)["blame"]) for i in range(8)]  # 0 of a row that is ordinary in every way
    assert all(min(share, abs(share - 1)) < 0.01 for share in shares)
    assert max(shares) == pytest.approx(1, abs=0.01)
    assert all(low < mean < high for low, mean, high in zip(found["low"], found["mean"], found["high"], strict=True))
    told = opening(of_rows, "x")
    assert told["from_others"]
    assert told["named"][0]["name"] == "mass"
    assert told["named"][0]["low"] < told["named"][0]["high"]


def test_what_is_expected_of_a_cell_does_not_follow_it(of_rows):
    stored = np.asarray(of_rows.splits.parts["test"].x[0]).copy()
    odd, odder = stored.copy(), stored.copy()
    odd[4] += 40
    odder[4] += 80
    found, again = of_rows.look(odd), of_rows.look(odder)
    for name in ("mean", "low", "high"):
        assert found[name] == again[name]  # that of other cells does not either
    assert not found["low"][4] <= odd[4] <= found["high"][4]
    expected = of_rows.model.counterfactual(odd[None])
    np.testing.assert_allclose([found[name] for name in ("mean", "low", "high")], [v[0] for v in expected], rtol=1e-7)


@pytest.mark.parametrize("method", ["posthoc", "ae", "ae-var", "vae", "dropout", "ensemble", "bbb"])
def test_every_method(tmp_path, method):
    made = explorer(images(), tmp_path, method)
    told, found = opening(made, "x"), made.item("test", 0)
    assert told["spread"] == (method not in ("ae", "ensemble"))
    assert ("no standard deviation to show" in told["uncertainty"]) == (method == "ae")
    assert (found["covariance"] is not None) == (method not in ("ae", "ae-var", "ensemble"))
    assert found["width"]["top"] > 0
    assert made.item("test", 0) == found  # nothing goes on along a stream of noise
    assert made.place((0, 1), (0.1, 0.2), None) == made.place((0, 1), (0.1, 0.2), None)
    hidden = np.asarray(made.splits.parts["test"].x[0]).astype(float)
    hidden[:, :, :4] = np.nan
    assert len(made.complete(hidden, 0)["samples"]) == 6


def test_without_data(tmp_path):
    made = explorer(rows(), tmp_path, with_data=False)
    told = opening(made, "x", "they are gone")
    assert told["splits"] == {}
    assert told["no_data"] == "they are gone"
    assert len(told["points"]) == QUICK.points
    assert (told["main"], told["ids"]) == (None, [])
    assert made.look(np.full(6, 100.0))["unusual"]["p"] is not None  # the run keeps what to compare with


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
    assert fitting(1e-3, 32) == 32
    assert fitting(0.02, 32) == 16
    assert fitting(100.0, 32) == 8
    assert fitting(1e-3, 8) == 8
    assert fitting(100.0, 4) == 4


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
