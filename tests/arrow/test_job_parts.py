"""Tables in many files: the same bytes whatever the number of processes, also after a job was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from losing import killed_at_first
from people import people
from waiting import until

import lapae
from lapae.arrow import job, parts
from lapae.arrow.parts import Part
from lapae.cli import main
from lapae.errors import RunError

VERBS = {"score": ["--explain"], "impute": ["--level", "0.9"], "embed": [], "reconstruct": []}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    """Tables of 30 rows: three .parquet files, one of them in a folder below, and one .csv file."""
    root = tmp_path_factory.mktemp("tables")
    (root / "below").mkdir()
    for i, name in enumerate(("a", "b", "below/a")):
        people(30, 10 + i).to_parquet(root / f"{name}.parquet", index=False)
    people(30, 13).to_csv(root / "c.csv", index=False)
    (root / "_SUCCESS").touch()
    return root


@pytest.fixture(scope="module")
def scored(runs, tables, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("scored") / "out"
    assert main(["score", str(runs / "online"), str(tables), "--out", str(out)]) == 0
    return out


def test_a_folder_gives_a_folder_of_parts(runs, tables, scored):
    assert set(content(scored)) == {"a.parquet", "b.parquet", "below/a.parquet", "c.parquet"}
    expected = lapae.mapper(runs / "online", keep={"id": pa.string()}).table(pq.read_table(tables / "b.parquet"))
    assert pq.read_table(scored / "b.parquet").to_pylist() == expected.to_pylist()


def test_a_csv_file_is_scored_as_a_parquet_file_is(runs, scored):
    expected = lapae.mapper(runs / "online", keep={"id": pa.string()}).frame(people(30, 13))
    pd.testing.assert_frame_equal(pq.read_table(scored / "c.parquet").to_pandas(), expected, check_dtype=False)


def test_two_processes_write_what_one_writes(runs, tables, scored, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["score", str(runs / "online"), str(tables), "--out", str(out), "--jobs", "2", "--json"]) == 0
    assert content(out) == content(scored)
    said = json.loads(capsys.readouterr().out)
    flagged = sum(sum(pq.read_table(path)["outlier"].to_pylist()) for path in out.rglob("*.parquet"))
    assert said == {"out": str(out), "parts": 4, "n": 120, "done_before": 0, "outliers": flagged}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_a_glob(runs, tables, tmp_path, verb):
    out = tmp_path / "out"
    assert main([verb, str(runs / "online"), str(tables / "*.parquet"), "--out", str(out), *VERBS[verb]]) == 0
    assert set(content(out)) == {"a.parquet", "b.parquet"}
    options: dict[str, Any] = {"score": {"explain": True}}.get(verb, {})
    expected = lapae.mapper(runs / "online", verb, keep={"id": pa.string()}, **options)
    found = pq.read_table(out / "a.parquet")
    assert found.to_pylist() == expected.table(pq.read_table(tables / "a.parquet")).to_pylist()


def test_row_groups_of_a_large_file_are_parts(runs, tables, tmp_path, monkeypatch):
    pq.write_table(pq.read_table(tables / "a.parquet"), tmp_path / "large.parquet", row_group_size=7)
    monkeypatch.setattr(parts, "PART_ROWS", 10)
    out = tmp_path / "out"
    assert main(["embed", str(runs / "online"), str(tmp_path / "large.parquet"), "--out", str(out)]) == 0
    files = sorted(out.glob("*.parquet"))
    assert [path.name for path in files] == [f"large-0000{i}-of-00003.parquet" for i in (1, 2, 3)]
    assert [pq.read_metadata(path).num_rows for path in files] == [14, 14, 2]
    together = pa.concat_tables(map(pq.read_table, files))
    mapper = lapae.mapper(runs / "online", "embed", keep={"id": pa.string()})
    assert together.to_pylist() == mapper.table(pq.read_table(tables / "a.parquet")).to_pylist()


def test_resume_does_the_missing_parts_alone(runs, tables, scored, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["score", str(runs / "online"), str(tables), "--out", str(out)]
    assert main(arguments) == 0
    (out / "b.parquet").unlink()
    old = (out / "a.parquet").stat().st_mtime_ns
    assert main(arguments) == 2
    assert "go on with --resume" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    assert "120 rows in 4 parts, 3 of which already existed" in capsys.readouterr().out
    assert content(out) == content(scored)
    assert (out / "a.parquet").stat().st_mtime_ns == old
    assert main([*arguments, "--resume", "--rate", "0.3"]) == 2
    assert "output of another job" in capsys.readouterr().err


def test_a_killed_job_is_resumed_to_the_same_bytes(runs, tmp_path):
    source, whole, out = tmp_path / "in", tmp_path / "whole", tmp_path / "out"
    source.mkdir()
    for i in range(12):
        people(40, i).to_parquet(source / f"{i:02d}.parquet", index=False)
    command = ["score", str(runs / "online"), str(source), "--explain"]
    process = subprocess.Popen([sys.executable, "-m", "lapae", *command, "--out", str(out), "--jobs", "2"])
    until(lambda: list(out.glob("*.parquet")), "a first part")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    until(lambda: not any(is_running(int(pid)) for pid in children), "the end of its processes")
    assert 0 < len(list(out.glob("*.parquet"))) < 12
    assert main([*command, "--out", str(out), "--resume"]) == 0
    assert main([*command, "--out", str(whole)]) == 0
    assert content(out) == content(whole)
    assert not list(out.glob(".*"))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_parts_of_a_killed_process_are_done_again(tmp_path):
    every = [Part(name, None, str(tmp_path / name)) for name in "abc"]
    done = list(job.on_processes(2)(partial(killed_at_first, times=1), every))
    assert sorted(written.part.source for written in done) == ["a", "b", "c"]


def test_a_part_that_always_kills_its_process_ends_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "LOST", 0)
    every = [Part(name, None, str(tmp_path / name)) for name in "abc"]
    with pytest.raises(RunError, match="killed 1 times"):
        list(job.on_processes(2)(partial(killed_at_first, times=9), every))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tables}/*.txt", "--out", "{out}"], "no .csv"),
        (["{tables}", "--out", "{out}.csv"], "a folder of parts"),
        (["{tables}", "--out", "{out}", "--jobs", "0"], "jobs = 0"),
        (["{tables}", "--out", "{out}", "--address", "tcp://x"], "give --engine"),
        (["{tables}", "--out", "{out}", "--device", "cuda"], "leave out --device"),
        (["{tables}/a.parquet", "--out", "{out}.csv", "--jobs", "2"], "--jobs: only for many tables"),
    ],
)
def test_what_does_not_go_together_is_refused(runs, tables, tmp_path, capsys, arguments, message):
    given = [word.format(tables=tables, out=tmp_path / "out") for word in arguments]
    assert main(["score", str(runs / "online"), *given]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_rows_that_do_not_fit_are_named_with_their_file_and_leave_no_part(runs, tables, tmp_path, capsys):
    people(30, 1).drop(columns="age").to_parquet(tmp_path / "b.parquet", index=False)
    people(30, 1).to_parquet(tmp_path / "a.parquet", index=False)
    for jobs in ("1", "2"):
        out = tmp_path / f"out{jobs}"
        glob = str(tmp_path / "?.parquet")
        assert main(["score", str(runs / "online"), glob, "--out", str(out), "--jobs", jobs]) == 2
        assert f"{tmp_path / 'b.parquet'}: has no column 'age'" in capsys.readouterr().err
        assert not out.exists()


def test_cells_that_do_not_fit_are_named_with_their_file_and_leave_no_part(runs, tmp_path, capsys):
    people(30, 1).to_parquet(tmp_path / "a.parquet", index=False)
    people(30, 1).assign(age="old").to_parquet(tmp_path / "b.parquet", index=False)
    out = tmp_path / "out"
    assert main(["score", str(runs / "online"), str(tmp_path / "?.parquet"), "--out", str(out)]) == 2
    assert f"{tmp_path / 'b.parquet'}: row 0 of the batch (from 0), column 'age': 'old'" in capsys.readouterr().err
    assert [path.name for path in out.iterdir() if path.name != job.JOB] == ["a.parquet"]


def test_copied_columns_are_those_of_all_files(runs, tmp_path):
    rows = people(30, 1).drop(columns="id")
    tables = {
        "a": rows.assign(id=range(30), count=None, size=1, note="seen"),
        "b": rows.assign(id=[f"u{i}" for i in range(30)], count=7, size=0.5),
        "c": rows.assign(count=8, size=2, late=True),
    }
    for name, table in tables.items():
        table.to_parquet(tmp_path / f"{name}.parquet", index=False)
    out = tmp_path / "out"
    for jobs in ("1", "2"):
        out = tmp_path / f"out{jobs}"
        glob = str(tmp_path / "?.parquet")
        assert main(["score", str(runs / "online"), glob, "--out", str(out), "--jobs", jobs]) == 0
    assert content(tmp_path / "out1") == content(tmp_path / "out2")
    found = {name: pq.read_table(out / f"{name}.parquet") for name in tables}
    assert {str(table.schema) for table in found.values()} == {str(found["a"].schema)}
    first = {name: table.slice(0, 1).to_pylist()[0] for name, table in found.items()}
    names = ("id", "count", "size", "note", "late")
    assert [first["a"][name] for name in names] == ["0", None, 1, "seen", None]
    assert [first["b"][name] for name in names] == ["u0", 7, 0.5, None, None]
    assert [first["c"][name] for name in names] == [None, 8, 2, None, True]
    alone = lapae.mapper(runs / "online").table(pq.read_table(tmp_path / "c.parquet"))
    assert found["c"].select(alone.column_names).to_pylist() == alone.to_pylist()


def test_copied_columns_that_no_type_holds_stop_a_job_before_it_begins(runs, tmp_path, capsys):
    people(30, 1).assign(note="a").to_parquet(tmp_path / "a.parquet", index=False)
    people(30, 1).assign(note=[[1]] * 30).to_parquet(tmp_path / "b.parquet", index=False)
    out = tmp_path / "out"
    assert main(["score", str(runs / "online"), str(tmp_path / "?.parquet"), "--out", str(out)]) == 2
    assert f"{tmp_path / 'b.parquet'}: column 'note' is of type list" in capsys.readouterr().err
    assert not out.exists()


def test_two_files_of_one_name_are_refused(runs, tables, tmp_path, capsys):
    people(30, 1).to_parquet(tmp_path / "a.parquet", index=False)
    people(30, 1).to_csv(tmp_path / "a.csv", index=False)
    assert main(["score", str(runs / "online"), str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "would both be written as" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["dask", "ray", "spark"])
def test_an_engine_writes_what_one_process_writes(runs, tables, scored, tmp_path, engine):
    pytest.importorskip({"dask": "distributed", "ray": "ray", "spark": "pyspark"}[engine])
    out = tmp_path / "out"
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(sys.path))
    how = ["--engine", engine, "--jobs", "2"]
    assert main(["score", str(runs / "online"), str(tables), "--out", str(out), *how]) == 0
    assert content(out) == content(scored)


def test_an_engine_that_is_not_installed_is_named(runs, tables, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    out = tmp_path / "out"
    assert main(["score", str(runs / "online"), str(tables), "--out", str(out), "--engine", "dask"]) == 2
    assert "pip install 'lapae[dask]'" in capsys.readouterr().err
