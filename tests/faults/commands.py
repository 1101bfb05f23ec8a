"""Commands that write, each from a state of the disk to another, and what must hold when a fault came in between."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lapae.cli import main
from lapae.errors import LapaeError
from lapae.estimator import LaplacianAutoencoder
from lapae.runs import CHECKPOINT, CONFIG, MODEL, Run
from lapae.storage import load_run
from lapae.train.checkpoint import load_checkpoint
from lapae.train.resume import has_config

from . import runs
from .server import Server
from .steps import REMOVING, Steps

DEVICE = ["--device", "cpu"]
QUICK = ["--hidden", "8", *DEVICE, "--no-verbose"]


def prepare(root: Path) -> None:
    """A run and data, two estimators, and outputs of earlier commands."""
    root.mkdir()
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 2)) @ rng.standard_normal((2, 3))
    np.savetxt(root / "x.csv", x, fmt="%.4f", delimiter=",", header="a,b,c", comments="")
    runs.curve(root / "curve.npy")
    with_holes = (root / "x.csv").read_text("utf-8").splitlines()
    (root / "holes.csv").write_text("\n".join([*with_holes[:5], "1.0,,0.5", ""]))
    assert main(["train", str(root / "x.csv"), "--out", str(root / "run"), "--epochs", "1", *QUICK]) == 0
    for name, seed in (("old", 0), ("new", 1), ("model", 0)):
        LaplacianAutoencoder(epochs=1, random_state=seed, device="cpu").fit(x).save(root / name)
    for name in ("scores.csv", "filled.csv", "run/report.html"):
        (root / name).write_text("earlier")


def train(root: Path) -> int:
    run = root / "trained"
    if has_config(Run(run)):
        return main(["train", "--resume", str(run), "--no-verbose"])
    return main(["train", str(root / "curve.npy"), "--out", str(run), "--epochs", "2", *QUICK])


def check_train(root: Path, after: Path, begun: bool) -> None:
    """What is there can be read, and training goes on to the same weights."""
    run = Run(root / "trained")
    if any((run / name).exists() for name in (CHECKPOINT, MODEL)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if begun else "error")
            load_checkpoint(run)
    if (run / CONFIG).exists() and run.finished:
        load_run(run.path)


def save(root: Path) -> int:
    LaplacianAutoencoder.load(root / "new").save(root / "model", overwrite=True)
    return 0


def check_save(root: Path, after: Path, begun: bool) -> None:
    x = np.loadtxt(root / "x.csv", delimiter=",", skiprows=1)
    found, *known = (LaplacianAutoencoder.load(root / name) for name in ("model", "old", "new"))
    scores = [model.score_samples(x).tolist() for model in (found, *known)]
    which = 1 if found.random_state == 0 else 2
    assert scores[0] == scores[which], "seed of one model, scores of another"
    assert which == 2 or begun, "the new model is not there"


def output(name: str) -> Callable[[Path, Path, bool], None]:
    def check(root: Path, after: Path, begun: bool) -> None:
        found = (root / name).read_bytes()
        assert found == (after / name).read_bytes() or (begun and found == b"earlier"), f"{name} is half-written"

    return check


@dataclass(frozen=True)
class Command:
    run: Callable[[Path], int]
    check: Callable[[Path, Path, bool], None]
    """Of the folder, one in which the command was not disturbed, and whether it may be as it was before."""


def score(root: Path) -> int:
    return main(["score", str(root / "run"), str(root / "x.csv"), "-o", str(root / "scores.csv"), *DEVICE])


def impute(root: Path) -> int:
    return main(["impute", str(root / "run"), str(root / "holes.csv"), "-o", str(root / "filled.csv"), *DEVICE])


def report(root: Path) -> int:
    return main(["report", str(root / "run"), "--points", "20", "--examples", "2", *DEVICE])


COMMANDS = {
    "train": Command(train, check_train),
    "save": Command(save, check_save),
    "score": Command(score, output("scores.csv")),
    "impute": Command(impute, output("filled.csv")),
    "report": Command(report, output("run/report.html")),
}


def strays(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob(".*.tmp")]


@contextlib.contextmanager
def told(place: Path) -> Iterator[None]:
    """What is printed goes into a file."""
    torch.set_num_threads(1)
    with open(place, "w", encoding="utf-8") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        try:
            yield
        except BaseException as error:
            if not isinstance(error, SystemExit):
                traceback.print_exc(file=file)
            raise


def disturbed(name: str, root: str, said: str, at: int, fault: str) -> int:
    """Run a command with a fault at a step; the steps go into a file beside what it said."""
    place, folder = Path(said), Path(root)
    steps = Steps(folder, at, fault)
    with told(place):
        steps.begin()
        try:
            code = COMMANDS[name].run(folder)
        except LapaeError as error:
            print(f"lapae: {error}", file=sys.stderr)
            code = 2
        steps.at = 0
    place.with_suffix(".json").write_text(json.dumps({"steps": steps.names, "modules": list(sys.modules)}))
    return code


def judged(name: str, root: str, after: str, said: str) -> int:
    """What the fault left is the old or the new state, and the next command ends where an undisturbed one does."""
    command, folder, undisturbed = COMMANDS[name], Path(root), Path(after)
    with told(Path(said)):
        command.check(folder, undisturbed, True)
        assert command.run(folder) == 0
        command.check(folder, undisturbed, False)
        if name == "train":
            runs.assert_same(folder / "trained", undisturbed / "trained")
        assert not strays(folder), strays(folder)
    return 0


class Harness:
    """Runs commands in copies of one folder, each in a process that is forked from one that has imported everything."""

    def __init__(self, place: Path) -> None:
        place.mkdir(exist_ok=True)
        self.place, self.before, self.server = place, place / "before", Server()
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            prepare(self.before)

    def fresh(self) -> Path:
        """A copy of the folder, always at the same place, which a report names."""
        root = self.place / "root"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.before, root)
        return root

    def steps(self, name: str) -> list[str]:
        """The steps of an undisturbed command, whose result is kept for comparison."""
        root, said = self.fresh(), self.place / "said"
        assert self.server.call(disturbed, name, root, said, 0, "fail") == 0, said.read_text("utf-8")
        shutil.copytree(root, self.place / f"after {name}")
        found = json.loads(said.with_suffix(".json").read_text("utf-8"))
        self.server.load(found["modules"])
        return found["steps"]

    def disturb(self, name: str, at: int, fault: str) -> int:
        """The exit code of a command with a fault; an AssertionError where what it left is not good."""
        root, said = self.fresh(), self.place / "said"
        where = f"{name}, {fault} at step {at}"
        code = self.server.call(disturbed, name, root, said, at, fault)
        if fault == "fail":
            assert code in (0, 2), f"{where}: exit code {code}\n{said.read_text('utf-8')}"
            assert "Traceback" not in said.read_text("utf-8"), f"{where}\n{said.read_text('utf-8')}"
            step = json.loads(said.with_suffix(".json").read_text("utf-8"))["steps"][at - 1]
            assert step in REMOVING or not strays(root), f"{where}: {strays(root)}"
        else:
            assert code == -9, f"{where}: exit code {code}\n{said.read_text('utf-8')}"
        after = self.place / f"after {name}"
        assert self.server.call(judged, name, root, after, said) == 0, f"{where}\n{said.read_text('utf-8')}"
        return code
