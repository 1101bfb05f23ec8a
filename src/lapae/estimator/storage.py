"""A fitted estimator in a run folder: the run itself, and beside it estimator.json and estimator.safetensors.

The run is one like those of `lapae train`, so that the commands (score, embed, …) take it too.
"""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lapae.curvature.likelihoods import Bernoulli, Categorical, Gaussian
from lapae.data import DataError
from lapae.errors import RunError
from lapae.estimator.training import settle
from lapae.model import load_run
from lapae.runs import ABOUT, CHECKPOINT, CONFIG, HISTORY, TENSORS, Run, read_tensor_file, tensor_file
from lapae.runs.files import write_whole
from lapae.runs.toml import write_config

if TYPE_CHECKING:
    from lapae.estimator.autoencoder import LaplacianAutoencoder

FORMAT = "lapae estimator 1"
NOISE = "hidden_noise_"
FITTED = {"seed_": int, "offset_": float, "n_iter_": int, "latent_dim_": int, "n_features_in_": int}
OWN = {"own": True}
"""In place of modules or a likelihood of the user's, which are code and are not saved."""


def save(estimator: LaplacianAutoencoder, path: str | Path) -> None:
    """Write `estimator` to the folder `path`; an estimator that is there is replaced, a training run is not."""
    run = Run(path)
    if (run / CHECKPOINT).exists() or ((run / CONFIG).exists() and not (run / ABOUT).exists()):
        raise RunError(f"{run.path} holds a training run: choose another folder")
    if not (run / ABOUT).exists():
        run = Run.create(path)
    with run.lock():
        (run / ABOUT).unlink(missing_ok=True)  # last to be written: its presence says that all is there
        model = copy.deepcopy(estimator.model_)
        model.method.float()
        write_whole(run / CONFIG, write_config(model.config).encode())
        noise = {NOISE: torch.from_numpy(estimator.hidden_noise_)}
        write_whole(run / TENSORS, tensor_file(noise, {"format": FORMAT}))
        lines = "".join(json.dumps(record) + "\n" for record in estimator.history_)
        write_whole(run / HISTORY, lines.encode())
        model.save(run)
        run.write_json(ABOUT, _about(estimator))


def load(cls: type[LaplacianAutoencoder], path: str | Path, *, network: Any, likelihood: Any) -> LaplacianAutoencoder:
    """The estimator in the folder `path`; it predicts as the one that was saved."""
    run = Run.open(path)
    about = _read_about(run)
    try:
        if about["format"] != FORMAT:
            raise RunError(f"{run / ABOUT} is not an estimator of lapae: expected format {FORMAT!r}")
        estimator = cls(**_params(run, dict(about["params"]), network, likelihood))
        fitted = dict(about["fitted"])
        names = fitted.pop("feature_names_in_")
        for name, kind in FITTED.items():  # these and no others: a file cannot put something in a method's place
            if name in fitted or name != "n_features_in_":
                setattr(estimator, name, _number(fitted.pop(name), kind))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RunError(f"{run / ABOUT} is damaged: {error!r}") from error
    if fitted:
        raise RunError(f"{run / ABOUT} is damaged: it holds {', '.join(sorted(fitted))}, which no estimator has")
    own = None if isinstance(estimator.network, str) else tuple(estimator.network)
    own_likelihood = None if isinstance(estimator.likelihood, str) else estimator.likelihood
    estimator.model_ = load_run(run.path, network=own, likelihood=own_likelihood, device=_device(estimator.device))
    settle(estimator.model_)
    estimator.space_ = estimator.model_.space
    if names is not None:
        setattr(estimator, "feature_names_in_", np.asarray(names, dtype=object))  # noqa: B010
    estimator._n_features_out = estimator.latent_dim_
    tensors = read_tensor_file(run / TENSORS)[0]
    if NOISE not in tensors:
        raise RunError(f"{run / TENSORS} holds {', '.join(sorted(tensors))}, expected {NOISE}")
    estimator.hidden_noise_ = tensors[NOISE].numpy()
    estimator.history_ = _read_history(run)
    return estimator


def _read_about(run: Run) -> Any:
    try:
        return json.loads((run / ABOUT).read_bytes())
    except OSError:
        raise RunError(
            f"{run.path} holds no estimator: there is no {ABOUT} (lapae.model.load_run reads runs)"
        ) from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{run / ABOUT} is damaged: {error}") from error


def _params(run: Run, params: dict[str, Any], network: Any, likelihood: Any) -> dict[str, Any]:
    """The constructor's arguments, with what the user gives again."""
    for name, given in (("network", network), ("likelihood", likelihood)):
        if given is not None:
            params[name] = given
        elif params[name] == OWN:
            raise RunError(f"{run.path} was trained with a {name} of your own: give it again, load(path, {name}=...)")
        elif name == "likelihood" and isinstance(params[name], dict):
            params[name] = Gaussian(_number(params[name]["sigma"], float))
        elif not isinstance(params[name], str):
            raise TypeError(f"{name} is {params[name]!r}")
    return params


def _number(value: Any, kind: type) -> Any:
    """A number of JSON as the type that it was."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    return kind(value)


def _read_history(run: Run) -> list[dict[str, Any]]:
    """The epochs; a damaged file is left aside with a warning, as nothing depends on it."""
    try:
        return [json.loads(line) for line in (run / HISTORY).read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, RecursionError):
        warnings.warn(f"{run / HISTORY} is damaged, and left aside", stacklevel=2)
        return []


def check_data(path: Path | None) -> None:
    """DataError where a run is one of the estimator: its data are not to be found."""
    if path is not None and (path / ABOUT).exists():
        raise DataError("this is a run of the estimator, which does not keep the data that it was fitted to")


def threshold(path: str | Path) -> float | None:
    """The threshold of the estimator in a run folder; None for a run of `lapae train`."""
    about = Path(path) / ABOUT
    if not about.exists():
        return None
    try:
        return float(json.loads(about.read_bytes())["fitted"]["offset_"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{about} is damaged: {error!r}") from error


def _about(estimator: LaplacianAutoencoder) -> dict[str, Any]:
    params = estimator.get_params(deep=False)
    if not isinstance(params["network"], str):
        params["network"] = OWN
    likelihood = params["likelihood"]
    if type(likelihood) is Gaussian:
        params["likelihood"] = {"sigma": likelihood.sigma}
    elif type(likelihood) in (Bernoulli, Categorical):
        params["likelihood"] = type(likelihood).__name__.lower()
    elif not isinstance(likelihood, str):
        params["likelihood"] = OWN
    if not isinstance(params["random_state"], int | np.integer):
        params["random_state"] = None  # a generator's state is not kept; the seed that came of it is
    params = {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}
    names = getattr(estimator, "feature_names_in_", None)
    fitted = {name: getattr(estimator, name) for name in ("seed_", "offset_", "n_iter_", "latent_dim_")}
    n_features = getattr(estimator, "n_features_in_", None)
    if n_features is not None:
        fitted["n_features_in_"] = n_features
    return {
        "format": FORMAT,
        "params": params,
        "fitted": {
            **fitted,
            "feature_names_in_": None if names is None else [str(name) for name in names],
        },
    }


def _device(wanted: str) -> str:
    return "cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu"
