"""embed, score, impute and sample: formats, what is refused, what is written."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from lapae import LaplacianAutoencoder
from lapae.cli import main

QUICK = ["--hidden", "8", "--epochs", "2", "--device", "cpu", "--no-verbose"]
FAST = ["--n-samples", "3", "--device", "cpu"]
SCORED = ["anomaly_score", "p_value", "log_likelihood", "outlier"]
"""Columns that `lapae score` writes."""


def rows_of(path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Runs trained on a table with a label, on uint8 images in a folder, and on an array of images."""
    root = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    t = rng.uniform(-1, 1, (60, 1))
    x = 50 + 5 * np.concatenate([t, t**2, -t], 1) + 0.1 * rng.standard_normal((60, 3))
    lines = ["speed,temp,load,kind"] + [
        ",".join(f"{v:.4f}" for v in row) + f",{'ab'[i % 2]}" for i, row in enumerate(x)
    ]
    (root / "train.csv").write_text("\n".join(lines) + "\n")
    table = ["train", str(root / "train.csv"), "--label-column", "kind", "--latent-dim", "2"]
    assert main([*table, "--out", str(root / "table"), *QUICK]) == 0
    images = rng.integers(0, 256, (24, 8, 8), dtype=np.uint8)
    (root / "pictures").mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image).save(root / "pictures" / f"{i:02d}.png")
    assert main(["train", str(root / "pictures"), "--out", str(root / "images"), *QUICK]) == 0
    return root


@pytest.fixture
def holes(tmp_path):
    """A table with an index in front, columns in another order, a label and gaps."""
    path = tmp_path / "new.csv"
    path.write_text("name,temp,speed,kind,load\nfirst,51.5,50.25,a,49\nsecond,,48,b,52\nthird,50,NA,a,\n")
    return path


def test_score_a_table_keeps_index_label_and_order(place, holes, tmp_path, capsys):
    out = tmp_path / "scores.csv"
    assert main(["score", str(place / "table"), str(holes), "-o", str(out), *FAST, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    header, *rows = rows_of(out)
    assert header == ["name", "kind", *SCORED]
    assert [row[:2] for row in rows] == [["first", "a"], ["second", "b"], ["third", "a"]]
    assert np.isfinite(np.array([row[2:] for row in rows], float)).all()
    assert said == {"out": str(out), "n": 3, "skipped": 0, "outliers": sum(row[-1] == "1" for row in rows)}
    assert all(0 < float(row[3]) <= 1 for row in rows)


def test_a_table_with_a_header_alone(place, tmp_path):
    (tmp_path / "a.csv").write_text("name,speed,temp,load\n")
    for verb, names in (("score", SCORED), ("embed", ["z0", "z1", "z0_std", "z1_std"])):
        assert main([verb, str(place / "table"), str(tmp_path / "a.csv"), "-o", str(tmp_path / "s.csv"), *FAST]) == 0
        assert rows_of(tmp_path / "s.csv") == [["name", *names]]


def test_columns_are_found_by_name(place, tmp_path):
    (tmp_path / "a.csv").write_text("speed,temp,load\n50,51,52\n")
    (tmp_path / "b.csv").write_text("load,speed,temp\n52,50,51\n")
    scores = []
    for name in ("a", "b"):
        assert (
            main(["score", str(place / "table"), str(tmp_path / f"{name}.csv"), "-o", str(tmp_path / "s.csv"), *FAST])
            == 0
        )
        scores.append(rows_of(tmp_path / "s.csv"))
    assert scores[0] == scores[1]


def test_scores_do_not_depend_on_the_size_of_blocks(place, tmp_path, monkeypatch):
    from lapae.data import reader as base

    x = 50 + np.random.default_rng(0).standard_normal((50, 3))
    np.save(tmp_path / "x.npy", x)
    found = []
    for size in (8192, 7):
        monkeypatch.setattr(base, "BLOCK_ROWS", size)
        assert main(["score", str(place / "table"), str(tmp_path / "x.npy"), "-o", str(tmp_path / "s.npy"), *FAST]) == 0
        found.append(np.load(tmp_path / "s.npy"))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-9)


def test_embed_in_three_formats(place, holes, tmp_path):
    for suffix in ("csv", "npz", "npy"):
        assert main(["embed", str(place / "table"), str(holes), "-o", str(tmp_path / f"z.{suffix}"), *FAST]) == 0
    header, *rows = rows_of(tmp_path / "z.csv")
    assert header == ["name", "kind", "z0", "z1", "z0_std", "z1_std"]
    with np.load(tmp_path / "z.npz") as file:
        z, std = file["z"], file["z_std"]
    np.testing.assert_array_equal(np.load(tmp_path / "z.npy"), z)
    np.testing.assert_array_equal(np.array([row[2:] for row in rows], float), np.concatenate([z, std], 1))
    assert (std > 0).all()


def test_impute_a_table_fills_the_holes_and_nothing_else(place, holes, tmp_path, capsys):
    out = tmp_path / "full.csv"
    assert main(["impute", str(place / "table"), str(holes), "-o", str(out), "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["imputed"] == 3
    before, after = rows_of(holes), rows_of(out)
    assert after[0] == before[0]
    gaps = [(2, 1), (3, 2), (3, 4)]
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        for j, (a, b) in enumerate(zip(old, new, strict=True)):
            assert 20 < float(b) < 80 if (i, j) in gaps else a == b


def test_impute_arrays(place, tmp_path):
    x = 50 + np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    x[2, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    for suffix in ("npy", "npz"):
        out = tmp_path / f"full.{suffix}"
        assert (
            main(["impute", str(place / "table"), str(tmp_path / f"x.{suffix}"), "-o", str(out), "--device", "cpu"])
            == 0
        )
        full = np.load(out) if suffix == "npy" else np.load(out)["x"]
        assert full.shape == x.shape
        assert full.dtype == x.dtype
        assert np.isfinite(full).all()
        np.testing.assert_array_equal(full[~np.isnan(x)], x[~np.isnan(x)])


def test_image_folders_give_image_folders(place, tmp_path):
    folder = tmp_path / "new"
    (folder / "sub").mkdir(parents=True)
    pixels = np.random.default_rng(1).integers(0, 256, (8, 8), dtype=np.uint8)
    alpha = np.full((8, 8), 255, np.uint8)
    alpha[:4] = 0
    Image.fromarray(np.stack([pixels, alpha], -1)).save(folder / "sub" / "half.png")
    out = tmp_path / "full"
    assert main(["impute", str(place / "images"), str(folder), "-o", str(out), "--device", "cpu"]) == 0
    full = np.asarray(Image.open(out / "sub" / "half.png"))
    np.testing.assert_array_equal(full[4:], pixels[4:])
    assert main(["score", str(place / "images"), str(folder), "-o", str(tmp_path / "s.csv"), *FAST]) == 0
    assert rows_of(tmp_path / "s.csv")[1][0] == "sub/half.png"
    # a folder with something in it is not written over
    assert main(["impute", str(place / "images"), str(folder), "-o", str(out), "--device", "cpu"]) == 2


def test_an_unreadable_image_stops_unless_skipped(place, tmp_path, capsys):
    folder = tmp_path / "new"
    folder.mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "good.png")
    (folder / "bad.png").write_bytes(b"no image")
    out = tmp_path / "s.csv"
    assert main(["score", str(place / "images"), str(folder), "-o", str(out), *FAST]) == 2
    error = capsys.readouterr().err
    assert "bad.png" in error
    assert "--skip-bad" in error
    assert not out.exists()
    assert main(["score", str(place / "images"), str(folder), "-o", str(out), *FAST, "--skip-bad", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["skipped"] == 1
    assert "bad.png" in said.err
    assert [row[0] for row in rows_of(out)[1:]] == ["good.png"]


def test_image_arrays_in_any_layout_score_the_same(place, tmp_path):
    x = np.random.default_rng(2).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    found = []
    for name, array in {"a": x, "b": x[:, None], "c": x[..., None]}.items():
        np.save(tmp_path / f"{name}.npy", array)
        assert (
            main(["score", str(place / "images"), str(tmp_path / f"{name}.npy"), "-o", str(tmp_path / "s.npy"), *FAST])
            == 0
        )
        found.append(np.load(tmp_path / "s.npy"))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize(
    ("run", "name", "content", "message"),
    [
        ("table", "x.csv", "speed,temp\n1,2\n", "no column 'load'; it has speed, temp; the model was trained on speed"),
        ("table", "x.csv", "1,2\n3,4\n", "2 columns, the model takes 3 features"),
        ("table", "x.csv", "speed,temp,load\n1,2,x\n", "row 2, column 'load': 'x' is not a number\n"),
        ("table", "x.csv", "speed,temp,load\n1,2\n", "row 2: 2 cells, expected 3"),
        ("table", "x.csv", "", "is empty"),
        ("table", "x.npy", np.zeros((4, 5)), "data of shape (5,), the model takes data of shape (3,)"),
        ("table", "x.npy", np.full((4, 3), np.inf), "infinite"),
        (
            "table",
            "x.csv",
            "speed,temp,load\n50000,50000,50000\n",
            "values of another range: those of feature 'speed' are about 50000, the model was trained on ",
        ),
        ("table", "x.npy", np.full((4, 3), 1e6), "feature 'speed' are about 1e+06, the model was trained on"),
        ("table", "x.txt", "what", "expected a .csv"),
        ("images", "x.csv", "a,b\n1,2\n", "a table of rows"),
        (
            "images",
            "x.npy",
            np.zeros((4, 9, 9), np.uint8),
            "data of shape (9, 9), the model takes data of shape (1, 8, 8)",
        ),
        ("images", "x.npy", np.full((4, 8, 8), 300.0), "floats from 300 to 300"),
        ("images", "x.npy", np.full((4, 8, 8), 0.5), "floats from 0.5 to 0.5"),
    ],
)
def test_what_does_not_fit_is_refused(place, tmp_path, capsys, run, name, content, message):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        np.save(path, content)
    assert main(["score", str(place / run), str(path), "-o", str(tmp_path / "out.csv"), *FAST]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()
    assert not list(tmp_path.glob(".*tmp"))


def test_images_of_another_size_need_resize(place, tmp_path, capsys):
    Image.fromarray(np.zeros((20, 10), np.uint8)).save(tmp_path / "big.png")
    arguments = ["score", str(place / "images"), str(tmp_path / "big.png"), "-o", str(tmp_path / "s.csv"), *FAST]
    assert main(arguments) == 2
    assert "20x10 pixels, the model takes 8x8" in capsys.readouterr().err
    assert main([*arguments, "--resize"]) == 0
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "colour.png")
    assert (
        main(["score", str(place / "images"), str(tmp_path / "colour.png"), "-o", str(tmp_path / "s.csv"), *FAST]) == 2
    )
    assert "colour" in capsys.readouterr().err


def test_outputs_are_checked_before_the_work(place, holes, tmp_path, capsys):
    run = str(place / "table")
    assert main(["score", run, str(holes), "-o", str(tmp_path / "s.txt")]) == 2
    assert main(["impute", run, str(holes), "-o", str(holes)]) == 2
    assert main(["impute", run, str(holes), "-o", str(tmp_path / "x.npy")]) == 2
    assert main(["score", run, str(holes), "-o", str(tmp_path / "no" / "s.csv"), *FAST]) == 2
    assert main(["score", str(tmp_path), str(holes), "-o", str(tmp_path / "s.csv")]) == 2
    assert "not a run" in capsys.readouterr().err


def test_sample(place, tmp_path, capsys):
    for out in ("s.npy", "s.npz", "s.csv"):
        assert main(["sample", str(place / "table"), "-n", "5", "-o", str(tmp_path / out), "--device", "cpu"]) == 0
    header, *rows = rows_of(tmp_path / "s.csv")
    assert header == ["speed", "temp", "load"]
    np.testing.assert_allclose(np.array(rows, float), np.load(tmp_path / "s.npy"), rtol=1e-6)
    assert 20 < np.load(tmp_path / "s.npy").mean() < 80  # in the units of the data
    images = str(place / "images")
    assert main(["sample", images, "-n", "5", "-o", str(tmp_path / "s.png"), "--device", "cpu", "--json"]) == 0
    assert Image.open(tmp_path / "s.png").size == (256, 172)  # three and two of 80 pixels, and gaps
    assert main(["sample", images, "-n", "5", "-o", str(tmp_path / "folder"), "--device", "cpu"]) == 0
    assert sorted(p.name for p in (tmp_path / "folder").iterdir()) == [f"{i}.png" for i in range(5)]
    capsys.readouterr()
    assert main(["sample", str(place / "table"), "-o", str(tmp_path / "t.png"), "--device", "cpu"]) == 2
    assert "only images can be written as pictures" in capsys.readouterr().err


def test_a_run_of_the_estimator_scores_as_the_estimator_does(tmp_path):
    x = np.random.default_rng(0).standard_normal((40, 4))
    model = LaplacianAutoencoder(epochs=2, n_samples=5, device="cpu", random_state=0).fit(x)
    model.save(tmp_path / "run")
    np.save(tmp_path / "x.npy", x)
    assert (
        main(
            ["score", str(tmp_path / "run"), str(tmp_path / "x.npy"), "-o", str(tmp_path / "s.csv"), "--device", "cpu"]
        )
        == 0
    )
    header, *rows = rows_of(tmp_path / "s.csv")
    assert header == SCORED
    columns = np.array(rows, float).T
    np.testing.assert_allclose(columns[0], -model.score_samples(x), rtol=1e-12)
    np.testing.assert_allclose(columns[1], model.p_value(x), rtol=1e-12)
    np.testing.assert_allclose(columns[2], -model.score_parts(x)["negative_log_likelihood"], rtol=1e-12)
    np.testing.assert_array_equal(1 - 2 * columns[3], model.predict(x))


@pytest.mark.parametrize("kind", ["table", "windows"])
@pytest.mark.parametrize("predictive", ["mc", "moments"])
def test_a_value_beyond_all_numbers_is_an_outlier(kind, predictive, tmp_path, capsys):
    x = np.random.default_rng(0).standard_normal((100, 4) if kind == "table" else (100, 4, 2))
    options = {"predictive": predictive, "n_samples": 5, "device": "cpu", "random_state": 0}
    model = LaplacianAutoencoder(epochs=2, **options).fit(x)
    for value in (1e20, 1e200, -1e308):
        x[7].flat[1] = value
        assert model.predict(x)[7] == -1
        assert np.isfinite(model.score_samples(x)).all()
    model.save(tmp_path / "run")
    np.save(tmp_path / "x.npy", x)
    command = ["score", str(tmp_path / "run"), str(tmp_path / "x.npy"), "-o", str(tmp_path / "s.csv")]
    assert main([*command, "--device", "cpu"]) == 0
    *scores, outlier = rows_of(tmp_path / "s.csv")[8]
    assert np.isfinite(np.array(scores, float)).all()
    assert outlier == "1"


def test_a_table_with_missing_values_trains_from_the_command_line(tmp_path, holes, capsys):
    rng = np.random.default_rng(0)
    lines = ["speed,temp,load"]
    for row in 50 + rng.standard_normal((40, 3)):
        lines.append(",".join("" if rng.random() < 0.2 else f"{v:.3f}" for v in row))
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    run = ["train", str(tmp_path / "t.csv"), "--allow-nan", "--out", str(tmp_path / "run"), "--json", *QUICK]
    assert main([*run, "--test-fraction", "0.2"]) == 0
    assert np.isfinite(json.loads(capsys.readouterr().out)["test"]["squared_error"])
    assert (
        main(
            ["impute", str(tmp_path / "run"), str(tmp_path / "t.csv"), "-o", str(tmp_path / "f.csv"), "--device", "cpu"]
        )
        == 0
    )
    assert all(cell for row in rows_of(tmp_path / "f.csv") for cell in row)


STREAM = """
import resource, sys
from lapae.cli import main
code = main(sys.argv[1:])
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no module resource")
def test_a_large_array_is_scored_in_constant_memory(place, tmp_path):
    peaks = []
    for n in (20_000, 1_000_000):
        array = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float64, shape=(n, 3))
        array[:] = 50.0
        del array
        arguments = ["score", str(place / "table"), str(tmp_path / "x.npy"), "-o", str(tmp_path / "s.csv")]
        flags = ["--predictive", "mc", "--n-samples", "1", "--device", "cpu"]
        done = subprocess.run([sys.executable, "-c", STREAM, *arguments, *flags], capture_output=True, text=True)
        code, peak = done.stdout.split()[-2:]
        assert code == "0", done.stderr
        peaks.append(int(peak))
    pages = 1_000_000 * 3 * 8 / 1024  # pages of the mapped file count while they are cached
    assert peaks[1] < peaks[0] + pages + 30_000


@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_a_column_in_other_units_is_refused_and_an_outlier_is_not(place, tmp_path, capsys, suffix):
    usual = 50 + np.random.default_rng(0).standard_normal((20, 3))

    def score(x, *flags):
        path, out = tmp_path / f"x.{suffix}", tmp_path / "s.npy"
        out.unlink(missing_ok=True)
        if suffix == "csv":
            np.savetxt(path, x, delimiter=",", header="speed,temp,load", comments="")
        else:
            np.save(path, x)
        return main(["score", str(place / "table"), str(path), "-o", str(out), *FAST, *flags])

    kelvin = usual.copy()
    kelvin[:, 1] *= 1000
    assert score(kelvin) == 2
    error = capsys.readouterr().err
    assert "'temp'" in error
    assert "--any-range" in error
    assert score(kelvin, "--any-range") == 0
    broken = usual.copy()
    broken[:9, 2] = -9999  # a sensor that fails for a while
    assert score(broken) == 0
    scores = np.load(tmp_path / "s.npy")
    assert scores[:9].min() > scores[9:].max()
    # in a few rows one absurd column is an outlier to be scored
    assert score(kelvin[:3]) == 0
    missing = usual.copy()
    missing[:, 0] = np.nan
    assert score(missing) == 0


@pytest.mark.parametrize("command", ["train", "embed", "score", "impute", "sample", "eval coverage"])
def test_help_has_no_group_named_options_options(command, capsys):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert re.search(r"^\W*options\W*$", text, re.MULTILINE)
    assert "options options" not in text
    assert "options." not in text


def test_new_images_may_lie_in_the_folder_and_below(place, tmp_path):
    """Their folders are no labels here."""
    folder = tmp_path / "new"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.png", "sub/b.png"):
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / name)
    out = tmp_path / "s.csv"
    assert main(["score", str(place / "images"), str(folder), "-o", str(out), *FAST]) == 0
    assert [row[0] for row in rows_of(out)[1:]] == ["a.png", "sub/b.png"]


def test_an_empty_array_gives_an_empty_table_as_an_empty_csv_does(place, tmp_path):
    np.save(tmp_path / "none.npy", np.zeros((0, 3)))
    (tmp_path / "none.csv").write_text("speed,temp,load\n")
    for name in ("none.npy", "none.csv"):
        out = tmp_path / "s.csv"
        assert main(["score", str(place / "table"), str(tmp_path / name), "-o", str(out), *FAST]) == 0
        assert rows_of(out) == [SCORED]


def test_training_leaves_out_an_unreadable_image_with_skip_bad(tmp_path, capsys):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i in range(10):
        Image.fromarray(np.full((8, 8), 9 * i, np.uint8)).save(folder / f"{i}.png")
    (folder / "bad.png").write_bytes(b"no image")
    command = ["train", str(folder), "--out", str(tmp_path / "run"), *QUICK]
    assert main(command) == 2
    assert "bad.png: cannot be read as an image" in (said := capsys.readouterr().err)
    assert "--skip-bad" in said
    assert main([*command, "--skip-bad"]) == 0
    assert "skipped: " in capsys.readouterr().err
    assert main(["report", str(tmp_path / "run"), "--device", "cpu"]) == 0


@pytest.mark.parametrize("command", [["report"], ["eval", "coverage"]])
def test_a_run_of_the_estimator_has_no_data_to_report_on(tmp_path, capsys, command):
    x = np.random.default_rng(0).random((30, 4))
    LaplacianAutoencoder(epochs=1, random_state=0).fit(x).save(tmp_path / "run")
    assert main([*command, str(tmp_path / "run")]) == 2
    assert "a run of the estimator, which does not keep the data" in capsys.readouterr().err


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A run on a table with columns of every kind, holes and decimal commas; and the table."""
    import pandas as pd

    root = tmp_path_factory.mktemp("people")
    rng = np.random.default_rng(0)
    z = rng.normal(size=80)
    frame = pd.DataFrame(
        {
            "id": np.arange(80),
            "income": 20 + 3 * z + 0.1 * rng.normal(size=80),
            "visits": rng.poisson(4 + z**2),
            "city": np.where(z > 0, "Rome", "Oslo"),
            "member": np.where(z > 0.5, "yes", "no"),
            "since": pd.DatetimeIndex(
                pd.Timestamp("2020-01-01") + pd.to_timedelta((100 * z).round(), unit="D")
            ).strftime("%d.%m.%Y"),
            "note": [f"note {i}" for i in range(80)],
        }
    )
    for i, name in enumerate(("income", "visits", "city", "member", "since")):
        frame.loc[[i, 20 + i], name] = None
    frame.to_csv(root / "people.csv", index=False, sep=";", decimal=",")
    frame.to_parquet(root / "people.parquet", index=False)
    with contextlib.redirect_stderr(io.StringIO()) as told:
        assert main(["train", str(root / "people.csv"), "--out", str(root / "run"), *QUICK]) == 0
    assert re.search(r"'id' \(an index.*'note' \(an identifier", told.getvalue())
    return root, frame


def test_columns_of_every_kind_come_back_as_they_went_in(people, tmp_path):
    import pandas as pd

    root, frame = people
    for suffix in ("csv", "parquet"):
        out = tmp_path / f"full.{suffix}"
        assert (
            main(["impute", str(root / "run"), str(root / f"people.{suffix}"), "-o", str(out), "--device", "cpu"]) == 0
        )
    text = rows_of_semicolons(tmp_path / "full.csv")
    before = rows_of_semicolons(root / "people.csv")
    holes = 0
    for old, new in zip(before[1:], text[1:], strict=True):
        row = dict(zip(before[0], new, strict=True))
        for name, a, b in zip(before[0], old, new, strict=True):
            assert a in ("", b), name
            holes += a == ""
        assert re.fullmatch(r"\d+,\d+", row["income"])
        assert re.fullmatch(r"\d+(,0)?", row["visits"])
        assert row["city"] in ("Rome", "Oslo")
        assert row["member"] in ("yes", "no")
        assert re.fullmatch(r"\d\d\.\d\d\.20(19|20|21)", row["since"])
    assert holes == 10
    full = pd.read_parquet(tmp_path / "full.parquet")
    assert full.notna().all().all()
    assert full.dtypes.astype(str).tolist() == frame.dtypes.astype(str).tolist()


def rows_of_semicolons(path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file, delimiter=";"))


def test_samples_and_explanations_have_the_columns_of_the_table(people, tmp_path):
    root, _ = people
    assert main(["sample", str(root / "run"), "-o", str(tmp_path / "x.csv"), "-n", "4", "--device", "cpu"]) == 0
    header, *rows = rows_of(tmp_path / "x.csv")
    assert header == ["income", "visits", "city", "member", "since"]
    for row in rows:
        assert float(row[0]) > 0
        assert row[1].isdecimal()
        assert row[2] in ("Rome", "Oslo")
    out = str(tmp_path / "s.csv")
    assert main(["score", str(root / "run"), str(root / "people.csv"), "-o", out, "--explain", *FAST]) == 0
    header, *rows = rows_of(out)
    assert header[:2] == ["id", "note"]
    told = [dict(zip(header, row, strict=True)) for row in rows]
    assert {row["feature"] for row in told} <= {"", "income", "visits", "city", "member", "since"}
    for row in told:
        ends = [row[name] for name in ("low", "expected", "high")]
        assert (float(row["share"]) > 0) == bool(row["feature"])
        if row["feature"] in ("income", "visits"):
            assert float(ends[0]) - 0.5 <= float(ends[1]) <= float(ends[2]) + 0.5  # counts are whole
        elif row["feature"] == "since":
            dates = [tuple(map(int, reversed(date.split(".")))) for date in ends]  # 31.12.2020, as in the table
            assert dates == sorted(dates)
        else:  # a word has no interval
            assert ends[0] == ends[2] == ""
            assert ends[1] in {"city": ("Rome", "Oslo"), "member": ("yes", "no"), "": ("",)}[row["feature"]]
    assert any(row["expected"] for row in told)


def test_what_is_expected_of_an_odd_value_is_what_the_others_say(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 1)) * [1.0, 2.0, -1.0] + 0.05 * rng.normal(size=(300, 3))
    np.savetxt(tmp_path / "x.csv", x, delimiter=",", header="a,b,c", comments="")
    new = np.array([[1.0, 2.0, -1.0], [1.0, 9.0, -1.0]])
    np.savetxt(tmp_path / "new.csv", new, delimiter=",", header="a,b,c", comments="")
    run, out = str(tmp_path / "run"), str(tmp_path / "s.csv")
    assert main(["train", str(tmp_path / "x.csv"), "--out", run, "--device", "cpu", "--no-verbose"]) == 0
    assert main(["score", run, str(tmp_path / "new.csv"), "-o", out, "--explain"]) == 0
    header, _, odd = rows_of(out)
    told = dict(zip(header, odd, strict=True))
    assert told["feature"] == "b"
    assert float(told["expected"]) == pytest.approx(2, abs=0.5)  # a network that is shown the 9 reproduces most of it
    assert float(told["high"]) < 4


def test_an_outlier_is_a_row_whose_p_value_is_at_most_the_rate(tmp_path, capsys):
    import pandas as pd

    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 1)) * [1.0, 2.0, -1.0] + 0.1 * rng.normal(size=(120, 3))
    new = np.concatenate([x[:20] + np.linspace(0, 1, 20)[:, None] * [1, -1, 1]] * 2)
    new[20:, 1] = np.nan
    frames = {"x.csv": pd.DataFrame(x, columns=[*"abc"]), "new.csv": pd.DataFrame(new, columns=[*"abc"])}
    frames["new.csv"].loc[40] = np.nan
    for name, frame in frames.items():
        frame.assign(id=[f"r{i}" for i in range(len(frame))]).to_csv(tmp_path / name, index=False)
    run, out, file = str(tmp_path / "run"), str(tmp_path / "s.csv"), str(tmp_path / "new.csv")
    train = ["train", str(tmp_path / "x.csv"), "--drop", "id", "--false-alarm-rate", "0.1", "--out", run, *QUICK]
    assert main(train) == 0
    assert "cannot be met" not in capsys.readouterr().err
    model = LaplacianAutoencoder.load(run)
    assert model.false_alarm_rate == 0.1
    for flags, rate in (([], 0.1), (["--rate", "0.2"], 0.2)):
        assert main(["score", run, file, "-o", out, "--explain", "--json", "--device", "cpu", *flags]) == 0
        said = capsys.readouterr()
        found = pd.read_csv(out, dtype={"outlier": str}, keep_default_na=False, na_values={"p_value": ["nan"]})
        p = found["p_value"].to_numpy(float)
        assert found["outlier"].tolist() == [*np.where(p[:-1] <= rate, "1", "0"), ""]
        np.testing.assert_array_equal(p, model.p_value(frames["new.csv"].to_numpy()))
        assert json.loads(said.out)["outliers"] == (p <= rate).sum() > 0
        assert found["feature"].iloc[-1] == "nothing observed"
        assert set(found["feature"][:-1]) <= {"", "a", "b", "c"}
        assert "cannot be met" not in said.err
    file_out = str(tmp_path / "s.npz")
    assert main(["score", run, file, "-o", file_out, "--device", "cpu", "--false-alarm-rate", "0.01"]) == 0
    assert capsys.readouterr().err.count("0.01 cannot be met with 24 held-out rows, so nothing is flagged") == 1
    with np.load(tmp_path / "s.npz") as arrays:
        assert not arrays["outlier"].any()
    assert main(["score", run, file, "-o", out, "--rate", "1"]) == 2
    assert "false_alarm_rate = 1.0: expected a number between 0 and 1" in capsys.readouterr().err


def test_too_few_rows_are_refused_with_a_reason(tmp_path, capsys):
    np.savetxt(tmp_path / "x.csv", np.eye(9)[:, :3], delimiter=",", header="a,b,c", comments="")
    assert main(["train", str(tmp_path / "x.csv"), "--out", str(tmp_path / "run"), *QUICK]) == 2
    assert "n_samples=9, expected at least 10 with a value" in capsys.readouterr().err
    np.savetxt(tmp_path / "x.csv", np.random.default_rng(0).random((40, 2)), delimiter=",", header="a,b", comments="")
    assert main(["train", str(tmp_path / "x.csv"), "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert capsys.readouterr().err.count("0.05 cannot be met with 13 held-out rows") == 1


def test_a_look_at_a_table(people, capsys):
    root, _ = people
    assert main(["data", str(root / "people.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "80 rows of 5 columns (1 number, 1 count, 1 category, 1 boolean, 1 date), with missing values"
    assert lines[1] == "53 for training; 8 for validation; 19 for calibration"
    told = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[3:]}
    assert told["id"].startswith("left out 0 an index")
    assert re.fullmatch(r"category 2\.5 % (Oslo|Rome) Oslo, Rome", told["city"])
    assert re.fullmatch(r"count 2\.5 % \d+ [01] to \d+", told["visits"])
    assert re.fullmatch(r"left out .* an identifier: no two are alike", told["note"])
    assert main(["data", str(root / "people.csv"), "--label-column", "city", "--json"]) == 2  # two labels are missing
    assert "the label is empty" in capsys.readouterr().err
    assert main(["data", "digits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"] == "1,797 gray images of 8x8"
    assert found["splits"] == {"train": 1255, "valid": 162, "calib": 200, "test": 180}
    assert main(["data", str(root / "nowhere.csv")]) == 2


def test_reconstruct_a_table_with_intervals_beside_its_values(place, holes, tmp_path, capsys):
    out = tmp_path / "expected.csv"
    assert main(["reconstruct", str(place / "table"), str(holes), "-o", str(out), "--level", "0.8", *FAST]) == 0
    header, *rows = rows_of(out)
    expected = ["name", "temp", "temp_low", "temp_high", "speed", "speed_low", "speed_high", "kind"]
    assert header == [*expected, "load", "load_low", "load_high"]
    assert [(row[0], row[7]) for row in rows] == [("first", "a"), ("second", "b"), ("third", "a")]
    values = np.array([[*row[1:7], *row[8:]] for row in rows], float).reshape(3, 3, 3)
    assert (values[..., 1] < values[..., 0]).all()
    assert (values[..., 0] < values[..., 2]).all()
    model = LaplacianAutoencoder.load(place / "table").model_.predicting(n_samples=3)
    x = np.array([[50.25, 51.5, 49], [48, np.nan, 52], [np.nan, 50, np.nan]])  # speed, temp, load
    low, high = model.interval(x, 0.8)
    ours = np.stack([model.reconstruct(x)[0], low, high], -1)[:, [1, 0, 2]]
    np.testing.assert_allclose(values, ours, rtol=1e-5)
    assert main(["reconstruct", str(place / "table"), str(holes), "-o", str(out), "--level", "1.5"]) == 2
    assert "level = 1.5" in capsys.readouterr().err


def test_impute_writes_intervals_beside_what_it_fills_in(place, holes, tmp_path):
    out = tmp_path / "full.csv"
    assert main(["impute", str(place / "table"), str(holes), "-o", str(out), "--level", "0.9"]) == 0
    header, *rows = rows_of(out)
    before = rows_of(holes)
    gaps = {(1, "temp"), (2, "speed"), (2, "load")}
    for i, row in enumerate(rows):
        cells = dict(zip(header, row, strict=True))
        given = dict(zip(before[0], before[i + 1], strict=True))
        for name in ("temp", "speed", "load"):
            low, value, high = (cells[name + end] for end in ("_low", "", "_high"))
            if (i, name) in gaps:
                assert float(low) < float(value) < float(high)
            else:
                assert low == value == high == given[name]


def test_impute_writes_means_of_whole_numbers(people, tmp_path):
    root, _ = people
    found = {}
    for guess in ("median", "mean"):
        out = tmp_path / f"{guess}.csv"
        assert main(["impute", str(root / "run"), str(root / "people.csv"), "-o", str(out), "--guess", guess]) == 0
        header, *rows = rows_of_semicolons(out)
        place = header.index("visits")
        found[guess] = [float(rows[i][place].replace(",", ".")) for i in (1, 21)]
    assert all(value % 1 == 0 for value in found["median"])
    assert all(value % 1 > 0 for value in found["mean"])


def test_intervals_of_arrays_and_images(place, tmp_path):
    x = 50 + np.random.default_rng(0).standard_normal((9, 3)).astype(np.float32)
    x[2, 1] = np.nan
    np.save(tmp_path / "x.npy", x)
    table = [str(place / "table"), str(tmp_path / "x.npy")]
    for command in ("impute", "reconstruct"):
        assert (
            main([command, *table, "-o", str(tmp_path / "full.npy"), "--level", "0.9"]) == 2
        )  # one array is not three
        assert main([command, *table, "-o", str(tmp_path / "full.npz"), "--level", "0.9"]) == 0
        with np.load(tmp_path / "full.npz") as found:
            assert found["x"].dtype == x.dtype
            assert (found["low"] <= found["x"]).all()
            assert (found["x"] <= found["high"]).all()
            same = found["low"] == found["high"]
        np.testing.assert_array_equal(same, ~np.isnan(x) & (command == "impute"))
    out = tmp_path / "pictures"
    assert main(["reconstruct", str(place / "images"), str(place / "pictures"), "-o", str(out), *FAST]) == 0
    assert len(list(out.glob("*.png"))) == 3 * 24
    low, mean, high = (np.asarray(Image.open(out / f"03{end}.png")).astype(int) for end in ("_low", "", "_high"))
    assert ((low <= mean) & (mean <= high)).all()
    assert (high - low).mean() > 1
    single = tmp_path / "one.png"
    assert main(["reconstruct", str(place / "images"), str(place / "pictures" / "03.png"), "-o", str(single)]) == 0
    assert {p.name for p in tmp_path.glob("one*.png")} == {"one.png", "one_low.png", "one_high.png"}


def test_another_predictive_is_compared_with_itself(place, tmp_path):
    """p-values of the data that the run was trained on stay spread out, whatever makes the predictions."""
    for predictive in ("mc", "linearized", "moments"):
        out = tmp_path / f"{predictive}.npz"
        given = ["--predictive", predictive, "--n-samples", "4", "--device", "cpu"]
        assert main(["score", str(place / "table"), str(place / "train.csv"), "-o", str(out), *given]) == 0
        with np.load(out) as found:
            assert 0.3 < found["p_value"].mean() < 0.8


def test_values_far_from_zero_keep_the_digits_that_tell_them_apart(tmp_path, capsys):
    rng = np.random.default_rng(0)
    t = rng.standard_normal(80)
    place = np.round(1e10 + 3 * t + 0.1 * rng.standard_normal(80), 3)
    stamp = np.round(1.7e9 + 100 * t + 5 * rng.standard_normal(80))
    table, run, out = tmp_path / "table.csv", str(tmp_path / "run"), tmp_path / "out.csv"
    lines = [f"{p:.3f},{s:.0f},{v:.4f}" for p, s, v in zip(place, stamp, t, strict=True)]
    table.write_text("\n".join(["place,stamp,v", *lines]) + "\n")
    assert main(["train", str(table), "--out", run, *QUICK]) == 0
    assert main(["reconstruct", run, str(table), "-o", str(out), "--device", "cpu"]) == 0
    model = LaplacianAutoencoder.load(run)
    x = np.stack([place, stamp, t.round(4)], 1)
    found = np.array(rows_of(out)[1:], float).reshape(80, 3, 3)
    expected = np.stack([model.reconstruct(x), *model.predict_interval(x)], -1)
    assert np.abs(found - expected)[:, 0].max() < 1e-4
    assert np.abs(found - expected)[:, 1, 1:].max() < 1
    assert (found[:, :2, 1] < found[:, :2, 2]).all()
    assert main(["sample", run, "-n", "200", "-o", str(out)]) == 0
    made = np.array(rows_of(out)[1:], float)[:, 0]
    assert np.mean(made == made.round()) < 0.1
    new = tmp_path / "new.csv"
    new.write_text(f"place,stamp,v\n{1e10 + 30:.3f},1700000000,0\n")
    capsys.readouterr()
    assert main(["score", run, str(new), "--explain", "-o", str(out), "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    value, other = re.search(r"place ([\d.]+), expected ([\d.]+)", told).groups()  # pyright: ignore
    assert float(value) == 1e10 + 30
    assert abs(float(other) - 1e10) < 29
