"""An estimator in a run folder: its model, and its parameters in estimator.json."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from lapae.curvature.likelihoods import Gaussian
from lapae.errors import ConfigError, RunError
from lapae.estimator.parameters import check_parameters, configuration, parameters
from lapae.runs import ABOUT, CONFIG, HISTORY, Run
from lapae.runs.files import make_folder, whole_folder, write_whole
from lapae.runs.toml import read_config, write_config
from lapae.storage import load_run, save
from lapae.train.devices import choose_device

OWN = {"own": True}
"""In place of modules or a likelihood of the user's, which are code and are not saved."""


def save_estimator(estimator: Any, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a fitted estimator into a run folder: the model, and its parameters in estimator.json.

    A new folder is made beside and takes the place of one that is there, at once.
    """
    place = Path(path)
    taken = place.exists() and (not place.is_dir() or any(place.iterdir()))
    if taken and not overwrite:
        raise RunError(f"{place} exists: choose another folder, or save(path, overwrite=True)")
    if taken and not (place / ABOUT).exists():
        raise RunError(f"{place} holds something else than an estimator: choose another folder")
    make_folder(place.absolute().parent)
    model = estimator.model_
    with whole_folder(place, replace=True) as folder:
        run = Run(folder)
        write_whole(run / CONFIG, write_config(model.config).encode())
        write_whole(run / HISTORY, "".join(json.dumps(record) + "\n" for record in model.history).encode())
        save(model, run)
        run.write_json(ABOUT, {"params": _plain(estimator.get_params(deep=False))})
    model.path = place


def load_estimator(cls: Any, path: str | Path, *, network: Any = None, likelihood: Any = None) -> Any:
    """The estimator of a run folder; of a run of `lapae train` one with the parameters that its configuration has."""
    run = Run.open(path)
    params = _params(run, network, likelihood)
    try:
        estimator = cls(**params)
        estimator.seed_ = 0
        check_parameters(estimator)
        configuration(estimator, np.empty(0))
    except (TypeError, ValueError) as error:
        raise RunError(f"{run / ABOUT} is damaged: {error}") from error
    device = choose_device("cpu" if estimator.device == "cpu" else "auto")  # a model of a GPU works without one
    own = None if isinstance(estimator.likelihood, str) else estimator.likelihood
    model = estimator.model_ = load_run(run.path, network=network, likelihood=own, device=device)
    model.history = run.read_history()
    estimator.seed_ = model.seed
    if model.calibration is not None:
        estimator._share_rate()
    if model.space.kind == "table":
        estimator.n_features_in_ = model.space.shape[0]
        if model.space.columns is not None:
            estimator.feature_names_in_ = np.asarray(model.space.names, dtype=object)
    return estimator._settle()


def _params(run: Run, network: Any, likelihood: Any) -> dict[str, Any]:
    """The constructor's arguments, with what the user gives again."""
    if not (run / ABOUT).exists():
        params = _params_of_config(run)
    else:
        about = run.read_json(ABOUT)
        if not isinstance(about.get("params"), dict):
            raise RunError(f"{run / ABOUT} is damaged: it has no parameters of an estimator")
        params = _renamed(about["params"], run)
    for name, given in (("network", network), ("likelihood", likelihood)):
        if given is not None:
            params[name] = given
        elif params.get(name) == OWN:
            raise RunError(f"{run.path} was trained with a {name} of your own: give it again, load(path, {name}=...)")
        elif name == "likelihood" and isinstance(params.get(name), dict):
            try:
                params[name] = Gaussian(**params[name])
            except (TypeError, ValueError) as error:
                raise RunError(f"{run / ABOUT} is damaged: {error}") from error
        elif not isinstance(params.get(name, ""), str | None):
            raise RunError(f"{run / ABOUT} is damaged: {name} = {params[name]!r}")
    return params


def _renamed(saved: dict[str, Any], run: Run) -> dict[str, Any]:
    """Parameters as they are called today: false_alarm_rate was contamination."""
    params = dict(saved)
    if "contamination" in params:
        rate = params.pop("contamination")
        params |= {} if rate == "auto" else {"false_alarm_rate": rate}
        if rate == "auto":
            said = "contamination='auto' is now a method, discoveries(X): predict flags p-values of at most 0.05"
            warnings.warn(f"{run.path}: {said}", stacklevel=5)
    return params


def _params_of_config(run: Run) -> dict[str, Any]:
    """As `lapae train` was told; the defaults where its file cannot be read, as the model does not need it."""
    try:
        return parameters(read_config(run / CONFIG).resolved())
    except ConfigError:
        return {}


def _plain(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as plain JSON."""
    out = {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
    if out["network"] is not None and not isinstance(out["network"], str):
        out["network"] = OWN
    which = out["likelihood"]
    if not isinstance(which, str):
        sigma = getattr(which, "sigma", None)
        known = {"gaussian": {"sigma": sigma} if isinstance(sigma, float) else OWN}
        out["likelihood"] = (known | {name: name for name in ("bernoulli", "categorical")}).get(which.name, OWN)
    if not isinstance(out["random_state"], int):
        out["random_state"] = None  # a generator's state is not kept; the seed that came of it is
    return out
