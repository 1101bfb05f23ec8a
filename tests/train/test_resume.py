"""Stopped at any moment, a run goes on to the same weights (kill -9: tests/faults)."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from observers import StopAfter
from PIL import Image
from trained import CURVE, assert_equal, assert_same, weights
from waiting import PATIENCE, until

from lapae.cli import main
from lapae.config import Config, MethodConfig, ModelConfig, TrainConfig
from lapae.data import Data, load
from lapae.errors import ConfigError, RunError
from lapae.fit import fit
from lapae.methods import METHODS
from lapae.runs import CHECKPOINT, CONFIG, HISTORY, METRICS, MODEL, NEXT, PREVIOUS, Run, read_tensor_file, tensor_file
from lapae.runs.files import write_whole
from lapae.storage import load_run
from lapae.train.checkpoint import load_checkpoint
from lapae.train.resume import check_resumable, data_digest, saved_config

OPTIONS = ["--method", "vae", "--hidden", "16", "--device", "cpu", "--epochs", "25", "--batch-size", "32"]
COMMAND = [sys.executable, "-m", "lapae", "train"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["train", "digits", *OPTIONS, "--no-verbose", "--out", str(run)]) == 0
    return run


def wait_for(path: Path, process: subprocess.Popen) -> None:
    def written() -> bool:
        found = path.exists()
        assert found or process.poll() is None, f"ended with {process.returncode} before it wrote {path.name}"
        return found

    until(written, f"{path.name} is written", every=0.002)


def test_ctrl_c_leaves_a_resumable_run_and_a_clean_message(undisturbed, tmp_path):
    run = tmp_path / "run"
    with subprocess.Popen(
        [*COMMAND, "digits", *OPTIONS, "--out", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    ) as process:
        wait_for(run / CHECKPOINT, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert f"stopped; continue with: lapae train --resume {run}" in errors
    assert "Traceback" not in errors
    assert not (run / MODEL).exists()
    with pytest.warns(UserWarning, match="not finished: these are its best weights so far"):
        load_run(run)
    assert main(["train", "--resume", str(run), "--no-verbose"]) == 0
    assert_equal(weights(run), weights(undisturbed))


@pytest.fixture(autouse=True)
def each_epoch(every) -> None:
    """Checkpoints of every epoch, for tests that look at the last two."""
    every(1)


@pytest.fixture
def stopped(table, tmp_path) -> Run:
    """A run that was stopped after its fourth epoch of six."""
    run = Run.create(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        fit(CURVE, table, run=run, observers=[StopAfter(4)])
    return run


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_resumes_to_the_same_state(name, table, tmp_path):
    """Posteriors included: every tensor of the method, also what it makes at the end. With what the data choose."""
    train = TrainConfig(epochs=6, device="cpu")
    config = Config(model=ModelConfig(hidden=(8,)), method=MethodConfig(method=name), train=train).resolved()
    run = Run.create(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fit(config, table, run=run, observers=[StopAfter(3)])
    resumed = fit(config, table, run=run, resume=True)
    assert_equal(resumed.method.state_dict(), fit(config, table).method.state_dict())


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "flipped":
        middle = len(content) // 2
        content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes({"empty": b"", "truncated": content[: len(content) // 2]}.get(how, content))


@pytest.mark.parametrize("how", ["empty", "truncated", "flipped"])
def test_damaged_checkpoint_falls_back_to_the_one_before(how, stopped, whole, table):
    damage(stopped / CHECKPOINT, how)
    with pytest.warns(UserWarning, match="damaged.*continuing from the checkpoint before it"):
        fit(CURVE, table, run=stopped, resume=True)
    assert_same(stopped.path, whole.path)


def test_both_checkpoints_damaged(stopped, table):
    damage(stopped / CHECKPOINT, "flipped")
    damage(stopped / PREVIOUS, "empty")
    with pytest.raises(RunError, match=r"no readable checkpoint: .*checkpoint\.safetensors is damaged"):
        fit(CURVE, table, run=stopped, resume=True)


def test_foreign_checkpoint(stopped, table):
    from safetensors.torch import save_file

    (stopped / PREVIOUS).unlink()
    save_file({"a": torch.ones(2)}, stopped / CHECKPOINT)
    with pytest.raises(RunError, match="was not written by lapae"):
        fit(CURVE, table, run=stopped, resume=True)


def test_checkpoint_of_another_model(stopped, table):
    wider = dataclasses.replace(CURVE, model=dataclasses.replace(CURVE.model, hidden=(9,)))
    with pytest.raises(RunError, match="does not fit this model"):
        fit(wider, table, run=stopped, resume=True)


@pytest.mark.parametrize("change", ["values", "names"])
def test_data_that_have_changed(change, tmp_path, capsys):
    source, run = tmp_path / "t.csv", str(tmp_path / "run")
    rows = [f"{i},{i * i},{-i}" for i in range(40)]
    source.write_text("\n".join(["a,b,c", *rows]))
    quick = ["--hidden", "4", "--device", "cpu", "--no-verbose"]
    assert main(["train", str(source), *quick, "--epochs", "1", "--out", run]) == 0
    changed = {"values": ["a,b,c", *rows[:-1], "1000,0,0"], "names": ["a,c,b", *rows]}
    source.write_text("\n".join(changed[change]))
    assert main(["train", "--resume", run, "--epochs", "2"]) == 2
    assert "is of other data" in capsys.readouterr().err
    source.write_text("\n".join(["a,b,c", *rows]))
    assert main(["train", "--resume", run, "--epochs", "2"]) == 0


def test_other_data(stopped, table):
    fewer = dataclasses.replace(table, train=dataclasses.replace(table.train, x=table.train.x[:90]))
    with pytest.raises(RunError, match="is of 96 training samples, there are 90 now"):
        fit(CURVE, fewer, run=stopped, resume=True)


def test_other_images_of_the_same_number_and_shape(tmp_path, capsys):
    """Images are not standardised: nothing else tells them apart."""
    rng, source, run = np.random.default_rng(0), tmp_path / "images.npy", str(tmp_path / "run")
    images = rng.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    np.save(source, images)
    quick = ["--hidden", "4", "--device", "cpu", "--no-verbose"]
    assert main(["train", str(source), *quick, "--epochs", "1", "--out", run]) == 0
    np.save(source, rng.integers(0, 256, images.shape, dtype=np.uint8))
    assert main(["train", "--resume", run, "--epochs", "2"]) == 2
    assert "is of other data of this kind" in capsys.readouterr().err
    np.save(source, images)
    assert main(["train", "--resume", run, "--epochs", "2"]) == 0


def test_the_digest_is_that_of_all_values(monkeypatch):
    monkeypatch.setattr("lapae.space.scaling.CHUNK_BYTES", 1000)
    x = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)

    def digest(x: np.ndarray) -> str:
        return data_digest(Data.of(x))

    digests = {digest(x), digest(x.astype(np.float64)), digest(x.reshape(300, 5, 1)), digest(x[::-1])}
    for row in range(0, 300, 13):  # of any split
        other = x.copy()
        other[row, 3] = np.nextafter(other[row, 3], np.float32(9))
        digests.add(digest(other))
    assert len(digests) == 4 + len(range(0, 300, 13))
    assert digest(x.copy()) == digest(x)


@pytest.mark.parametrize("options", [{}, {"tile": 8}])
def test_the_digest_of_images_is_that_of_their_files(tmp_path, options, monkeypatch):
    rng = np.random.default_rng(0)
    for i in range(8):
        Image.fromarray(rng.integers(0, 256, (16, 16), dtype=np.uint8)).save(tmp_path / f"{i}.png")

    def digest() -> str:
        return data_digest(load(tmp_path, **options))

    before = digest()
    first, last = (tmp_path / f"{i}.png" for i in (0, 7))
    kept = last.read_bytes()
    last.write_bytes(first.read_bytes())
    assert digest() != before
    last.write_bytes(kept)
    monkeypatch.setattr("lapae.data.image_files.Image.Image.convert", None)  # nothing is decoded
    assert digest() == before


def test_a_checkpoint_of_an_earlier_version_is_resumed(stopped, whole, table):
    """It has a digest of some of the data, under another name."""
    tensors, metadata = read_tensor_file(stopped / CHECKPOINT)
    metadata["about"]["digest"] = metadata["about"].pop("data")[::-1]
    write_whole(stopped / CHECKPOINT, tensor_file(tensors, metadata))
    fit(CURVE, table, run=stopped, resume=True)
    assert_same(stopped.path, whole.path)


@pytest.mark.parametrize("how", ["empty", "truncated", "flipped"])
@pytest.mark.parametrize("name", [CONFIG, HISTORY])
def test_damaged_text_files_are_mended_from_the_checkpoint(name, how, stopped, whole, table):
    damage(stopped / name, how)
    fit(saved_config(stopped), table, run=stopped, resume=True)
    assert_same(stopped.path, whole.path)
    assert (stopped / CONFIG).read_text("utf-8") == (whole / CONFIG).read_text("utf-8")


def test_a_kill_between_the_renames_loses_nothing(stopped, whole, table):
    os.replace(stopped / CHECKPOINT, stopped / "checkpoint.next.safetensors")
    fit(CURVE, table, run=stopped, resume=True)
    assert_equal(weights(stopped.path), weights(whole.path))


def test_a_checkpoint_that_moves_while_it_is_read_is_not_damaged(stopped, monkeypatch, recwarn):
    os.replace(stopped / CHECKPOINT, stopped / NEXT)

    def moved(path: Path):
        if path.name == NEXT and path.exists():
            os.replace(path, stopped / CHECKPOINT)
        return read_tensor_file(path)

    monkeypatch.setattr("lapae.train.checkpoint.read_tensor_file", moved)
    checkpoint = load_checkpoint(stopped)
    assert checkpoint is not None
    assert checkpoint.state.epoch == 4
    assert not recwarn.list


def test_full_disk_stops_with_the_last_checkpoint_kept(table, tmp_path, whole, monkeypatch):
    """At every write of a run in turn, until one goes through."""
    fsync = os.fsync

    def until(n_good: int):
        """An fsync that goes through `n_good` times."""
        good = iter(range(n_good))

        def synchronise(descriptor: int) -> None:
            if next(good, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(descriptor)

        return synchronise

    run = Run.create(tmp_path / "run")
    n_good = 0
    while not run.finished:
        monkeypatch.setattr(os, "fsync", until(n_good))
        with contextlib.suppress(RunError):
            fit(CURVE, table, run=run, resume=True)
        n_good += 1
    assert n_good > 5
    monkeypatch.setattr(os, "fsync", until(0))
    with pytest.raises(RunError, match=r"cannot write .*: No space left on device"):
        fit(CURVE, table, run=Run.create(tmp_path / "full"))
    assert_equal(weights(run.path), weights(whole.path))


def test_finished_run_is_left_as_it_is_and_can_be_extended(whole, table, tmp_path):
    before = (whole / METRICS).read_bytes()
    assert fit(CURVE, table, run=whole, resume=True).metrics["epochs"] == 6
    assert (whole / METRICS).read_bytes() == before
    longer = dataclasses.replace(CURVE, train=dataclasses.replace(CURVE.train, epochs=9))
    check_resumable(saved_config(whole), longer)
    assert fit(longer, table, run=whole, resume=True).metrics["epochs"] == 9
    at_once = Run.create(tmp_path / "at_once")
    fit(longer, table, run=at_once)
    assert_equal(weights(whole.path), weights(at_once.path))


def test_what_a_resumed_run_cannot_change():
    other = dataclasses.replace(CURVE, train=dataclasses.replace(CURVE.train, batch_size=3))
    with pytest.raises(ConfigError, match="cannot change batch_size"):
        check_resumable(CURVE, other)
