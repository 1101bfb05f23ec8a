"""The output of a row is the same bytes whatever the rows beside it, the batches and the number of threads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from people import people

import lapae
from lapae.arrow import blocks

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


def test_a_code_of_an_odd_size_is_no_reason_to_predict_rows_one_by_one(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 10)) + 0.1 * rng.normal(size=(300, 10))
    lapae.LaplacianAutoencoder(latent_dim=5, epochs=2, random_state=0).fit(x).save(tmp_path / "run")
    mapper = lapae.mapper(tmp_path / "run", "embed")
    loaded = mapper.loaded
    assert max(loaded.stride, loaded.scored_stride, loaded.filled_stride) in blocks.STRIDES
    rows = pa.table({f"x{i}": column for i, column in enumerate(x.T)})
    together = mapper.table(rows)
    assert mapper.table(rows.slice(7, 1)).equals(together.slice(7, 1))
    assert mapper.table(rows.slice(7)).equals(together.slice(7))


@pytest.mark.parametrize("period", [1, 2, 8, 3])
def test_rows_are_repeated_until_their_place_in_a_block_does_not_matter(period):
    calls = []

    def call(rows: np.ndarray) -> tuple[np.ndarray, ...]:
        calls.append(len(rows))
        return (rows + np.arange(len(rows))[:, None] % period,)

    stride = blocks._alike_from(call(np.zeros((blocks.LACKING, 1)))[0])
    assert stride == (blocks.ALONE if period == 3 else period)
    calls.clear()
    x = np.random.default_rng(0).normal(size=(50, 2))
    groups = [blocks.Group(rows, 16, stride) for rows in (np.arange(40), np.arange(40, 45))]
    (found,) = blocks.in_blocks(call, x, groups)
    np.testing.assert_array_equal(found[:45], x[:45])
    assert np.isnan(found[45:]).all()
    a_block = 1 if period == 3 else 16 // period
    assert calls == [1 if period == 3 else 16] * (-(-40 // a_block) + -(-5 // a_block))
