"""Every file of a run, damaged in every way: mended with a warning where the run knows better, else a clear error."""

from __future__ import annotations

import json
import random
import shutil
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from lapae.cli import main
from lapae.errors import RunError
from lapae.estimator import LaplacianAutoencoder
from lapae.runs import CHECKPOINT, CONFIG, HISTORY, METRICS, MODEL, POSTERIOR, PREVIOUS, Run
from lapae.runs.files import write_whole
from lapae.storage import CALIBRATION, load_run
from lapae.train import checkpoint
from lapae.train.checkpoint import load_checkpoint
from lapae.train.resume import saved_config

from .runs import assert_same, config, curve, train

FLIPS = 6
LATER = 40
"""Epochs after which a run has better weights than after three."""


def flipped(content: bytes, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def damaged(content: bytes) -> dict[str, bytes]:
    """The ways in which a file is damaged."""
    chance = random.Random(len(content))
    ways = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "short": content[:-1],
        "garbage": chance.randbytes(len(content)),
        "zeros": bytes(len(content)),
    }
    bits = [0, 8 * len(content) - 1, *(chance.randrange(8 * len(content)) for _ in range(FLIPS))]
    return ways | {f"bit {bit}": flipped(content, bit) for bit in bits}


def options(text: bytes) -> dict | None:
    """What a configuration file says."""
    try:
        return tomllib.loads(text.decode()) | {"versions": None}
    except ValueError:
        return None


def says(content: bytes, value: dict) -> bool:
    """Whether a JSON file says `value`: the last newline may be gone."""
    try:
        return json.loads(content) == value
    except ValueError:
        return False


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return curve(tmp_path_factory.mktemp("data") / "curve.npy")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, source) -> Path:
    path = tmp_path_factory.mktemp("runs") / "finished"
    train(path, source, 3)
    return path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, finished, source) -> Path:
    """The run as it was when two of its three epochs were done."""
    path = tmp_path_factory.mktemp("runs") / "stopped"
    with pytest.MonkeyPatch.context() as patch:
        gather = checkpoint.gather

        def once_more(method, optimizer, schedule, state, *rest):
            if state.epoch == 3:
                raise KeyboardInterrupt
            return gather(method, optimizer, schedule, state, *rest)

        patch.setattr(checkpoint, "gather", once_more)
        with pytest.raises(KeyboardInterrupt):
            train(path, source, 3)
    assert (path / PREVIOUS).exists()
    return path


def resumed(path: Path, source: Path) -> list[str]:
    """Go on with the run, as `lapae train --resume`; returns the warnings, but for that three epochs learn little."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(path, source, 3)
    messages = [str(warning.message) for warning in caught]
    return [message for message in messages if "nothing was learned" not in message]


@pytest.mark.parametrize("name", [CHECKPOINT, PREVIOUS, CONFIG, HISTORY])
def test_a_stopped_run_goes_on_to_the_same_weights(name, stopped, finished, source, tmp_path):
    # the line of the third epoch came after the checkpoint: it is written again in any case
    known = b"".join((stopped / HISTORY).read_bytes().splitlines(keepends=True)[:2])
    for way, content in damaged((stopped / name).read_bytes()).items():
        path = tmp_path / way
        shutil.copytree(stopped, path)
        (path / name).write_bytes(content)
        messages = resumed(path, source)
        assert_same(path, finished)
        if name == CHECKPOINT:
            assert any("damaged" in m and "continuing from the checkpoint before it" in m for m in messages), way
        elif name == HISTORY and not content.startswith(known):
            assert any("metrics.jsonl is damaged: rewritten" in message for message in messages), way
        elif name == CONFIG:  # the next test says when
            assert all("config.toml is damaged or was changed" in message for message in messages), way
        else:
            assert not messages, way
        shutil.rmtree(path)


def test_a_damaged_configuration_is_taken_from_the_checkpoint_with_a_warning(stopped, source, tmp_path):
    """Whether or not it can still be read: what it says must be what the checkpoint says."""
    content = (stopped / CONFIG).read_bytes()
    ways = damaged(content) | {"valid": content.replace(b"epochs = 3", b"epochs = 7")}
    for way, text in ways.items():
        path = tmp_path / way
        shutil.copytree(stopped, path)
        (path / CONFIG).write_bytes(text)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert saved_config(Run(path)) == config(source, 3)
        found = [str(w.message) for w in caught]
        if options(text) == options(content):  # the last newline, or a bit of the [versions] table
            assert not found, way
        else:
            assert "config.toml is damaged or was changed" in found[0], way


@pytest.mark.parametrize("name", [METRICS, MODEL, POSTERIOR, CALIBRATION, CONFIG, HISTORY, CHECKPOINT, PREVIOUS])
def test_a_finished_run_can_be_used_or_says_what_is_wrong_and_resuming_mends_it(name, finished, source, tmp_path):
    for way, content in damaged((finished / name).read_bytes()).items():
        path = tmp_path / way
        shutil.copytree(finished, path)
        (path / name).write_bytes(content)
        if name in (MODEL, POSTERIOR, CALIBRATION):
            with pytest.raises(RunError, match=rf"{name} is damaged.*lapae train --resume .* makes it anew"):
                load_run(path)
        elif name == METRICS and not says(content, json.loads((finished / name).read_bytes())):
            with pytest.warns(UserWarning, match=r"metrics\.json is damaged: .* left aside"):
                load_run(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                load_run(path)
        messages = resumed(path, source)
        if name in (MODEL, POSTERIOR, CALIBRATION):
            assert any(f"{name} is damaged" in message for message in messages), way
            assert_same(path, finished)
        if name in (MODEL, POSTERIOR, CALIBRATION, METRICS):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                load_run(path)
        shutil.rmtree(path)


def test_all_checkpoints_damaged_is_an_error_that_names_them(stopped, tmp_path, source, capsys):
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    for name in (CHECKPOINT, PREVIOUS):
        (path / name).write_bytes(b"")
    with pytest.raises(RunError, match=r"no readable checkpoint: .*checkpoint\.safetensors.*checkpoint\.previous"):
        load_checkpoint(Run(path))
    assert main(["train", "--resume", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_posterior_beside_the_weights_of_an_earlier_training(finished, source, tmp_path, monkeypatch):
    """Killed between the two files of a run that was trained further."""
    path = tmp_path / "run"
    shutil.copytree(finished, path)

    def killed(place: Path, content: bytes) -> None:
        if place.name == MODEL:
            raise KeyboardInterrupt
        write_whole(place, content)

    with monkeypatch.context() as patch:
        patch.setattr("lapae.storage.write_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            train(path, source, LATER)
    monkeypatch.setattr("lapae.storage.PATIENCE", 1)
    with pytest.raises(RunError, match=r"is not that of .*model\.safetensors.*--resume"):
        load_run(path)
    train(path, source, LATER)
    load_run(path)


def test_a_model_that_is_written_while_it_is_read(finished, source, tmp_path, monkeypatch):
    path, later = tmp_path / "run", tmp_path / "later"
    for place in (path, later):
        shutil.copytree(finished, place)
    train(later, source, LATER)
    for name in (POSTERIOR, CALIBRATION):
        assert (later / name).read_bytes() != (path / name).read_bytes()
        shutil.copy(later / name, path / name)
    monkeypatch.setattr("lapae.storage.time.sleep", lambda seconds: shutil.copy(later / MODEL, path / MODEL))
    found, expected = (load_run(place).method.state_dict() for place in (path, later))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_every_file_of_an_estimator(tmp_path):
    """Loading ends in an estimator or in a RunError that names a file, and never in another error."""
    x = np.load(curve(tmp_path / "curve.npy"))
    LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(x).save(tmp_path / "good")
    files = sorted(path.name for path in (tmp_path / "good").iterdir() if not path.name.startswith("."))
    assert "estimator.json" in files
    refused = set()
    for name in files:
        for way, content in damaged((tmp_path / "good" / name).read_bytes()).items():
            path = tmp_path / "bad"
            shutil.copytree(tmp_path / "good", path)
            (path / name).write_bytes(content)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    LaplacianAutoencoder.load(path)
                except RunError as error:
                    assert name in str(error), way  # noqa: PT017
                    refused.add((name, way))
            shutil.rmtree(path)
    for name in ("estimator.json", CALIBRATION, MODEL, POSTERIOR):
        assert {(name, way) for way in ("empty", "half", "garbage")} <= refused


def test_hostile_estimator_json(tmp_path):
    """Valid JSON that is no estimator of ours: nothing in it is called, and no method is put in place of another."""
    x = np.load(curve(tmp_path / "curve.npy"))
    LaplacianAutoencoder(epochs=2, random_state=0, device="cpu").fit(x).save(tmp_path / "run")
    run = Run(tmp_path / "run")
    good = run.read_json("estimator.json")
    for change in (
        lambda about: {},
        lambda about: {"format": "other"},
        lambda about: about | {"params": 3},
        lambda about: about | {"params": about["params"] | {"no_such": 1}},
        lambda about: about | {"params": about["params"] | {"likelihood": {"sigma": "x", "y": 1}}},
        lambda about: about | {"params": about["params"] | {"likelihood": 3}},
        lambda about: about | {"params": about["params"] | {"network": 3}},
        lambda about: about | {"params": about["params"] | {"contamination": "x"}},
        lambda about: about | {"params": about["params"] | {"contamination": [1]}},
        lambda about: about | {"params": about["params"] | {"device": 1}},
    ):
        run.write_json("estimator.json", change(good))
        with pytest.raises(RunError, match=r"estimator\.json"):
            LaplacianAutoencoder.load(tmp_path / "run")
