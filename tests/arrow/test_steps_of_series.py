"""Series in the mapper: a series is judged as a whole, the same however series are divided among calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lapae
from lapae.cli import main
from lapae.errors import ConfigError, DataError

LENGTHS = {"a": 60, None: 43, "short": 5, "d": 16}
KEEP = {"machine": pa.string(), "t": pa.int64()}
VERBS = [("score", {"explain": True}), ("embed", {}), ("impute", {}), ("reconstruct", {})]


def steps(n: int, seed: int) -> pd.DataFrame:
    rng, t = np.random.default_rng(seed), np.arange(n) / 7
    x = np.stack([np.sin(t), np.cos(t), np.sin(t) / 2], 1) + 0.1 * rng.normal(size=(n, 3))
    return pd.DataFrame(x, columns=["left", "right", "load"])


def machines() -> list[pd.DataFrame]:
    found = [steps(n, i).assign(machine=name, t=np.arange(n)) for i, (name, n) in enumerate(LENGTHS.items())]
    found[0].loc[3:6, "left"] = np.nan
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("series")
    steps(500, 9).to_csv(root / "train.csv", index=False)
    how = ["--window", "16", "--stride", "4", "--latent-dim", "3", "--epochs", "2", "--device", "cpu", "--no-verbose"]
    assert main(["train", str(root / "train.csv"), *how, "--out", str(root / "run")]) == 0
    return root / "run"


def arrow(frame: Any) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False)


@pytest.mark.filterwarnings("ignore:series machine = 'short'")
@pytest.mark.parametrize(("verb", "options"), VERBS, ids=lambda value: str(value))
def test_what_is_said_of_a_series_does_not_depend_on_others(run, verb, options):
    mapper = lapae.mapper(run, verb, keep=KEEP, series="machine", time="t", **options)
    every = pd.concat(machines())
    together = mapper.table(arrow(every))
    in_order = [("machine", "ascending"), ("t", "ascending")]
    mixed = mapper.table(arrow(every.sample(frac=1, random_state=1)))
    assert mixed.sort_by(in_order).equals(together.sort_by(in_order))
    coded = arrow(every.astype({"machine": "category"}))
    apart = [made for part in machines() for made in mapper(arrow(part).to_batches(7))]
    assert pa.Table.from_batches(apart, mapper.schema).equals(together)
    assert pa.Table.from_batches(list(mapper(coded.to_batches(11))), mapper.schema).equals(together)
    if verb != "embed":
        assert len(together) == len(every)


def test_steps_are_scored_as_the_command_scores_a_file(run, tmp_path):
    steps(60, 0).to_csv(tmp_path / "a.csv", index=False)
    assert main(["score", str(run), str(tmp_path / "a.csv"), "--explain", "--out", str(tmp_path / "out.csv")]) == 0
    told = pd.read_csv(tmp_path / "out.csv")
    found = lapae.mapper(run, series=(), explain=True).table(arrow(steps(60, 0))).to_pandas()
    assert [*found.columns] == [*told.columns]
    pd.testing.assert_frame_equal(found, told, check_dtype=False, rtol=1e-5, atol=1e-6)


def test_a_folder_of_series(run, tmp_path):
    for folder in ("files", "one"):
        (tmp_path / folder).mkdir()
    parts = [part for part in machines() if len(part) > 16]
    for i, part in enumerate(parts):
        part.to_parquet(tmp_path / "files" / f"{i}.parquet", index=False, row_group_size=9)
    pd.concat(parts).to_parquet(tmp_path / "one" / "all.parquet", index=False)
    command = ["score", str(run)]
    assert main([*command, str(tmp_path / "files"), "--out", str(tmp_path / "out"), "--jobs", "2"]) == 0
    by = ["--series", "machine", "--time", "t"]
    assert main([*command, str(tmp_path / "one"), "--out", str(tmp_path / "by"), *by]) == 0
    files = pa.concat_tables(pq.read_table(tmp_path / "out" / f"{i}.parquet") for i in range(len(parts)))
    by_column = pq.read_table(tmp_path / "by" / "all.parquet")
    assert files.cast(by_column.schema).equals(by_column)  # kept columns have the types of the first file


def test_refused(run, runs):
    with pytest.raises(ConfigError, match="Divide the input by series, never by rows"):
        lapae.mapper(run)
    with pytest.raises(ConfigError, match="say which rows belong together"):
        lapae.mapper(run, time="t")
    with pytest.raises(ConfigError, match="judged one by one"):
        lapae.mapper(runs / "online", series="id")
    mapper = lapae.mapper(run, series="machine", time="t")
    a = steps(20, 0).assign(machine="a", t=range(20))
    between = pd.concat([a[:10], steps(20, 1).assign(machine="b", t=range(20)), a[10:]])
    with pytest.raises(DataError, match="rows of series machine = 'a' are not together"):
        list(mapper(arrow(between).to_batches(4)))
    with pytest.raises(DataError, match="two steps at 't' = 3"):
        mapper.table(arrow(a.assign(t=a["t"].clip(lower=3))))
    with pytest.raises(DataError, match="without a 't'"):
        mapper.table(arrow(a.assign(t=a["t"].where(a["t"] != 4))))
    with pytest.raises(DataError, match="no column 'machine'"):
        mapper.table(arrow(steps(20, 0)))
