"""Dask, Ray and Spark themselves: the bytes of one process, also when workers are killed. Each is tested where it is
installed: `pip install 'lapae[dask,ray,spark]' mlflow`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from losing import killed_half_way
from people import people

import lapae
from lapae.arrow.engines import engine_of
from lapae.arrow.parts import parts_of
from lapae.cli import main
from lapae.runs import MODEL

pytestmark = pytest.mark.slow
ENGINES = {"dask": "distributed", "ray": "ray", "spark": "pyspark"}


def content(folder: Path, pattern: str = "*.parquet") -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob(pattern)}


@pytest.fixture(autouse=True)
def found_by_workers(monkeypatch):
    """Have workers be of this Python, and find the modules of these tests."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("tables")
    for i in range(6):
        people(50, 20 + i).to_parquet(root / f"{i}.parquet", index=False)
    return root


@pytest.fixture(scope="module")
def scored(runs, tables, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("scored") / "out"
    assert main(["score", str(runs / "online"), str(tables), "--out", str(out), "--explain"]) == 0
    return content(out)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_writes_the_bytes_of_one_process(runs, tables, scored, tmp_path, name):
    pytest.importorskip(ENGINES[name])
    out = tmp_path / "out"
    command = ["score", str(runs / "online"), str(tables), "--out", str(out), "--explain"]
    assert main([*command, "--jobs", "2", "--engine", name]) == 0
    assert content(out) == scored


@pytest.mark.parametrize("name", ENGINES)
def test_parts_of_killed_workers_are_done_again(runs, tables, scored, tmp_path, name):
    pytest.importorskip(ENGINES[name])
    keep = {"id": pq.read_schema(tables / "0.parquet").field("id").type}
    mapper = lapae.mapper(runs / "online", keep=keep, explain=True)
    parts = parts_of(sorted(tables.glob("*.parquet")), tmp_path / "out")
    (tmp_path / "out").mkdir()
    done = list(engine_of(name, None, 2)(partial(killed_half_way, mapper=mapper), parts))
    assert {written.part for written in done} == set(parts)
    assert len(list((tmp_path / "out").glob("tried-*"))) == 3
    assert content(tmp_path / "out", "[0-9].parquet") == scored


@pytest.mark.parametrize("name", ENGINES)
def test_the_lines_of_the_guide(runs, tables, tmp_path, name):
    mapper = lapae.mapper(runs / "online", keep={"id": pa.string()})
    one = pd.concat([mapper.table(pq.read_table(path)).to_pandas() for path in sorted(tables.glob("*.parquet"))])
    if name == "dask":
        dd = pytest.importorskip("dask.dataframe")
        found = dd.read_parquet(tables).map_partitions(mapper.frame, meta=mapper.empty_frame).compute()
    elif name == "ray":
        ray = pytest.importorskip("ray")
        ray.init(num_cpus=2)
        try:
            rows = ray.data.read_parquet(str(tables))
            found = rows.map_batches(mapper.table, batch_format="pyarrow", batch_size=64).to_pandas()
        finally:
            ray.shutdown()
    else:
        session = spark_session()
        from pyspark.sql.pandas.types import from_arrow_schema  # pyright: ignore[reportMissingImports]

        found = session.read.parquet(str(tables)).mapInArrow(mapper, from_arrow_schema(mapper.schema)).toPandas()
    # ids of several files are the same
    for name in ("anomaly_score", "p_value"):
        assert sorted(found[name].astype(float)) == sorted(one[name])
    assert sorted(found["outlier"].astype(bool)) == sorted(one["outlier"])


@pytest.mark.parametrize("name", ENGINES)
def test_a_model_for_each_key(tmp_path, name):
    rows = people(190, 3).drop(columns=["id", "city", "member"])
    rows["shop"] = [f"s{i % 3}" for i in range(len(rows) - 4)] + ["few"] * 4
    rows["kind"] = [["new", "old", None][i % 3] for i in rows["age"]]
    rows.sample(frac=1, random_state=0).to_parquet(tmp_path / "rows.parquet", index=False)
    how = {"epochs": 2, "latent_dim": 2}
    lapae.fit_mapper(tmp_path / "one", "shop", **how)(rows)
    fitter = lapae.fit_mapper(tmp_path / "many", "shop", **how)
    if name == "dask":
        dd = pytest.importorskip("dask.dataframe")
        shuffled = dd.read_parquet(tmp_path / "rows.parquet").shuffle("shop")
        found = shuffled.map_partitions(fitter.frame, meta=fitter.empty_frame).compute()
    elif name == "ray":
        ray = pytest.importorskip("ray")
        ray.init(num_cpus=2)
        try:
            data = ray.data.read_parquet(str(tmp_path / "rows.parquet"))
            found = data.groupby("shop").map_groups(fitter.frame, batch_format="pandas").to_pandas()
        finally:
            ray.shutdown()
    else:
        session = spark_session()
        from pyspark.sql.pandas.types import from_arrow_schema  # pyright: ignore[reportMissingImports]

        spark = session.read.parquet(str(tmp_path / "rows.parquet"))
        found = spark.groupBy("shop").applyInPandas(fitter, from_arrow_schema(fitter.schema)).toPandas()
    assert set(found["shop"]) == {"s0", "s1", "s2", "few"}
    assert found.set_index("shop")["error"].notna().to_dict() == {"s0": False, "s1": False, "s2": False, "few": True}
    assert content(tmp_path / "many", MODEL) == content(tmp_path / "one", MODEL)


def test_mlflow_logs_loads_and_makes_a_function_of_spark(runs, tables, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    import lapae.mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)
    rows = pd.read_parquet(tables / "0.parquet")
    expected = lapae.mapper(runs / "online").frame(rows.drop(columns="id"))
    info = lapae.mlflow.log_model(runs / "online")
    pd.testing.assert_frame_equal(mlflow.pyfunc.load_model(info.model_uri).predict(rows.drop(columns="id")), expected)
    session = spark_session()
    from pyspark.sql import functions  # pyright: ignore[reportMissingImports]

    types = "anomaly_score double, p_value double, outlier boolean, unseen string"
    score = mlflow.pyfunc.spark_udf(session, info.model_uri, result_type=types, env_manager="local")
    frame = session.read.parquet(str(tables / "0.parquet"))
    columns = [column for column in frame.columns if column != "id"]
    found = frame.select(score(functions.struct(*columns)).alias("found")).select("found.*").toPandas()
    assert sorted(found["anomaly_score"]) == sorted(expected["anomaly_score"])


def spark_session():
    """Return a session of two local workers."""
    sql = pytest.importorskip("pyspark.sql")
    return sql.SparkSession.builder.master("local[2, 4]").config("spark.ui.enabled", "false").getOrCreate()
