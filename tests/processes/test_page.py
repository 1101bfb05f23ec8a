"""benchmarks/ranks.md says what benchmarks/ranks.py computes and what was recorded."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from narrow import sure

ROOT = Path(__file__).parents[2]


def test_tables_are_those_of_the_benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_ranks", ROOT / "benchmarks" / "ranks.py")
    benchmark = importlib.util.module_from_spec(sure(spec))
    sure(sure(spec).loader).exec_module(benchmark)
    page = (ROOT / "benchmarks" / "ranks.md").read_text("utf-8")
    assert benchmark.plan() in page
    assert benchmark.measured(json.loads(benchmark.RESULTS.read_text("utf-8"))) in page


def test_the_fit_finds_the_ring_it_was_made_from():
    spec = importlib.util.spec_from_file_location("benchmark_ranks", ROOT / "benchmarks" / "ranks.py")
    benchmark = importlib.util.module_from_spec(sure(spec))
    sure(sure(spec).loader).exec_module(benchmark)
    rows = [{"floats": n, "wall_ms": 1e3 * (2 * 5e-5 + 4 * n / 2e9)} for n in benchmark.SIZES]
    found = benchmark.fit(rows, "wall_ms")
    assert abs(found["alpha"] - 5e-5) < 1e-9
    assert abs(found["bandwidth"] / 2e9 - 1) < 1e-6
