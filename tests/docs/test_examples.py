"""The example programs run, stay short, and write their pictures; so does the script of the README's pictures."""

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
from pages import ROOT
from PIL import Image

PICTURES = {
    "sensors": ["sensors.png"],
    "imputation": ["intervals.png"],
    "images": ["map.png", "unusual.png"],
    "fabric": ["tiles.png"],
    "extrapolation": ["extrapolation.png"],
}


def test_every_example_is_short_and_known():
    paths = sorted((ROOT / "examples").glob("*.py"))
    assert [path.stem for path in paths] == sorted([*PICTURES, "service", "stream"])
    for path in paths:
        assert len(path.read_text("utf-8").splitlines()) < 100, path.name


def check_picture(path) -> None:
    """A picture that can be read, and that shows something."""
    with Image.open(path) as image:
        assert min(image.size) > 100
        assert np.ptp(np.asarray(image.convert("L"), int)) > 100


def test_the_stream_is_followed(monkeypatch, capsys):
    """The alarm comes on the day of the change and not before, and fewer readings are flagged after it is learned."""
    monkeypatch.setattr(sys, "argv", ["stream", "17"])
    runpy.run_path(str(ROOT / "examples/stream.py"), run_name="__main__")
    days = capsys.readouterr().out.splitlines()
    flagged = [int(re.findall(r"(\d+)%", line)[0]) for line in days]
    assert next(i for i, line in enumerate(days) if "ALARM" in line) == 7  # the fourteenth day, from the seventh
    assert flagged[7] > 50
    assert flagged[9] < 30


@pytest.mark.parametrize("name", PICTURES)
def test_an_example_writes_its_pictures(name, tmp_path, monkeypatch, capsys, short):
    out = tmp_path / "made" / "here"
    monkeypatch.setattr(sys, "argv", [name, str(out)])
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == PICTURES[name]
    for picture in PICTURES[name]:
        check_picture(out / picture)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number", "least"),
    [
        ("sensors", r"AUROC ([\d.]+)", 0.85),
        ("imputation", r"90 % intervals hold ([\d.]+)%", 85),
        ("extrapolation", r"default .*x3: ([\d.]+)%", 85),
    ],
)
def test_an_example_shows_what_it_is_meant_to(name, number, least, tmp_path):
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = re.search(number, done.stdout)
    assert found is not None
    assert float(found[1]) > least


def test_the_pictures_of_the_readme_are_drawn_from_a_run(tmp_path, monkeypatch):
    """On digits and for one epoch: the examples, which the script runs too, have tests of their own."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "images"))
    make = importlib.import_module("make")

    monkeypatch.setattr(make.subprocess, "run", lambda *command, **options: None)
    quick = ["--source", "digits", "--epochs", "1", "--n-samples", "5"]
    monkeypatch.setattr(sys, "argv", ["make.py", "--out", str(tmp_path), *quick])
    make.main()
    names = ["imputation.png", "latent.png", "reconstructions.png", "samples.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names:
        check_picture(tmp_path / name)
        assert (ROOT / "docs" / "images" / name).exists()
