"""Some hundreds of mutated inputs a loader (`python benchmarks/fuzz.py --inputs 100000` for more), and hypothesis."""

from __future__ import annotations

import contextlib
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lapae.data import DataError, load
from lapae.errors import ConfigError
from lapae.runs.toml import dumps, read_config, write_config
from lapae_paper.datasets.idx import read_idx

from .driver import NAMES, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process as Linux does")


def test_mutated_inputs():
    """Of most formats; what is left out shares its code with these, and is in the full run."""
    counts = {"idx": 300, "npy": 400, "npz": 400, "csv": 400, "toml": 300, "celeba": 60, "png": 300, "jpg": 200}
    counts |= {"gif": 100, "tiff": 200, "folder": 20, "safetensors": 300, "model": 80, "estimator": 80}
    summaries, defects = run(counts, seed=7)
    assert not defects
    assert {found["target"] for found in summaries} == set(counts)
    for found in summaries:
        assert found["refused"] > 0
        assert found["accepted"] > 0


@pytest.mark.slow
def test_many_mutated_inputs():
    """Every target (`python benchmarks/fuzz.py --inputs 100000` is the full run)."""
    summaries, defects = run(dict.fromkeys(NAMES, 2000) | {"checkpoint": 200}, seed=8)
    assert not defects
    assert len(summaries) == len(NAMES)


def test_the_driver_finds_what_is_wrong():
    """An error that is not ours, a hang, too much memory, a crash."""
    summaries, defects = run({"error": 1, "hang": 1, "memory": 1, "crash": 1}, seed=0, seconds=0.25)
    assert [defect["target"] for defect in defects] == ["error", "hang", "memory", "crash"]
    assert [found["target"] for found in summaries] == ["error", "hang", "memory"]
    for defect, sign in zip(defects, ("ValueError", "TooSlow", "MemoryError", "ended with -6"), strict=True):
        assert sign in defect["defect"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("hypothesis")


calm = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
cells = st.one_of(
    st.floats().map(repr),
    st.integers().map(str),
    st.text(max_size=8),
    st.sampled_from(["", "nan", "NA", '"', '""', "1_0", "٣", "0x1", "1e400"]),
)


@calm
@given(rows=st.lists(st.lists(cells, max_size=4), max_size=8), mark=st.sampled_from([",", ";", "\t"]))
def test_tables_of_any_cells(place, rows, mark):
    path = place / "x.csv"
    path.write_text("\n".join(mark.join(row) for row in rows), encoding="utf-8", errors="surrogatepass", newline="")
    with contextlib.suppress(DataError):
        data = load(path, allow_nan=True)
        parts = (data.train, data.valid, data.calib, data.test)
        assert sum(map(len, parts)) >= 1  # below 20 data nothing is held out


names = st.sampled_from(["train", "model", "data", "method", "epochs", "hidden", "source", "x", "versions"])
values = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=5)), lambda inner: st.lists(inner, max_size=3)
)


@calm
@given(tables=st.dictionaries(names, st.dictionaries(names, values, max_size=3), max_size=3))
def test_any_toml(place, tables):
    """What is written reads back; a configuration that is taken says the same when it is written again."""
    text = dumps(tables)
    assert repr(tomllib.loads(text)) == repr(tables)  # as text, since NaN is not equal to itself
    (place / "x.toml").write_text(text, encoding="utf-8")
    with contextlib.suppress(ConfigError):
        config = read_config(place / "x.toml").resolved()
        (place / "y.toml").write_text(write_config(config), encoding="utf-8")
        assert read_config(place / "y.toml").resolved() == config


@calm
@given(head=st.binary(max_size=12), sizes=st.lists(st.integers(0, 2**32 - 1), max_size=3), body=st.binary(max_size=40))
def test_any_idx(place, head, sizes, body):
    content = (head or bytes((0, 0, 8, len(sizes)))) + b"".join(n.to_bytes(4, "big") for n in sizes) + body
    (place / "x.idx").write_bytes(content)
    for ndim in (1, 3):
        with contextlib.suppress(DataError):
            assert read_idx(place / "x.idx", ndim=ndim).size <= len(body) + 8


shapes = st.lists(st.integers(-2, 5) | st.integers(0, 2**70), max_size=5).map(tuple)


@calm
@given(
    shape=shapes,
    descr=st.sampled_from(["<f8", "|u1", "|O", "<U3", ">i2", "|V0", "<f2", "?", "<M8[s]", "<c8", "zz", ""]),
    body=st.binary(max_size=64),
)
def test_any_npy_header(place, shape, descr, body):
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    (place / "x.npy").write_bytes(b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + body)
    with contextlib.suppress(DataError):
        data = load(place / "x.npy", allow_nan=True)
        assert np.prod(data.shape) * len(data.train) <= len(body)
