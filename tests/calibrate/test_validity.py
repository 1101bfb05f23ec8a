"""p-values of new rows are valid on ordinary tables off the beaten path, by simulation over many fits."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

path = Path(__file__).parents[2] / "benchmarks" / "validity.py"
found = importlib.util.spec_from_file_location("validity", path)
assert found is not None
assert found.loader is not None
validity = importlib.util.module_from_spec(found)
found.loader.exec_module(validity)

SIZES = (20, 60, 200, 1000, 3000)


def check(name: str, n: int, fits: int, n_new: int, **options) -> None:
    if name == "copies" and n < 50:
        pytest.skip("ten rows that differ are the least")
    cell = validity.cell(name, n, fits, n_new, **options)
    for alpha in validity.ALPHAS:
        assert cell[f"{alpha}"] <= cell[f"most {alpha}"], cell


@pytest.mark.parametrize(("name", "n"), [("one_column", 100), ("dice", 60), ("redundant", 100)])
def test_three_cells(name, n):
    check(name, n, fits=12, n_new=200, epochs=3)


@pytest.mark.slow
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", validity.TABLES)
def test_all_cells(name, n):
    check(name, n, fits=20, n_new=100 if name == "missing" else 300)


def test_what_chance_allows():
    """The bound holds for ideal p-values, and is not far above what they do."""
    rng, n, n_new, fits = np.random.default_rng(0), 40, 200, 12
    over = 0
    for _ in range(300):
        held, new = rng.random((fits, 1, n)), rng.random((fits, n_new, 1))
        p = (1 + (held >= new).sum(2)) / (n + 1)
        over += np.mean(p <= 0.2) > validity.most(0.2, [n] * fits, n_new, chance=0.05)
    assert 0.02 < over / 300 < 0.09
