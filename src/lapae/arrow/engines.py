"""Engines of other packages that process the parts of a job, each in a few lines: Dask, Ray and Spark.

The run folder, the input and the output must be on a file system that all workers see. Each package is imported only
when it is requested. A worker that is lost is replaced by the engine, and its part is repeated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from lapae.arrow.job import Engine, Work
from lapae.arrow.parts import Part, Written
from lapae.errors import ConfigError

RETRIES = 3


def engine_of(name: str, address: str | None, jobs: int) -> Engine:
    """Return the engine "dask", "ray" or "spark" at the address of its scheduler; by default on a cluster of `jobs`
    workers on this machine."""
    return {"dask": on_dask, "ray": on_ray, "spark": on_spark}[name](address, jobs)


def on_dask(address: str | None, jobs: int) -> Engine:
    """Return Dask as an engine: `address` is that of a scheduler, such as tcp://host:8786."""
    distributed = _imported("distributed", "lapae[dask]")

    def engine(work: Work, parts: Sequence[Part]) -> Iterator[Written]:
        local = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        with distributed.Client(address) if address else distributed.Client(**local) as client:
            futures = client.map(work, parts, pure=False, retries=RETRIES)
            for _, done in distributed.as_completed(futures, with_results=True):
                yield done

    return engine


def on_ray(address: str | None, jobs: int) -> Engine:
    """Return Ray as an engine: `address` is that of a cluster, such as ray://host:10001 or auto."""
    ray = _imported("ray", "lapae[ray]")

    def engine(work: Work, parts: Sequence[Part]) -> Iterator[Written]:
        ray.init(address=address, **({} if address else {"num_cpus": jobs}))
        try:
            task = ray.remote(num_cpus=1, max_retries=RETRIES)(lambda part: work(part))
            left = [task.remote(part) for part in parts]
            while left:
                done, left = ray.wait(left)
                yield from ray.get(done)
        finally:
            ray.shutdown()

    return engine


def on_spark(address: str | None, jobs: int) -> Engine:
    """Return Spark as an engine: `address` is that of a master, such as spark://host:7077 or yarn."""
    sql = _imported("pyspark.sql", "lapae[spark]")
    if address is None:  # workers on this machine use this Python, not the first one on the path
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

    def engine(work: Work, parts: Sequence[Part]) -> Iterator[Written]:
        master = address or f"local[{jobs}, {RETRIES + 1}]"  # local[2] would give up after one lost worker
        session = sql.SparkSession.builder.master(master).appName("lapae").getOrCreate()
        rows = session.sparkContext.parallelize(list(parts), len(parts)).map(work)
        yield from rows.collect()

    return engine


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise ConfigError(f"--engine needs a package that is not installed: pip install '{package}'") from None
