"""Estimators on the Hub, over a folder in its place."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

import lapae
from lapae import hub
from lapae.errors import ConfigError


@pytest.fixture(scope="module")
def model():
    x = np.random.default_rng(0).standard_normal((60, 3))
    return lapae.LaplacianAutoencoder(epochs=2, random_state=0).fit(pd.DataFrame(x, columns=["speed", "load", "heat"]))


@pytest.fixture
def server(monkeypatch, tmp_path) -> Path:
    """Stand-in of huggingface_hub: repositories are folders. Its calls are those of version 2.4."""

    class HfApi:
        def __init__(self, *, token: Any = None) -> None:
            pass

        def create_repo(self, repo_id: str, *, private: Any = None, exist_ok: bool = False) -> None:
            (tmp_path / repo_id).mkdir(parents=True, exist_ok=exist_ok)

        def file_exists(self, repo_id: str, filename: str, *, revision: Any = None) -> bool:
            return (tmp_path / repo_id / filename).exists()

        def upload_folder(
            self, *, repo_id: str, folder_path: str, commit_message: str, revision: Any, ignore_patterns: Any
        ) -> str:
            ignored = shutil.ignore_patterns(*(ignore_patterns or []))
            shutil.copytree(folder_path, tmp_path / repo_id, dirs_exist_ok=True, ignore=ignored)
            return commit_message

    module: Any = ModuleType("huggingface_hub")
    module.HfApi = HfApi
    module.snapshot_download = lambda repo_id, *, revision, token: str(tmp_path / repo_id)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return tmp_path


def test_what_is_pushed_is_loaded(model, server):
    assert hub.push_to_hub(model, "me/machines") == "Upload a model of lapae"
    x = np.random.default_rng(1).standard_normal((5, 3))
    frame = pd.DataFrame(x, columns=["speed", "load", "heat"])
    again = hub.from_pretrained("me/machines")
    np.testing.assert_array_equal(again.p_value(frame), model.p_value(frame))
    assert "`speed`, `load`, `heat`" in (server / "me/machines" / hub.CARD).read_text()


def test_a_card_that_is_there_stays(model, server):
    hub.push_to_hub(model, "me/machines")
    (server / "me/machines" / hub.CARD).write_text("mine")
    hub.push_to_hub(model, "me/machines")
    assert (server / "me/machines" / hub.CARD).read_text() == "mine"


def test_a_folder_needs_no_package(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    hub.save_pretrained(model, tmp_path / "mine")
    assert hub.from_pretrained(tmp_path / "mine").model_.space == model.model_.space
    with pytest.raises(ConfigError, match=r"pip install 'lapae\[hub\]'"):
        hub.from_pretrained("me/machines")
