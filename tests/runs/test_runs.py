"""Run folders: whole files, damage that is found, one writer at a time."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lapae.errors import ConfigError, RunError
from lapae.runs import CONFIG, METRICS, Run, read_tensor_file, tensor_file
from lapae.runs import run as runs
from lapae.runs.files import check_place, whole, whole_folder, write_whole
from lapae.runs.texts import sealed, unsealed

TENSORS = {"a": torch.arange(6.0).view(2, 3).T, "b": torch.tensor(3), "c": torch.zeros(0, 2), "d": torch.ones(2).half()}
CONTENT = tensor_file(TENSORS, {"epoch": 3, "name": "ü"})


def test_tensor_file_reads_back(tmp_path):
    write_whole(tmp_path / "x", CONTENT)
    tensors, metadata = read_tensor_file(tmp_path / "x")
    assert metadata == {"epoch": 3, "name": "ü"}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)


def test_equal_content_gives_equal_bytes():
    again = [tensor_file({**TENSORS}, {"epoch": 3, "name": "ü"}) for _ in range(20)]
    assert set(again) == {CONTENT}
    head = CONTENT[8 : 8 + int.from_bytes(CONTENT[:8], "little")]
    assert len(head) % 8 == 0
    assert head.startswith(b'{"__metadata__":{"digest":')


def test_tied_tensors_are_written_apart(tmp_path):
    shared = torch.arange(3.0)
    write_whole(tmp_path / "x", tensor_file({"a": shared, "b": shared, "c": shared[:2]}, {}))
    tensors = read_tensor_file(tmp_path / "x")[0]
    tensors["a"].zero_()
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {"a": [0] * 3, "b": [0, 1, 2], "c": [0, 1]}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("scratch") / "file"


@settings(max_examples=200, deadline=None)
@given(position=st.integers(0, len(CONTENT) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(scratch, position, bit):
    damaged = bytearray(CONTENT)
    damaged[position] ^= 1 << bit
    scratch.write_bytes(damaged)
    with pytest.raises(RunError, match="file"):
        read_tensor_file(scratch)


@settings(max_examples=50, deadline=None)
@given(length=st.integers(0, len(CONTENT) - 1))
def test_any_truncation_is_found(scratch, length):
    scratch.write_bytes(CONTENT[:length])
    with pytest.raises(RunError, match="damaged"):
        read_tensor_file(scratch)


def test_foreign_tensor_file(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "x")
    with pytest.raises(RunError, match="not written by lapae"):
        read_tensor_file(tmp_path / "x")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch, call):
    write_whole(tmp_path / "x", b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(RunError, match=r"cannot write .*x: No space left"):
        write_whole(tmp_path / "x", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_create_and_open(tmp_path):
    first, second = (Run.create(name="a b/../c-ae", root=tmp_path / "runs") for _ in range(2))
    assert (first.path.name, second.path.name) == ("a_b_.._c-ae-1", "a_b_.._c-ae-2")
    with pytest.raises(RunError, match="is not a run"):
        Run.open(first.path)
    with pytest.raises(RunError, match="no such folder"):
        Run.open(tmp_path / "absent")
    write_whole(first / CONFIG, b"")
    assert Run.open(first.path).path == first.path
    with pytest.raises(RunError, match="already holds a run"):
        Run.create(first.path)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="a file of that name is there"):
        Run.create(tmp_path / "file")


def test_metrics_that_cannot_be_read_mean_unfinished(tmp_path):
    run = Run.create(tmp_path / "run")
    assert not run.finished
    run.write_json(METRICS, {"loss": float("nan"), "list": [1, float("inf")]})
    assert run.read_metrics() == {"loss": None, "list": [1, None]}
    (run / METRICS).write_text("{")
    with pytest.warns(UserWarning, match=r"metrics\.json is damaged: .*left aside"):
        assert run.read_metrics() is None


def test_every_flipped_bit_of_a_table_is_found():
    """But for those that change nothing that it says (of the last newline, which may become another space)."""
    value = {"offset": 0.1234, "name": "ü", "list": [1, None, {"2": 3, "10": True}]}
    content = sealed({"offset": 0.1234, "name": "ü", "list": (1, float("nan"), {2: 3, 10: True})})
    assert unsealed(content) == value
    n_found = 0
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert unsealed(bytes(damaged)) == value
        except ValueError:
            n_found += 1
    assert n_found > 0.99 * 8 * len(content)


STRAY = ".config.toml.0123456789abcdef.tmp"
HOLD = """
import sys, time
from lapae.runs import Run
with Run(sys.argv[1]).lock():
    print("held", flush=True)
    time.sleep(3600)  # it is killed
"""


def test_second_writer_is_refused_until_the_first_is_dead(tmp_path):
    run = Run.create(tmp_path / "run")
    (run / STRAY).touch()  # what a killed writer leaves
    with subprocess.Popen([sys.executable, "-c", HOLD, str(run.path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            with pytest.raises(RunError, match=f"in use: process {process.pid} on"), run.lock():
                pass
        finally:
            process.kill()
            process.wait()
    with run.lock():
        assert not (run / STRAY).exists()
    assert not run.path.exists()  # nothing was written into it


def test_what_other_commands_are_writing_into_a_run_is_left_alone(tmp_path):
    run = Run.create(tmp_path / "run")
    with whole_folder(run / "filled") as folder, whole(run / "scores.csv") as temporary:
        (folder / "a.png").touch()
        temporary.write_text("scores")
        with run.lock():
            write_whole(run / METRICS, b"")
    assert (run / "scores.csv").read_text("utf-8") == "scores"
    assert [path.name for path in (run / "filled").iterdir()] == ["a.png"]


def test_a_run_that_is_removed_while_it_is_held_hides_no_error(tmp_path):
    run = Run.create(tmp_path / "run")

    def work() -> None:
        with run.lock():
            shutil.rmtree(run.path)
            write_whole(run / CONFIG, b"")

    with pytest.raises(RunError, match="cannot write"):
        work()


def test_a_place_that_cannot_be_written_is_found_out_beforehand(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").touch()
    for name, complaint in (("folder.csv", "it is a folder"), ("none/x.csv", "no folder"), ("file/x.csv", "no folder")):
        with pytest.raises(RunError, match=complaint):
            check_place(tmp_path / name)
    check_place(tmp_path / "x.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.csv"]


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    later = tensor_file({"a": torch.ones(2)}, {"epoch": 4})
    write_whole(tmp_path / "x", CONTENT)
    digest = runs.digest

    def replaced(*arguments) -> str:
        monkeypatch.setattr(runs, "digest", digest)
        write_whole(tmp_path / "x", later)
        return "of half the one and half the other"

    monkeypatch.setattr(runs, "digest", replaced)
    tensors, metadata = read_tensor_file(tmp_path / "x")
    assert metadata == {"epoch": 4}
    assert torch.equal(tensors["a"], torch.ones(2))


def test_the_digest_tells_names_types_and_shapes_apart():
    content = torch.arange(4, dtype=torch.int32)
    others = [
        {"b": content},
        {"a": content.view(2, 2)},
        {"a": content.view(torch.float32)},
        {"a": content, "b": content[:0]},
    ]
    assert len({runs.digest(tensors) for tensors in [{"a": content}, *others]}) == 5
    assert runs.digest({"a": content}) == runs.digest({"a": content.clone()})


@pytest.fixture
def calls(monkeypatch) -> list[tuple[str, int]]:
    """What is forced onto the disk and moved into place, in this order, each by its inode."""
    found: list[tuple[str, int]] = []
    fsync, replace, rename = os.fsync, os.replace, os.rename

    def forced(descriptor: int) -> None:
        found.append(("forced", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def moved(move, a, b) -> None:
        found.append(("moved", os.stat(a).st_ino))
        move(a, b)

    monkeypatch.setattr(os, "fsync", forced)
    monkeypatch.setattr(os, "replace", lambda a, b: moved(replace, a, b))
    monkeypatch.setattr(os, "rename", lambda a, b: moved(rename, a, b))
    return found


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path, calls):
    """And its name after it: a crash at any moment leaves the old file or the new one."""
    path = tmp_path / "x"
    path.write_bytes(b"old")
    write_whole(path, b"new")
    file, folder = path.stat().st_ino, tmp_path.stat().st_ino
    assert calls == [("forced", file), ("moved", file), ("forced", folder)]
    assert path.read_bytes() == b"new"


def test_a_folder_is_on_the_disk_before_it_takes_its_place(tmp_path, calls):
    path = tmp_path / "x"
    with whole_folder(path) as temporary:
        (temporary / "a").touch()
    folder, above = path.stat().st_ino, tmp_path.stat().st_ino
    assert calls == [("forced", folder), ("moved", folder), ("forced", above)]


def replaced(path: Path) -> list[str]:
    """Have a folder that is there replaced by another; what is in it then."""
    path.mkdir()
    (path / "old").touch()
    with whole_folder(path, replace=True) as temporary:
        (temporary / "new").touch()
        assert [found.name for found in path.iterdir()] == ["old"]
    return [found.name for found in path.iterdir()]


def test_folders_are_exchanged_in_one_step(tmp_path, calls):
    """Else a reader, or a crash, finds none between two steps."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    exchange = getattr(ctypes.CDLL(None), "renameat2", None)
    places = (-100, os.fsencode(tmp_path / "a"), -100, os.fsencode(tmp_path / "b"), 2)
    if exchange is None or exchange(*places) != 0:
        pytest.skip("this system cannot exchange two folders")
    path = tmp_path / "place" / "x"
    path.parent.mkdir()
    assert replaced(path) == ["new"]
    assert calls == [("forced", path.stat().st_ino), ("forced", path.parent.stat().st_ino)]
    assert [found.name for found in path.parent.iterdir()] == ["x"]


def test_where_the_system_cannot_exchange_folders_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **options: object())
    assert replaced(tmp_path / "x") == ["new"]
    assert [found.name for found in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_holds_something_is_replaced_only_if_asked(tmp_path):
    path = tmp_path / "x"
    path.mkdir()
    with whole_folder(path) as temporary:  # an empty one gives way
        (temporary / "a").touch()
    with pytest.raises(ConfigError, match="is not an empty folder"), whole_folder(path):
        pytest.fail("work that would be lost")
    assert [found.name for found in path.iterdir()] == ["a"]
