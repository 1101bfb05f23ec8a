"""What is refused before it is read: pipes, devices, loops, and more than there is memory for."""

from __future__ import annotations

import gzip
import os
import struct

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from lapae.cli.train import absolute
from lapae.data import Data, DataError, load, open_input
from lapae.data.bounds import check_memory, free_memory
from lapae.data.inspect import look
from lapae.space import Space
from lapae_paper.datasets.idx import read_idx

SPACES = {
    ".csv": Space("table", (2,)),
    ".npy": Space("table", (2,)),
    ".npz": Space("table", (2,)),
    ".parquet": Space("table", (2,)),
    ".png": Space("image", (1, 8, 8), scale=255.0),
}


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def loop(path):
    path.symlink_to(path)


def dangling(path):
    path.symlink_to(path.with_name("nowhere"))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (pipe, "is a pipe, expected a file"),
        (device, "is a device, expected a file"),
        (loop, "cannot be read|no such file"),
        (dangling, "cannot be read|no such file"),
    ],
)
@pytest.mark.parametrize("suffix", SPACES)
def test_what_is_no_file_is_an_error_and_never_waited_for(tmp_path, make, match, suffix):
    path = tmp_path / f"x{suffix}"
    make(path)
    with pytest.raises(DataError, match=match):
        open_input(path, SPACES[suffix])
    if suffix != ".png":
        with pytest.raises(DataError, match=match):
            load(path)


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(DataError, match="no images in this folder"):
        load(tmp_path / "x.csv")


def test_a_folder_of_images_passes_by_pipes_and_loops(tmp_path):
    for i in range(3):
        Image.new("L", (8, 8), i).save(tmp_path / f"{i}.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "below").symlink_to(tmp_path)
    assert len(load(tmp_path, validation=0, calibration=0, test=0).train) == 3


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".parquet"])
@pytest.mark.parametrize("direction", ["from a plain name", "to a plain name", "over both"])
def test_a_link_and_what_it_leads_to_are_one_file(tmp_path, suffix, direction):
    """For a look, for training, which keeps the full path, and for a trained model."""
    x = np.random.default_rng(0).normal(size=(40, 2)).round(3)
    file, link = tmp_path / f"store{suffix}", tmp_path / "latest"
    if suffix == ".npy":
        np.save(file, x)
    elif suffix == ".npz":
        np.savez(file, x=x)
    else:
        frame = pd.DataFrame(x, columns=["a", "b"])
        frame.to_csv(file, index=False) if suffix == ".csv" else frame.to_parquet(file)
    space = load(file).space
    if direction != "from a plain name":
        link = tmp_path / f"named{suffix}"
        link.symlink_to(file.rename(tmp_path / "blob").name)
    if direction != "to a plain name":
        (tmp_path / "over").symlink_to(file.name if direction == "from a plain name" else link.name)
        link = tmp_path / "over"
    assert sum(look(link).splits.values()) == 40
    assert len(load(absolute(str(link)), validation=0, calibration=0, test=0).train) == 40
    assert sum(len(block.x) for block in open_input(link, space).blocks(lambda n: None)) == 40


def test_memory_is_asked_for_before_it_is_taken(tmp_path, monkeypatch):
    free = free_memory()
    assert free is None or free > 2**20
    monkeypatch.setattr("lapae.data.bounds.free_memory", lambda: 10**6)
    check_memory("x", 10**5, "")
    with pytest.raises(DataError, match=r"x: 0\.0 GB unpacked, and 0\.0 GB of memory are free; buy some"):
        check_memory("x", 10**6, "buy some")
    content = bytes((0, 0, 8, 3)) + struct.pack(">3I", 100, 100, 200) + bytes(2 * 10**6)
    (tmp_path / "x.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match="of memory are free"):
        read_idx(tmp_path / "x.gz", ndim=3)


def test_one_absurd_value_does_not_blind_its_column():
    x = np.random.default_rng(0).normal(size=(200, 3))
    x[7, 1] = 1e30
    with pytest.warns(UserWarning, match=r"1 values are more than .* count as missing, in column '1' \(1e\+30\)"):
        data = Data.of(x, validation=0, calibration=0)
    assert np.isnan(data.train.x[7, 1])
    assert data.space.missing
    np.testing.assert_allclose(data.space.scale, np.nanstd(data.train.x, 0))
    assert (np.delete(data.train.x, 7, 0) == np.delete(x, 7, 0)).all()


def test_heavy_tails_and_rare_values_are_no_absurd_ones(recwarn):
    rng = np.random.default_rng(0)
    tails = np.stack([rng.standard_cauchy(2000), np.exp(3 * rng.normal(size=2000)), rng.random(2000) < 0.01], 1)
    Data.of(tails)
    Data.of(np.array([[1.0, 2.0], [1.5, 1e9], [2.0, 3.0]]))
    assert not [warning for warning in recwarn if "count as missing" in str(warning.message)]


def test_a_column_without_a_value_is_named():
    x = np.random.default_rng(0).normal(size=(30, 3))
    x[:, 2] = np.nan
    with pytest.raises(DataError, match="no value at all in feature 2"):
        Data.of(x)


def test_windows_of_one_step_are_a_table():
    with pytest.raises(DataError, match=r"windows of one step.*\(50, 1, 4\).*table, \(50, 4\)"):
        Data.of(np.random.default_rng(0).standard_normal((50, 1, 4)))
