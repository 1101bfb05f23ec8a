"""Folders of data and cache that are not the user's, for the tests of readers (imported by their conftest.py)."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory, monkeypatch):
    """No test reads or writes the user's data or cache."""
    monkeypatch.delenv("LAPAE_DATA", raising=False)
    monkeypatch.setenv("LAPAE_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
