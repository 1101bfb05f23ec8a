"""Large images as tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from narrow import sure
from PIL import Image
from scipy.stats import ks_2samp

from lapae.cli import main
from lapae.data import DataError, load, open_input
from lapae.data import tiles as data_tiles
from lapae.model import Model
from lapae.space.tiles import corners, cut_tiles, fold_tiles

TILE = 8


@pytest.mark.parametrize("size", [(8, 8), (16, 24), (17, 20), (9, 31)])
def test_tiles_cover_an_image_and_give_it_back(size):
    image = np.random.default_rng(0).normal(size=(3, *size))
    at = corners(size, TILE)
    assert len(at) == -(-size[0] // TILE) * -(-size[1] // TILE)
    tiles = cut_tiles(image, TILE, at)
    assert tiles.shape == (len(at), 3, TILE, TILE)
    np.testing.assert_allclose(fold_tiles(tiles, at), image)
    np.testing.assert_array_equal(tiles[-1], image[:, -TILE:, -TILE:])


def wallpaper(rng: np.random.Generator, size=(16, 24)) -> np.ndarray:
    """Stripes at a random place, with noise."""
    rows, columns = np.mgrid[: size[0], : size[1]]
    x = 0.5 + 0.3 * np.sin(columns / 2 + rows / 3 + rng.uniform(0, 6)) + rng.normal(0, 0.03, size)
    return (255 * x.clip(0, 1)).astype(np.uint8)


def save_all(folder, n: int, seed: int, fault: bool = False) -> None:
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for i in range(n):
        image = wallpaper(rng)
        if fault:
            image[10:14, 17:21] = 255
        Image.fromarray(image).save(folder / f"{i:03}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiles")
    save_all(root / "train", 300, 0)
    save_all(root / "good", 150, 1)
    save_all(root / "bad", 5, 2, fault=True)
    options = ["--tile", str(TILE), "--network", "mlp", "--hidden", "16", "--epochs", "3", "--device", "cpu"]
    assert main(["train", str(root / "train"), *options, "--out", str(root / "run"), "--no-verbose"]) == 0
    return root


def scored(place, name: str, tmp_path, *options: str) -> dict[str, np.ndarray]:
    out = tmp_path / f"{name}.csv"
    assert main(["score", str(place / "run"), str(place / name), "-o", str(out), "--device", "cpu", *options]) == 0
    header, *rows = (line.split(",") for line in out.read_text("utf-8").splitlines())
    assert header == ["file", "row", "column", "anomaly_score", "p_value", "outlier"]
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(header)}


def test_images_are_split_as_a_whole(place):
    data = load(place / "train", tile=TILE)
    assert data.shape == (1, TILE, TILE)
    assert data.space.tile
    assert [len(part) for part in (data.train, data.valid, data.calib)] == [210 * 6, 30 * 6, 60 * 6]
    groups = [set(sure(part.groups).tolist()) for part in (data.train, data.valid, data.calib)]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 300
    x = np.asarray(data.calib.x[np.array([6, 0])])
    image = np.asarray(Image.open(sorted((place / "train").iterdir())[int(sure(data.calib.groups)[6])]))
    np.testing.assert_array_equal(x[0, 0], image[:TILE, :TILE])


def test_many_tiles_are_thinned_and_held_out_images_stay_whole(place, monkeypatch):
    monkeypatch.setattr(data_tiles, "MOST_VALUES", 100 * TILE * TILE)
    data = load(place / "train", tile=TILE)
    assert len(data.train) == 100
    assert np.bincount(sure(data.calib.groups)).max() == 6
    assert set(np.bincount(sure(data.calib.groups))) == {0, 6}
    assert len(data.calib) <= 100


def test_few_images_are_split_tile_by_tile(tmp_path):
    save_all(tmp_path / "few", 9, 0)
    data = load(tmp_path / "few", tile=TILE)
    assert data.calib.groups is None
    assert len(data.train) + len(data.valid) + len(data.calib) == 9 * 6


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (9, "an image of more than 0 tiles cannot be flagged"),  # some tiles are held out
        (30, "0.05 cannot be met with 10 held-out images, so nothing is flagged: it takes at least 19 held-out images"),
    ],
)
def test_few_images_cannot_be_flagged_and_this_is_said(tmp_path, capsys, n, said):
    save_all(tmp_path / "few", n, 0)
    save_all(tmp_path / "bad", 3, 2, fault=True)
    options = ["--tile", str(TILE), "--network", "mlp", "--hidden", "8", "--epochs", "1", "--device", "cpu"]
    assert main(["train", str(tmp_path / "few"), *options, "--out", str(tmp_path / "run"), "--no-verbose"]) == 0
    assert capsys.readouterr().err.count(said) == 1
    assert set(scored(tmp_path, "bad", tmp_path)["outlier"]) == {"0"}
    assert capsys.readouterr().err.count(said) == 1


def test_p_values_of_images_hold_and_faults_are_found(place, tmp_path):
    good, bad = scored(place, "good", tmp_path), scored(place, "bad", tmp_path)
    assert (bad["outlier"] == "1").all()
    for found in (good, bad):
        np.testing.assert_array_equal(found["outlier"] == "1", found["p_value"].astype(float) <= 0.05)
    assert set(bad["row"]) == {"8"}
    assert set(bad["column"]) == {"16"}
    held = sure(Model.load(place / "run").calibration).tiles.scores.numpy()
    assert len(held) == 60
    compared: Any = ks_2samp(good["anomaly_score"].astype(float), held)
    assert compared.pvalue > 0.05
    assert (good["p_value"].astype(float) <= 0.1).mean() == pytest.approx(0.1, abs=0.08)  # of 60 to compare with


def test_held_out_images_are_what_the_command_makes_of_them(place, tmp_path):
    data = load(place / "train", tile=TILE)
    held = sorted(set(sure(data.calib.groups).tolist()))
    found = scored(place, "train", tmp_path)["anomaly_score"].astype(float)
    images = sure(Model.load(place / "run").calibration).tiles.scores
    np.testing.assert_allclose(found[held], images.numpy(), rtol=1e-4)


def test_with_another_predictive_tiles_alone_bound_the_p_value(place, tmp_path):
    found = scored(place, "good", tmp_path, "--predictive", "mc", "--n-samples", "4")
    assert (found["p_value"].astype(float) <= 0.05).mean() <= 0.12


def test_maps_are_red_where_the_fault_is(place, tmp_path):
    scored(place, "bad", tmp_path, "--maps", str(tmp_path / "maps"))
    pictures = sorted((tmp_path / "maps").iterdir())
    assert [file.name for file in pictures] == [f"{i:03}.png" for i in range(5)]
    for file in pictures:
        pixels = np.asarray(Image.open(file)).astype(int)
        assert pixels.shape == (16, 24, 3)
        red = pixels[..., 0] - pixels[..., 1]
        assert red[10:14, 17:21].mean() > 3 * red.mean()


def test_reconstructions_are_whole_images(place, tmp_path):
    out = tmp_path / "made"
    assert main(["reconstruct", str(place / "run"), str(place / "good"), "-o", str(out), "--device", "cpu"]) == 0
    for file in sorted((place / "good").iterdir())[:5]:
        given, made = (np.asarray(Image.open(folder / file.name)).astype(float) for folder in (place / "good", out))
        assert made.shape == given.shape
        assert np.abs(made - given).mean() < 0.5 * np.abs(given - given.mean()).mean()


def test_what_cannot_be_is_said(place, tmp_path):
    with pytest.raises(DataError, match="16x24 pixels, smaller than a tile of 20x20"):
        load(place / "train", tile=20)
    with pytest.raises(DataError, match="expected at least 8, and no image_size"):
        load(place / "train", tile=8, image_size=16)
    with pytest.raises(DataError, match="expected at least 8"):
        load(place / "train", tile=2)
    with pytest.raises(DataError, match="tile=8 is for folders of images"):
        load("digits", tile=8)
    Image.new("L", (30, 5)).save(tmp_path / "flat.png")
    reader = open_input(tmp_path / "flat.png", Model.load(place / "run").space)
    with pytest.raises(DataError, match="5x30 pixels, smaller than a tile of 8x8"):
        next(reader.blocks(lambda n: None))


def test_maps_are_for_images(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(40, 3)))
    run, x = str(tmp_path / "run"), str(tmp_path / "x.npy")
    assert main(["train", x, "--hidden", "4", "--epochs", "1", "--device", "cpu", "--no-verbose", "--out", run]) == 0
    assert main(["score", run, x, "-o", str(tmp_path / "s.csv"), "--maps", str(tmp_path / "maps")]) != 0
    assert "--maps is for images" in capsys.readouterr().err
    assert not (tmp_path / "maps").exists()
    assert not (tmp_path / "s.csv").exists()
