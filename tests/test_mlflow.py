"""A run as a model of MLflow, over a stand-in that keeps the data of a model in a folder as MLflow does."""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lapae.errors import ConfigError


@pytest.fixture
def saved(monkeypatch) -> dict[str, Any]:
    """What the stand-in of MLflow was told."""
    told: dict[str, Any] = {}

    def save_model(*, path: str, loader_module: str, data_path: str, signature: Any, **about: Any) -> None:
        shutil.copytree(data_path, Path(path) / "data")
        told.update(about, loader=loader_module, signature=signature)

    pyfunc: Any = ModuleType("mlflow.pyfunc")
    pyfunc.save_model = save_model
    models: Any = ModuleType("mlflow.models")
    models.infer_signature = lambda given, found: (list(given.columns), list(found.columns))
    whole: Any = ModuleType("mlflow")
    whole.pyfunc, whole.models = pyfunc, models
    for module in (whole, pyfunc, models):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return told


def test_a_model_is_the_run_and_predicts_as_it(saved, tmp_path):
    import lapae.mlflow

    x = np.random.default_rng(0).standard_normal((60, 3))
    frame = pd.DataFrame(x, columns=["speed", "load", "heat"], index=range(100, 160))
    lapae.LaplacianAutoencoder(epochs=2, random_state=0).fit(frame).save(tmp_path / "run")
    lapae.mlflow.save_model(tmp_path / "run", tmp_path / "model", verb="impute", options={"level": 0.8})
    shutil.rmtree(tmp_path / "run")
    frame.iloc[3, 1] = np.nan
    loaded = import_module(saved["loader"])._load_pyfunc(str(tmp_path / "model" / "data"))
    found = loaded.predict(frame)
    assert found.index.equals(frame.index)
    assert saved["signature"] == (list(frame.columns), list(found.columns))
    assert found["load"].notna().all()
    assert found["load_low"].iloc[3] < found["load_high"].iloc[3]


def test_refused(saved, tmp_path):
    import lapae.mlflow

    with pytest.raises(ConfigError, match="expected one of score, impute"):
        lapae.mlflow.save_model(tmp_path / "run", tmp_path / "model", verb="judge")
