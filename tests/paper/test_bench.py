"""The benchmark of the curvature runs to its end on small settings, and reports what cannot run instead of dying."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.testing import assert_close
from waiting import PATIENCE

from lapae.cli import main as cli
from lapae.curvature import ggn_diagonal
from lapae.networks import mlp
from lapae_paper.bench.curvature import CurvatureBench, main, slopes, table
from lapae_paper.bench.limited import Case, Limits, run_limited
from lapae_paper.bench.measure import peak_bytes, take_turns
from lapae_paper.bench.quality import quality
from lapae_paper.bench.quality import table as quality_table


def test_the_command_writes_its_results(tmp_path, capsys):
    arguments = ["--methods", "approx", "exact", "--no-peers", "--no-table", "--sizes", "4", "6", "--seconds", "0.01"]
    assert cli(["bench", "curvature", *arguments, "--device", "cpu", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "slope of time" in printed
    results = json.loads((tmp_path / "curvature.json").read_text("utf-8"))
    assert [(r["method"], r["size"]) for r in results["rows"]] == [
        ("approx", 4),
        ("approx", 6),
        ("exact", 4),
        ("exact", 6),
    ]
    assert all(r["ms"] > 0 and r["bytes"] > 0 and r["shared_ratio"] > 0 for r in results["rows"])
    assert (tmp_path / "curvature.png").stat().st_size > 10_000
    assert {p.name for p in tmp_path.iterdir()} == {"curvature.json", "curvature.png"}


def test_what_meets_a_limit_is_reported_and_the_rest_goes_on():
    limits = Limits("cpu", 1, seconds=0.01, call_seconds=1e-9, memory_bytes=1 << 30)
    rows = list(run_limited("approx", [Case("dense"), Case("convolutions", 4), Case("convolutions", 8)], limits))
    assert [(r["network"], r["size"], r["failed"]) for r in rows] == [
        ("dense", 28, "time"),
        ("convolutions", 4, "time"),
    ]


@pytest.mark.parametrize("method", ["backpack exact"])
def test_what_runs_out_of_memory_dies_alone(method):
    pytest.importorskip("backpack", reason="BackPACK is an optional peer")
    limits = Limits("cpu", 1, seconds=0.01, call_seconds=PATIENCE, memory_bytes=1 << 20)
    rows = list(run_limited(method, [Case("convolutions", 48)], limits))
    assert [r["failed"] for r in rows] == ["memory"]


def test_slopes_are_those_of_the_data():
    rows = [
        {"network": "convolutions", "method": m, "size": n, "ms": 3.0 * n ** (2 * p), "bytes": n**4}
        for m, p in (("linear", 1), ("quadratic", 2))
        for n in (8, 16, 32)
    ]
    found = slopes([*rows, {"network": "convolutions", "method": "linear", "size": 64, "failed": "time"}])
    assert math.isclose(found["linear"][0], 1)
    assert math.isclose(found["quadratic"][0], 2)
    assert math.isclose(found["linear"][1], 2)
    assert found["linear"][2] == 32


def test_the_table_has_a_line_a_method():
    rows = [
        {"network": "dense", "method": "approx", "ratio": 0.81, "shared_ratio": 0.4, "bytes": 3, "base_bytes": 2},
        {"network": "dense", "method": "backpack exact", "failed": "time", "ms": 1.0, "ratio": 480.0},
        {"network": "fashion", "method": "backpack exact", "failed": "not supported (no rule)"},
    ]
    rows = [{"size": 28, **row} for row in rows]
    text = table(rows, CurvatureBench(device="cpu"))
    assert "| approx | 0.81 (0.40); memory 1.5 | - |" in text
    assert "| backpack exact | time (480) | not supported |" in text


def test_a_network_of_others_has_a_column_of_its_own():
    pytest.importorskip("diffusers", reason="diffusers is a test extra")
    limits = Limits("cpu", 1, seconds=0.01, call_seconds=PATIENCE, memory_bytes=4 << 30)
    (row,) = run_limited("sketch", [Case("kl")], limits)
    assert row["shared_ratio"] > 0
    assert row["ratio"] > 0
    text = table([row], CurvatureBench(device="cpu"))
    assert "| AutoencoderKL |" in text
    (refused,) = run_limited("approx", [Case("kl")], limits)
    assert refused["failed"].startswith("not supported (UnknownLayerError")


def test_turns_and_peaks():
    called: list[str] = []
    times = take_turns({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, seconds=0.001)
    assert len(times["a"]) == len(times["b"]) >= 5
    assert called[:4] == ["a", "b", "a", "b"]
    assert peak_bytes(lambda: torch.zeros(1000) + torch.ones(1000), torch.device("cpu")) == pytest.approx(
        12_000, rel=0.1
    )


def test_quality_is_the_error_by_its_definition():
    module, x = mlp((6,), 2, hidden=(5,)).double(), torch.rand(7, 6, dtype=torch.float64)
    rows = quality(module, x, batch_size=3, seconds=0.01, switch=5)
    found = {(row["layer"], row["estimate"]): row for row in rows}
    exact, approx = (ggn_diagonal(module, x, method=m) for m in ("exact", "approx"))
    a, b = (torch.cat([h["encoder.0.weight"].flatten(), h["encoder.0.bias"]]) for h in (approx, exact))
    assert_close(found["encoder.0", "approx"]["error"], ((a - b).norm() / b.norm()).item())
    assert_close(found["encoder.0", "approx"]["bias"], (a.sum() / b.sum()).item())
    assert found["encoder.0", "bottleneck"]["error"] < 1e-9
    assert found["decoder.2", "approx"]["error"] < 1e-9
    assert found["all", "mc(10)"]["error"] < found["all", "mc(1)"]["error"]
    assert found["all", "sketch(10)"]["error"] < found["all", "sketch(1)"]["error"]
    text = quality_table(rows)
    assert text.count("\n| ") == 6
    assert "exact costs" in text


def test_main_without_parts_still_writes(tmp_path):
    assert main(CurvatureBench(table=False, figure=False, methods=(), peers=False, out=tmp_path)) == 0
    assert json.loads((tmp_path / "curvature.json").read_text("utf-8"))["rows"] == []
