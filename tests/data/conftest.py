"""Folders for the readers that are not the user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory, monkeypatch):
    """No test reads or writes the user's data or cache."""
    monkeypatch.delenv("LAPAE_DATA", raising=False)
    monkeypatch.setenv("LAPAE_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of the real data sets: $LAPAE_DATA, or that beside the checkout."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("LAPAE_DATA") or beside)
    if not (folder / "mnist").is_dir():
        pytest.skip("the real data sets are not on this machine (set $LAPAE_DATA)")
    return folder
