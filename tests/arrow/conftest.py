"""Runs on a small table with columns of every kind and missing values, and rows to map."""

from __future__ import annotations

from pathlib import Path

import pytest
from people import people

from lapae.cli import main


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """Folder with runs named by their method, and people.parquet."""
    root = tmp_path_factory.mktemp("arrow")
    people(240, 0).to_parquet(root / "people.parquet", index=False)
    table = ["train", str(root / "people.parquet"), "--drop", "id", "--device", "cpu", "--no-verbose"]
    for method in ("online", "vae"):
        quick = ["--hidden", "8", "--epochs", "2", "--method", method]
        assert main([*table, *quick, "--out", str(root / method)]) == 0
    return root
