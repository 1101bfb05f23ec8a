"""The output of a row is the same bytes whatever the rows beside it, the batches and the number of threads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from people import people

import lapae

CASES = [
    ("score", {}),
    ("score", {"explain": True}),
    ("impute", {}),
    ("embed", {}),
    ("reconstruct", {}),
]


def table(n: int, seed: int) -> pa.Table:
    return pa.Table.from_pandas(people(n, seed), preserve_index=False)


def batches(rows: pa.Table, rng: np.random.Generator) -> list[pa.RecordBatch]:
    """The rows in batches of random sizes, some of them empty."""
    ends = np.sort(rng.integers(0, len(rows) + 1, 5))
    bounds = [0, *ends.tolist(), len(rows)]
    return [rows.slice(a, b - a).combine_chunks().to_batches() for a, b in pairwise(bounds)]


@pytest.mark.parametrize("method", ["online", "vae"])  # weights are drawn once, and noise for each row
@pytest.mark.parametrize(("verb", "options"), CASES, ids=str)
def test_the_output_of_a_row_does_not_depend_on_the_rows_beside_it(runs, method, verb, options):
    n = 60 if method == "online" else 12
    rows = table(n, 1)
    mapper = lapae.mapper(runs / method, verb, keep={"id": pa.string()}, **options)
    together = mapper.table(rows)
    assert together["id"].to_pylist() == rows["id"].to_pylist()
    rng = np.random.default_rng(2)
    order = rng.permutation(n)
    parts = batches(rows.take(order), rng)
    apart = pa.Table.from_batches([made for part in parts for made in mapper(part)], mapper.schema)
    assert apart.equals(together.take(order))


def test_a_row_among_many_is_as_it_is_alone(runs):
    rows = pa.concat_tables([table(700, 3), table(5, 4)])  # more than one block
    mapper = lapae.mapper(runs / "online")
    assert mapper.table(rows).slice(700).equals(mapper.table(rows.slice(700)))


def test_threads_do_not_change_the_output(runs):
    rows = table(40, 1)
    mapper = lapae.mapper(runs / "online", "embed")
    one = mapper.table(rows)
    torch.set_num_threads(2)
    try:
        assert mapper.table(rows).equals(one)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
