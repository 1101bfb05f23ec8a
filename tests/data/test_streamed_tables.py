"""Tables in several Parquet files are one table; large ones are streamed, by row groups, as if they were in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import torch

from lapae.config import Config, DataConfig, ModelConfig, TrainConfig
from lapae.data import Batches, Data, load
from lapae.data import batches as batching
from lapae.data import stream as streaming
from lapae.data.source import Streamed
from lapae.errors import DataError, RunError
from lapae.fit import fit
from lapae.runs import Run
from lapae.train.resume import data_digest


def write(folder: Path, table: pa.Table, n_files: int = 3, group: int = 250) -> Path:
    """A table in several files, with row groups of `group` rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, rows in enumerate(np.array_split(np.arange(table.num_rows), n_files)):
        part = table.take(pa.array(rows))
        parquet.write_table(part, folder / f"part{i}.parquet", row_group_size=group)
    return folder


def numbers(n: int = 3000, seed: int = 0, f: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2)) @ rng.standard_normal((2, f)) + 0.1 * rng.standard_normal((n, f))


def table_of(x: np.ndarray) -> pa.Table:
    return pa.table({f"c{i}": column for i, column in enumerate(x.T)})


@pytest.fixture
def small(monkeypatch):
    """Everything is large, and read in many small steps."""
    monkeypatch.setattr(streaming, "LARGE", 100)
    monkeypatch.setattr(streaming, "STRIPE", 64)
    monkeypatch.setattr(streaming, "POOL_VALUES", 2000)
    monkeypatch.setattr(batching, "PORTION", 900)


def rows_of(data: Data) -> np.ndarray:
    return np.concatenate([np.asarray(part.x[:]) for part in (data.train, data.valid, data.calib, data.test)])


def ordered(x: np.ndarray) -> np.ndarray:
    return x[np.lexsort(x.T)]


def test_a_folder_in_memory_is_the_table(tmp_path):
    x = numbers(300)
    folder = write(tmp_path / "many", table_of(x))
    whole = write(tmp_path / "one", table_of(x), 1) / "part0.parquet"
    for source in (folder, str(folder / "*.parquet")):
        for part in ("train", "valid", "calib"):
            np.testing.assert_array_equal(getattr(load(source), part).x, getattr(load(whole), part).x)


def test_all_rows_once(small, tmp_path):
    x = numbers()
    data = load(write(tmp_path / "t", table_of(x)), test=0.2)
    assert isinstance(data.train.x, Streamed)
    assert data.space.n_data == len(data.train)
    np.testing.assert_array_equal(ordered(rows_of(data)), ordered(x))
    for part, share in ((data.valid, 0.1), (data.calib, 0.1), (data.test, 0.2)):
        assert abs(len(part) - share * len(x)) < 4 * np.sqrt(share * len(x))
        assert part.rows is not None
        np.testing.assert_array_equal(part.x, x[part.rows])
    np.testing.assert_array_equal(data.train.x.sample, x[data.train.x.sample_rows])
    pools = np.concatenate(list(data.train.x.pools([3, 1])))
    np.testing.assert_array_equal(ordered(pools), ordered(np.asarray(data.train.x[:])))


def test_rows_by_index(small, tmp_path):
    stream = load(write(tmp_path / "t", table_of(numbers()))).train.x
    every = np.asarray(stream[:])
    index = np.random.default_rng(0).integers(0, len(stream), 200)
    np.testing.assert_array_equal(stream[index], every[index])
    np.testing.assert_array_equal(stream[700:900:3], every[700:900:3])
    np.testing.assert_array_equal(stream[5], every[5])
    with pytest.raises(IndexError):
        stream[np.array([len(stream)])]


def test_the_split_of_a_row_does_not_depend_on_files_or_other_rows(small, tmp_path):
    """Also a resumed run, or one with a file more, has the same held-out rows."""
    x, more = numbers(), numbers(1000, seed=5)
    first = load(write(tmp_path / "a", table_of(x)), validation=300, calibration=300)
    n = len(x) + len(more)
    both = table_of(np.concatenate([more, x]))
    second = load(write(tmp_path / "b", both, 2, 700), validation=300 * n // len(x), calibration=300 * n // len(x))
    held = {tuple(row) for row in first.valid.x}
    assert held <= {tuple(row) for row in second.valid.x}


def test_copies_lie_in_one_split_and_one_calibrates(small, tmp_path):
    x = np.repeat(numbers(1000), 3, axis=0)[np.random.default_rng(0).permutation(3000)]
    data = load(write(tmp_path / "t", table_of(x)))
    parts = [{tuple(row) for row in np.asarray(part.x[:])} for part in (data.train, data.valid, data.calib)]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    assert len(parts[2]) == len(data.calib.x)
    assert len(data.train) == 3 * len(parts[0])


def test_rows_of_few_values_are_divided_by_their_place(small, tmp_path):
    x = np.random.default_rng(0).integers(1, 7, (3000, 1)).astype(float)  # one die
    data = load(write(tmp_path / "t", table_of(x)))
    for part in (data.train, data.valid, data.calib):
        share = np.bincount(np.asarray(part.x[:, 0] if part is not data.train else part.x[:][:, 0]).astype(int))[1:]
        assert (np.abs(share / share.sum() - 1 / 6) < 0.08).all()


def test_a_batch_is_of_several_row_groups(small, tmp_path):
    """A table in the order of time would teach one time after the other."""
    x = np.column_stack([np.arange(3000) + 0.5, numbers()])
    data = load(write(tmp_path / "t", table_of(x)))
    batches = Batches(data.train.x, None, 64, shuffle=True)
    spread = [float(batch[:, 0].max() - batch[:, 0].min()) for batch in batches.every()]
    assert np.median(spread) > 1000


def test_epochs_are_portions_of_passes(small, tmp_path):
    data = load(write(tmp_path / "t", table_of(numbers())))
    batches = Batches(data.train.x, data.space, 64, shuffle=True, seed=2)
    n = len(data.train)
    assert data.portion == -(-n // 3)
    first = [torch.cat(list(batches.epoch(epoch))) for epoch in (1, 2, 3, 4)]
    assert sum(map(len, first[:3])) >= n
    seen = np.unique(torch.cat(first).numpy(), axis=0)
    assert len(seen) == n
    assert [len(batch) for batch in batches.epoch(3)] == batches.sizes(3)
    resumed = Batches(data.train.x, data.space, 64, shuffle=True, seed=2)
    assert torch.equal(torch.cat(list(resumed.epoch(3))), first[2])
    assert torch.equal(torch.cat(list(resumed.epoch(4))), first[3])
    assert torch.equal(torch.cat(list(resumed.epoch(1))), first[0])
    parts = [
        list(Batches(data.train.x, data.space, 64, shuffle=True, seed=2, rank=r, world_size=2).epoch(2)) for r in (0, 1)
    ]
    both = torch.cat([torch.cat(pair) for pair in zip(*parts, strict=True)])
    assert torch.equal(both, first[1])


def test_kinds_missing_values_and_what_is_left_out(small, tmp_path):
    rng = np.random.default_rng(0)
    x = numbers()
    x[5] = np.nan
    x[7, 0] = 1e30
    words = rng.choice(["red", "green"], 3000)
    lacking = np.where(rng.random(3000) < 0.2, np.nan, x[:, 2])
    given = {"a": x[:, 0], "b": x[:, 1], "c": lacking, "colour": words, "id": [f"row {i}" for i in range(3000)]}
    given["colour"][5] = "red"
    with pytest.warns(UserWarning, match=r"'id' \(identifier|times as far away"):
        data = load(write(tmp_path / "t", pa.table(given)))
    assert [(c.name, c.kind) for c in data.space.columns or ()] == [
        *((name, "number") for name in "abc"),
        ("colour", "category"),
    ]
    assert data.space.missing
    assert np.nanmax(rows_of(data)) < 1e6
    with pytest.warns(UserWarning, match="nothing observed in 1 of 3000 rows"):
        load(tmp_path / "t", columns=["a", "b", "c"])


def test_refused(small, tmp_path):
    folder = write(tmp_path / "t", table_of(numbers()))
    with pytest.raises(DataError, match="needs validation and calibration rows"):
        load(folder, validation=0)
    x = numbers()
    x[17, 2] = np.nan
    write(tmp_path / "m", table_of(x))
    with pytest.raises(DataError, match="a value is missing"):
        load(tmp_path / "m", allow_nan=False)
    parquet.write_table(pa.table({"c0": [1.0]}), folder / "z.parquet")
    with pytest.raises(DataError, match=r"z.parquet: lacks c1, c2, c3.*the same columns"):
        load(folder)
    (folder / "z.parquet").write_text("nothing")
    with pytest.raises(DataError, match=r"z.parquet: not a sound .parquet file"):
        load(folder)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="must be Parquet"):
        load(tmp_path / "texts")


def test_trains_resumes_and_holds(small, tmp_path):
    """p-values of new rows are uniform; a resumed run ends at the same weights; other values are refused."""
    from observers import StopAfter
    from trained import assert_equal

    folder = write(tmp_path / "t", table_of(numbers(6000)))
    config = Config(
        DataConfig(source=str(folder)), ModelConfig(hidden=(8,)), train=TrainConfig(device="cpu", batch_size=64)
    )
    whole = fit(config, run=Run.create(tmp_path / "whole"))
    assert len(whole.history) * 900 >= 4800
    run = Run.create(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        fit(config, run=run, observers=[StopAfter(2)])
    resumed = fit(config, run=run, resume=True)
    assert_equal(resumed.method.state_dict(), whole.method.state_dict())
    p = whole.anomaly_score(numbers(6000)[:1000] + 0.0)[1]
    assert 0.02 < (p <= 0.05).mean() < 0.09
    run = Run.create(tmp_path / "again")
    with pytest.raises(KeyboardInterrupt):
        fit(config, run=run, observers=[StopAfter(2)])
    x = numbers(6000)
    x[:2000] = x[:2000][::-1]
    write(tmp_path / "t", table_of(x))
    with pytest.raises(RunError, match="have changed since"):
        fit(config, run=run, resume=True)


def test_the_digest_is_that_of_all_values(small, tmp_path):
    x = numbers()
    before = data_digest(load(write(tmp_path / "t", table_of(x))))
    assert data_digest(load(tmp_path / "t")) == before
    x[1234, 1] += 1e-9
    assert data_digest(load(write(tmp_path / "t", table_of(x)))) != before


@pytest.mark.parametrize("large", [True, False])
def test_files_of_other_types_and_orders_and_without_rows(large, tmp_path, monkeypatch):
    """Also columns of lists, which are left out, and names with a dot."""
    monkeypatch.setattr(streaming, "LARGE", 100 if large else 10**9)
    x = numbers(200)
    whole = pa.table({"a.b": np.arange(200) % 9, "y": x[:, 1], "lists": pa.array([[1, 2]] * 200)})
    other = pa.table({"lists": pa.array([[3]] * 200), "y": x[:, 2], "a.b": x[:, 3]})
    for i, table in enumerate([whole, other, other.slice(0, 0)]):
        parquet.write_table(table, tmp_path / f"{i}.parquet")
    with pytest.warns(UserWarning, match="'lists' .lists or records"):
        data = load(tmp_path)
    assert data.space.names == ("a.b", "y")
    expected = np.concatenate([np.column_stack([np.arange(200) % 9, x[:, 1]]), x[:, [3, 2]]])
    np.testing.assert_array_equal(ordered(rows_of(data)), ordered(expected))
