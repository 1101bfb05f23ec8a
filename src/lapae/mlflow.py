"""MLflow models: a run as a pyfunc model, logged and loaded. Nothing is pickled.

A model is the run folder itself, and `lapae.mlflow` is the module that loads it; it maps frames as `lapae.mapper` does.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree
from typing import Any

from lapae import __version__
from lapae.arrow.mapper import Mapper, mapper
from lapae.errors import RunError
from lapae.runs.files import write_whole

RUN, VERB = "run", "verb.json"
"""Names in the data of a model: the run folder, and the verb with its options."""


def log_model(run: str | Path, name: str = "model", *, verb: str = "score", options: Any = None, **about: Any) -> Any:
    """Log a run as a model in the active MLflow run.

    Args:
        run: folder of a run that was trained on a table.
        name: name of the model.
        verb: "score", "impute", "embed" or "reconstruct".
        options: options of the verb, as in `lapae.mapper`.
        about: arguments of `mlflow.pyfunc.log_model`, such as `registered_model_name`.

    Returns:
        MLflow's `ModelInfo`; its `model_uri` is for `mlflow.pyfunc.load_model`.
    """
    import mlflow.pyfunc  # pyright: ignore[reportMissingImports]

    with _data(run, verb, options) as (data, signature):
        return mlflow.pyfunc.log_model(name=name, **{**_how(data), "signature": signature, **about})


def save_model(run: str | Path, path: str | Path, *, verb: str = "score", options: Any = None, **about: Any) -> None:
    """Write a run as an MLflow model into a folder; the arguments are those of `log_model`.

    Args:
        run: folder of a run that was trained on a table.
        path: the new folder.
        verb: see `log_model`.
        options: see `log_model`.
        about: arguments of `mlflow.pyfunc.save_model`.
    """
    import mlflow.pyfunc  # pyright: ignore[reportMissingImports]

    with _data(run, verb, options) as (data, signature):
        mlflow.pyfunc.save_model(path=str(path), **{**_how(data), "signature": signature, **about})


class Predictor:
    """The object that MLflow loads: frames in, frames out."""

    def __init__(self, made: Mapper) -> None:
        self.mapper = made

    def predict(self, frame: Any, params: Any = None) -> Any:
        """Map a pandas frame of rows and keep its index."""
        return self.mapper.frame(frame)


def _load_pyfunc(path: str) -> Predictor:
    """Load the data of a model; MLflow prescribes name and argument."""
    about = json.loads((Path(path) / VERB).read_text("utf-8"))
    return Predictor(mapper(Path(path) / RUN, about["verb"], **about["options"]))


def _how(data: Path) -> dict[str, Any]:
    return {
        "loader_module": "lapae.mlflow",
        "data_path": str(data),
        "pip_requirements": [f"lapae[parquet]=={__version__}"],
    }


@contextmanager
def _data(run: str | Path, verb: str, options: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the data of a model in a temporary folder, and its signature."""
    import pandas as pd
    from mlflow.models import infer_signature  # pyright: ignore[reportMissingImports]

    options = dict(options or {})
    made = mapper(run, verb, **options)  # also checks them
    model = made.loaded.model
    assert model.calibration is not None
    few = model.space.uncode(model.space.to_user(model.calibration.reference.rows[:5].double().numpy()))
    few = pd.DataFrame(few, columns=None if hasattr(few, "columns") else [c.name for c in model.space.numbered])
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "lapae"
        try:
            copytree(made.run, data / RUN)
        except OSError as error:
            raise RunError(f"cannot copy {made.run}: {error}") from error
        write_whole(data / VERB, json.dumps({"verb": verb, "options": options}).encode())
        yield data, infer_signature(few, made.frame(few))
