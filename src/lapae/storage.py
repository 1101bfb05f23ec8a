"""A trained model in a run folder: written whole, read with what it says about itself checked."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lapae.config import Config
from lapae.curvature.likelihoods import Likelihood
from lapae.errors import LapaeError, RunError
from lapae.methods.building import Modules, build_method
from lapae.model import Model
from lapae.predict.calibrate import from_file, to_file
from lapae.predict.filling import Filling
from lapae.predict.memory import Memory
from lapae.predict.prediction import tensors
from lapae.runs import (
    CHECKPOINT,
    METRICS,
    MODEL,
    POSTERIOR,
    Run,
    digest,
    read_tensor_file,
    tensor_file,
)
from lapae.runs.files import remove, write_whole
from lapae.runs.toml import config_from_dict, config_to_dict
from lapae.space import Space
from lapae.train.checkpoint import load_checkpoint, load_state

FORMAT = "lapae model 5"
CALIBRATION = "calibration.safetensors"
PATIENCE = 3
"""Times that a model is read whose files are not of one training."""


def save(model: Model, run: Run) -> None:
    """Write model.safetensors, posterior.safetensors and calibration.safetensors where there are such, metrics.json."""
    # Weights were learned in 32 bits, whatever they predict in; the vectors of a large low-rank posterior in 16.
    wide = (torch.float32, torch.float64)
    state = {name: t.float() if t.dtype in wide else t for name, t in model.method.state_dict().items()}
    posterior = {name: tensor for name, tensor in state.items() if name.startswith("posterior.")}
    weights = {name: tensor for name, tensor in state.items() if name not in posterior}
    calibration = {} if model.calibration is None else to_file(model.calibration)
    if model.memory is not None:
        calibration |= {f"memory.{name}": value for name, value in tensors(model.memory).items()}
    if model.filling is not None:
        calibration |= {f"filling.{name}": value for name, value in model.filling.tensors().items()}
    remove(run / METRICS)
    for file, content in ((POSTERIOR, posterior), (CALIBRATION, calibration)):
        if content:
            write_whole(run / file, tensor_file(content, {"format": FORMAT}))
        else:
            remove(run / file)
    # Digests: a kill between two files leaves these beside the weights of an earlier training.
    metadata = {
        "format": FORMAT,
        "config": config_to_dict(model.config),
        "space": model.space.to_dict(),
        "posterior": digest(posterior) if posterior else None,
        "calibration": digest(calibration) if calibration else None,
    }
    write_whole(run / MODEL, tensor_file(weights, metadata))
    run.write_json(METRICS, model.metrics)
    model.path = run.path


OWN_MODULES = "if it was trained with modules of your own, give them again in Python: load_run(path, network=...)"


def load_run(
    path: str | Path,
    *,
    network: Modules | torch.nn.Module | None = None,
    likelihood: Likelihood | None = None,
    device: str | torch.device = "cpu",
    allow_nan: bool = False,
) -> Model:
    """The trained model of a run folder, at its best weights; of an unfinished run the best so far, with a warning.

    Args:
        path: the run folder.
        network: encoder and decoder, needed where the model was trained with modules of one's own.
        likelihood: needed where the model was trained with a likelihood of one's own.
        device: where to put the weights.
        allow_nan: have the model take missing values even where none were allowed in training.
    """
    run = Run.open(path)
    calibration: dict[str, torch.Tensor] = {}
    if (run / MODEL).exists():
        try:
            state, calibration, metadata = _read_model(run)
        except RunError as error:
            if not (run / CHECKPOINT).exists():
                raise
            raise RunError(f"{error}; lapae train --resume {run.path} makes it anew from its checkpoint") from error
        origin = str(run / MODEL)
    else:
        checkpoint = load_checkpoint(run)
        if checkpoint is None:
            raise RunError(f"{run.path} has no model yet: train it with lapae train --resume {run.path}")
        epoch = checkpoint.state.best_epoch
        warnings.warn(f"{run.path} is not finished: these are its best weights so far, of epoch {epoch}", stacklevel=2)
        state, metadata, origin = checkpoint.best, checkpoint.about, checkpoint.path
    try:
        config, space = config_from_dict(metadata["config"], origin).resolved(), Space.from_dict(metadata["space"])
    except LapaeError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{origin} is damaged: what it says of its data is not valid ({error!r})") from error
    bare = replace(config, data=replace(config.data, allow_nan=config.data.allow_nan or allow_nan))
    with torch.random.fork_rng(devices=[]):
        if network is None:
            _check_size(bare, space, likelihood, state, origin)
        method = build_method(bare, space, network=network, likelihood=likelihood, loading=True)
    try:
        load_state(method, state, origin)
    except RunError as error:
        if network is not None:
            raise
        raise RunError(f"{error}; {OWN_MODULES}") from error
    method.to(device)
    model = Model(method, config, space, run.read_metrics() or {}, path=run.path).settle()
    if calibration:
        _calibrate(model, calibration, str(run / CALIBRATION))
    return model


def _calibrate(model: Model, tensors: dict[str, torch.Tensor], origin: str) -> None:
    """In the precision that the model predicts in, which may be another than where it was made."""
    dtype = next(model.method.parameters()).dtype
    tensors = {name: t if name == "radius" else t.to(dtype) for name, t in tensors.items()}
    memory, filling = (
        {name.removeprefix(kind): tensors.pop(name) for name in [*tensors] if name.startswith(kind)}
        for kind in ("memory.", "filling.")
    )
    try:
        found = from_file(tensors)
        if memory:
            model.memory = Memory(**memory)
        if filling:
            model.filling = Filling.of(filling["train"], filling["valid"], model.space.parts)
    except (KeyError, TypeError, IndexError) as error:
        raise RunError(f"{origin} is damaged: {error!r}") from error
    shapes = {part.shape[1:] for part in (*filling.values(), found.known, found.seen)}
    if {found.rows.shape[1:], found.spread.noise.shape, *shapes} != {model.shape}:
        raise RunError(f"{origin} is of data of another shape than {model.shape}")
    model.calibration = found


def _read_model(run: Run) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, Any]]:
    """Weights and posterior, the calibration, and what is said of them."""
    lacking = ""
    for attempt in range(PATIENCE):
        weights, metadata = read_tensor_file(run / MODEL)
        if metadata.get("format") != FORMAT:
            raise RunError(f"{run / MODEL} is not a model of this version of lapae: expected format {FORMAT!r}")
        found = {}
        for file, key in ((POSTERIOR, "posterior"), (CALIBRATION, "calibration")):
            found[key] = read_tensor_file(run / file)[0] if metadata.get(key) else {}
            if metadata.get(key) and digest(found[key]) != metadata[key]:
                lacking = file
                break
        else:
            return weights | found["posterior"], found["calibration"], metadata
        if attempt < PATIENCE - 1:
            time.sleep(1)  # another process may be writing them
    raise RunError(f"{run / lacking} is not that of {run / MODEL}: they are of two trainings")


def _check_size(
    config: Config, space: Space, likelihood: Likelihood | None, state: Mapping[str, torch.Tensor], origin: str
) -> None:
    """RunError where the model would be larger than what the file holds: a file that lies takes no memory."""
    try:
        with torch.device("meta"):  # shapes without numbers
            planned = build_method(config, space, likelihood=likelihood).state_dict()
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, LapaeError):
            raise
        raise RunError(f"{origin} is damaged: no model can be built from its configuration ({error})") from error
    n_planned, n_held = (sum(tensor.numel() for tensor in tensors.values()) for tensors in (planned, state))
    if n_planned > n_held:
        counts = f"it holds {n_held:,} numbers of {n_planned:,}"
        raise RunError(f"{origin} does not fit its own configuration: {counts}; {OWN_MODULES}")
