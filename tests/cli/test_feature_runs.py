"""`lapae train --features`: a run of features of images, from the folder to maps, report and verdict."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn

from lapae import LaplacianAutoencoder
from lapae.cli import main
from lapae.cli.maps import at_full_size
from lapae.config.names import FEATURES
from lapae.data import load
from lapae.features import load as load_network
from lapae.registry import Entry
from lapae.view.named_splits import NamedSplits
from lapae.view.report.unusual import photo


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 6, 5, stride=4, padding=2), nn.Tanh()).eval()


@pytest.fixture(scope="module", autouse=True)
def small():
    FEATURES["small"] = Entry("a small network", network)
    yield
    del FEATURES["small"]
    load_network.cache_clear()


def picture(seed: int, size: tuple[int, int], *, defect: bool = False) -> Image.Image:
    rng = np.random.default_rng(seed)
    x = 0.5 + rng.normal(0, 0.05, size)
    if defect:  # in the upper right
        x[: size[0] // 4, -size[1] // 4 :] += 0.45
    return Image.fromarray((255 * x.clip(0, 1)).astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("features")
    for name, n, seed in (("train", 40, 0), ("new", 8, 100)):
        (root / name).mkdir()
        for i in range(n):
            picture(seed + i, (40, 56 + i % 3)).save(root / name / f"{i:02d}.png")
    (root / "new" / "bad").mkdir()
    picture(200, (80, 100), defect=True).save(root / "new" / "bad" / "torn.png")
    for file in (root / "new").glob("*.png"):
        file.rename(root / "new" / "bad" / file.name)
    options = ["--features", "small", "--image-size", "32", "--epochs", "2", "--out", str(root / "run")]
    assert main(["train", str(root / "train"), *options]) == 0
    return root


def test_new_images_are_judged_and_maps_written_at_their_full_size(folder):
    out, maps = folder / "scores.csv", folder / "maps"
    assert main(["score", str(folder / "run"), str(folder / "new"), "-o", str(out), "--maps", str(maps)]) == 0
    found = pd.read_csv(out)
    assert list(found.columns) == ["file", "anomaly_score", "p_value", "outlier"]
    files, p = found["file"].tolist(), found["p_value"].to_numpy()
    assert files[int(found["anomaly_score"].to_numpy().argmax())] == "bad/torn.png"
    assert p.min() == pytest.approx(1 / 41)
    seen, of_pixels = (np.asarray(Image.open(maps / "bad" / f"torn{mark}.png")).astype(float) for mark in ("", "_p"))
    assert seen.shape == (80, 100, 3)
    assert of_pixels.shape == (80, 100)
    redness = seen[..., 0] - seen[..., 1]
    assert redness[:16, -20:].mean() > 50 > redness[40:, :60].mean()
    assert of_pixels[:16, -20:].mean() / 65535 < 0.1 < of_pixels[40:, :60].mean() / 65535
    model = LaplacianAutoencoder.load(folder / "run")
    x = np.stack([np.asarray(Image.open(folder / "new" / name).resize((32, 32), 2)) for name in files])
    np.testing.assert_allclose(model.p_value(x), p)


def test_the_report_names_files_and_scores_training_images_as_left_out(folder):
    assert main(["report", str(folder / "run")]) == 0
    page = (folder / "run" / "report.html").read_text()
    assert "<title>run" in page
    assert 'id="map"' not in page
    assert page.count('where it is unusual">') == 8
    model = LaplacianAutoencoder.load(folder / "run").model_
    assert model.calibration is not None
    scores, data = model.calibration.reference.scores.numpy(), load(folder / "train", features="small", image_size=32)
    splits = NamedSplits.of(data)
    names = [splits.id(part, i) for part, split in splits.parts.items() for i in range(len(split))]
    assert f"{names[scores.argmax()]}</span>" in page[: page.index("</figcaption>")]
    worst = int(scores.argmax())
    x = np.concatenate([np.asarray(split.x[:]) for split in splits.parts.values()])[[worst]]
    seen = photo(model, x, worst)["blame"]  # red as if left out, too: what made it unusual
    assert seen in page
    assert seen != photo(model, x, None)["blame"]
    out = folder / "new.html"
    assert main(["report", str(folder / "run"), "--data", str(folder / "new"), "--out", str(out)]) == 0
    page = out.read_text()
    assert "bad/torn.png</span>" in page[: page.index("</figcaption>")]


def test_what_a_run_of_features_does_not_do_is_one_line(folder, capsys):
    run, new = str(folder / "run"), str(folder / "new")
    for command, said in (
        (["reconstruct", run, new, "--out", str(folder / "out")], "cannot reconstruct or impute pixels"),
        (["impute", run, new, "--out", str(folder / "out")], "cannot reconstruct or impute pixels"),
        (["sample", run, "--out", str(folder / "out.npz")], "does not generate images"),
        (["explore", run, "--no-open"], "lapae report RUN"),
        (["score", run, new, "-o", str(folder / "out.csv"), "--explain"], "--maps FOLDER"),
        (["train", new, "--features", "large"], "unknown features 'large'"),
        (["train", new, "--features", "small", "--tile", "16"], "leave one of the two out"),
        (["train", "digits", "--features", "small"], "is for folders of images"),
    ):
        assert main(command) != 0
        (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
        assert said in line
    assert not (folder / "out").exists()


def test_a_run_is_continued_and_numbers_are_those_of_the_first(folder, capsys):
    before = json.loads((folder / "run" / "metrics.json").read_text())
    assert main(["train", "--resume", str(folder / "run"), "--epochs", "3"]) == 0
    assert before["epochs"] == 2
    assert json.loads((folder / "run" / "metrics.json").read_text())["epochs"] == 3
    capsys.readouterr()


@pytest.mark.parametrize("fit", ["stretch", "crop", "border"])
def test_a_map_lies_where_the_image_was(fit):
    from lapae.data.image_files import fitted

    size, side = (60, 90), 32
    x = np.zeros(size, np.uint8)
    x[24:36, 50:60] = 255
    seen = np.asarray(fitted(Image.fromarray(x), (side, side), fit), np.float32)
    back = at_full_size(seen / 255, size, fit)
    assert back.shape == size
    row, column = (np.average(np.arange(n), weights=back.sum(axis)) for n, axis in ((60, 1), (90, 0)))
    assert abs(row - 29.5) < 1.5  # a border may be half a pixel of the model off
    assert abs(column - 54.5) < 1.5
    if fit == "crop":
        assert at_full_size(seen, size, fit, outside=7.0)[0, 0] == 7
