"""`lapae score` and `lapae embed` over two processes write what one process writes, byte for byte."""

from __future__ import annotations

import contextlib
import io
import json

import numpy as np
import pytest
from PIL import Image
from ranks import on_processes

from lapae.cli import main
from lapae.data import reader as base

FAST = ["--n-samples", "3", "--device", "cpu", "--json"]
BLOCK = 7


def command(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command that reads blocks of seven."""
    before, base.BLOCK_ROWS = base.BLOCK_ROWS, BLOCK
    out, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main(arguments)
    finally:
        base.BLOCK_ROWS = before
    return code, out.getvalue(), errors.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run on a table and one on images; new tables of 52 and of 3 rows, and images of which some cannot be read."""
    root = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    quick = ["--hidden", "8", "--epochs", "1", "--device", "cpu", "--no-verbose"]
    x = rng.standard_normal((52, 3)).round(4)
    for name, n in (("table", 52), ("short", 3)):
        rows = [f"{i},{a},{b},{c},{'xy'[i % 2]}" for i, (a, b, c) in enumerate(x[:n])]
        (root / f"{name}.csv").write_text("\n".join(["id,speed,load,heat,kind", *rows]) + "\n")
    np.save(root / "table.npy", x)
    (root / "train.csv").write_text("\n".join(["speed,load,heat", *(f"{a},{b},{c}" for a, b, c in x)]) + "\n")
    assert main(["train", str(root / "train.csv"), "--out", str(root / "run"), *quick]) == 0
    folder = root / "pictures"
    folder.mkdir()
    for i in range(30):
        Image.fromarray(rng.integers(0, 256, (4, 4), dtype=np.uint8)).save(folder / f"{i:02d}.png")
    assert main(["train", str(folder), "--out", str(root / "images"), *quick]) == 0
    for i in (3, *range(7, 14)):  # one of the first block, all of the second
        (folder / f"{i:02d}.png").write_bytes(b"not an image")
    return root


CASES = [
    ("score", "run", "table.csv", "csv"),
    ("score", "run", "short.csv", "csv"),  # fewer blocks than processes
    ("score", "run", "table.npy", "npy"),
    ("score", "run", "table.npy", "npz"),
    ("embed", "run", "table.csv", "csv"),
    ("embed", "run", "table.npy", "npz"),
    ("embed", "images", "pictures", "csv"),
]


def arguments_of(place, case, who: str) -> list[str]:
    task, run, source, suffix = case
    out = place / f"{who}-{task}-{source}.{suffix}"
    more = ["--skip-bad"] if source == "pictures" else []
    return [task, str(place / run), str(place / source), "-o", str(out), *FAST, *more]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_two_processes_write_what_one_writes(case, place):
    code, out, errors = command(arguments_of(place, case, "one"))
    assert code == 0
    first, second = on_processes(command, arguments_of(place, case, "two"))
    assert second == (0, "", "")
    assert first[0] == 0
    assert json.loads(first[1]) | {"out": ""} == json.loads(out) | {"out": ""}
    assert first[2] == errors  # what was skipped, in order
    one, two = (arguments_of(place, case, who)[4] for who in ("one", "two"))
    with open(one, "rb") as alone, open(two, "rb") as shared:
        assert alone.read() == shared.read()
    assert [path.name for path in place.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(("row", "code", "said"), [(10, 2, ""), (30, 2, "another process of this job has ended")])
def test_an_error_of_any_process_is_said_by_the_first(row, code, said, place, tmp_path):
    """Row 10 is in the second block, the second process's; row 30 in the fifth, the first one's."""
    text = (place / "table.csv").read_text("utf-8")
    (tmp_path / "bad.csv").write_text(text.replace(f"\n{row},", f"\n{row},fast,"))
    arguments = ["score", str(place / "run"), str(tmp_path / "bad.csv"), "-o", str(tmp_path / "s.csv"), *FAST]
    first, second = on_processes(command, arguments)
    assert first[0] == 2
    assert "6 cells, expected 5" in first[2]
    assert f"row {row + 2}" in first[2]
    assert second[:2] == (code, "")
    assert said in second[2]
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]
