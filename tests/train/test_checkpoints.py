"""When checkpoints are written, and what is held in memory between two of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from observers import StopAfter
from trained import CURVE, assert_same, losses

from lapae.errors import RunError
from lapae.fit import fit
from lapae.runs import NEXT, PREVIOUS, Run
from lapae.train import checkpoint
from lapae.train.checkpoint import Checkpoints, load_checkpoint


def test_checkpoints_now_and_then(table, tmp_path, whole, every):
    """A kill loses what is held in memory alone; Ctrl-C does not."""
    run = Run.create(tmp_path / "run")
    every(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "end", lambda self: None)  # as if killed
        with pytest.raises(KeyboardInterrupt):
            fit(CURVE, table, run=run, observers=[StopAfter(5)])
    found = load_checkpoint(run)
    assert found is not None
    assert found.state.epoch == 3
    assert not (run / PREVIOUS).exists()
    assert len(losses(run.path)) == 5
    with pytest.raises(KeyboardInterrupt):
        fit(CURVE, table, run=run, resume=True, observers=[StopAfter(5)])
    found = load_checkpoint(run)
    assert found is not None
    assert found.state.epoch == 5
    fit(CURVE, table, run=run, resume=True)
    assert_same(run.path, whole.path)


def test_checkpoints_as_often_as_they_are_cheap(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("lapae.train.checkpoint.time.monotonic", lambda: now[0])

    def write(path, content):
        now[0] += 0.5

    monkeypatch.setattr("lapae.train.checkpoint.write_whole", write)
    monkeypatch.setattr("lapae.train.checkpoint._put_in_place", lambda run: None)
    checkpoints = Checkpoints(Run.create(tmp_path / "run"), {}, [])
    written = []
    for epoch in range(1, 101):
        now[0] += 1.0
        if checkpoints.due():
            written.append(epoch)
        checkpoints.keep({}, {}, {}, write=checkpoints.due())
    assert written[0] == 1  # what one costs is known after the first
    assert {later - earlier for earlier, later in pairwise(written)} == {10}


def test_an_interrupt_while_a_checkpoint_is_written_loses_nothing(table, tmp_path, monkeypatch, every):
    run = Run.create(tmp_path / "run")
    every(4)
    write, calls = checkpoint.write_whole, []

    def interrupted(path, content):
        calls.append(path.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(checkpoint, "write_whole", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(CURVE, table, run=run)
    found = load_checkpoint(run)
    assert found is not None
    assert found.state.epoch == 6
    assert calls == [NEXT] * 3  # epoch 4, epoch 6 broken off, and once more while ending


def test_what_ended_training_is_said_though_the_disk_is_full(table, tmp_path, monkeypatch, every):
    run = Run.create(tmp_path / "run")
    every(4)

    def full(path, content):
        raise RunError(f"cannot write {path}: No space left on device")

    monkeypatch.setattr(checkpoint, "write_whole", full)
    with (
        pytest.raises(KeyboardInterrupt),
        pytest.warns(UserWarning, match="No space left on device; the epochs since the last checkpoint are lost"),
    ):
        fit(CURVE, table, run=run, observers=[StopAfter(3)])


def test_what_is_held_shares_the_best_weights(table, tmp_path, monkeypatch, every):
    """And nothing that the next step changes."""
    every(4)
    keep, shared = Checkpoints.keep, []

    def looked_at(self, tensors, metadata, best, *, write):
        keep(self, tensors, metadata, best, write=write)
        if self.held is not None:
            here = {tensor.data_ptr() for tensor in best.values()}
            live = {tensor.data_ptr() for tensor in tensors.values()} - here
            held = {tensor.data_ptr() for tensor in self.held[0].values()}
            assert not held & live
            shared.append(here <= held)

    monkeypatch.setattr(Checkpoints, "keep", looked_at)
    fit(CURVE, table, run=Run.create(tmp_path / "run"))
    assert shared
    assert all(shared)


def test_by_default_too_a_run_goes_on_to_the_same_weights(table, tmp_path, whole):
    run = Run.create(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        fit(CURVE, table, run=run, observers=[StopAfter(5)])
    fit(CURVE, table, run=run, resume=True)
    assert_same(run.path, whole.path)
