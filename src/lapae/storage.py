"""A trained model in a run folder: written as a whole, and checked when it is read."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lapae.calibrate.calibration import Calibration
from lapae.calibrate.conformal import LEVELS
from lapae.config import Config
from lapae.curvature.likelihoods import Likelihood
from lapae.errors import ConfigError, LapaeError, RunError
from lapae.generate.rows import RowSampler
from lapae.impute import IMPUTERS, Imputer, ImputerRows
from lapae.methods.building import Modules, build_method
from lapae.model import Model, settle
from lapae.predict.deviation import Deviation
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
from lapae.runs.parts import from_tensors, to_tensors, under
from lapae.runs.toml import config_from_dict, config_to_dict
from lapae.score.code_density import CodeDensity
from lapae.score.latent_codes import LatentCodes
from lapae.space import Space
from lapae.train.checkpoint import load_checkpoint, load_state

FORMAT, BEFORE = "lapae model 6", "lapae model 5"
"""Format of the files, and that of lapae 0.2, which can be read as well."""
OF_IMPUTER = "lapae imputer 3"
"""Format of a fitted imputer; one of another format is fitted again."""
CALIBRATION, IMPUTER = "calibration.safetensors", "imputer.safetensors"
PARTS: dict[str, type[Any]] = {
    "calibration": Calibration,
    "codes": LatentCodes,
    "rows": ImputerRows,
    "sampler": RowSampler,
}
"""Fitted parts of a model that are saved with it, by the names of its fields."""
DOUBLE = {f"calibration.{name}" for name in ("reference.scores", "reference.plain", "tiles.scores")}
DOUBLE |= {f"calibration.intervals.radius.{name}" for name in ("levels", "table")}
DOUBLE |= {"calibration.score.patches.usual", "sampler.rows", "radii", "radius", "reference", "images"}
"""Tensors of parts that are compared with numbers of 64 bits; the last three of the former format."""
PATIENCE = 3
"""Number of attempts to read a model whose files are not from the same training."""


def save(model: Model, run: Run) -> Model:
    """Write a model into a run folder: weights, posterior, fitted parts and metrics, in one file each.

    Returns:
        The model, in its run folder.
    """
    # Weights were learned in 32 bits, whatever they predict in; the vectors of a large low-rank posterior in 16.
    wide = (torch.float32, torch.float64)
    state = {name: t.float() if t.dtype in wide else t for name, t in model.method.state_dict().items()}
    posterior = {name: tensor for name, tensor in state.items() if name.startswith("posterior.")}
    weights = {name: tensor for name, tensor in state.items() if name not in posterior}
    fitted = {
        f"{name}.{key}": tensor
        for name in PARTS
        if (part := getattr(model, name)) is not None
        for key, tensor in to_tensors(part).items()
    }
    remove(run / METRICS)
    remove(run / IMPUTER)
    for file, content in ((POSTERIOR, posterior), (CALIBRATION, fitted)):
        if content:
            write_whole(run / file, tensor_file(content, {"format": FORMAT}))
        else:
            remove(run / file)
    # Digests reveal a kill between two files, which leaves files of an earlier training next to new ones.
    metadata = {
        "format": FORMAT,
        "config": config_to_dict(model.config),
        "space": model.space.to_dict(),
        "posterior": digest(posterior) if posterior else None,
        "calibration": digest(fitted) if fitted else None,
    }
    write_whole(run / MODEL, tensor_file(weights, metadata))
    run.write_json(METRICS, model.metrics)
    found = replace(model, path=run.path, as_saved=True)
    if found.imputer is not None:
        keep_imputer(found, found.imputer)
    return found


def keep_imputer(model: Model, imputer: Imputer) -> None:
    """Write a fitted imputer into the run folder of its model, so that it is not fitted again.

    A folder that cannot be written to stays as it is; the imputer is then fitted again when it is next needed.
    """
    assert model.path is not None
    name = next(name for name, kind in IMPUTERS.items() if type(imputer) is kind)
    with suppress(OSError, LapaeError):
        run = Run.open(model.path)
        of = read_tensor_file(run / MODEL)[1].get("calibration")
        if of:  # what it was fitted with: an imputer of another training is passed over
            write_whole(run / IMPUTER, tensor_file(to_tensors(imputer), {"format": OF_IMPUTER, "kind": name, "of": of}))


OWN_MODULES = "if it was trained with modules of your own, give them again in Python: load_run(path, network=...)"


def load_run(
    path: str | Path,
    *,
    network: Modules | torch.nn.Module | None = None,
    likelihood: Likelihood | None = None,
    features: torch.nn.Module | None = None,
    device: str | torch.device = "cpu",
    allow_nan: bool = False,
) -> Model:
    """Load the trained model of a run folder at its best weights; those so far, with a warning, if it is unfinished.

    Args:
        path: the run folder.
        network: encoder and decoder, needed if the model was trained with modules of the user.
        likelihood: needed if the model was trained with a likelihood of the user.
        features: needed if the model was trained on features of a module of the user.
        device: where to put the weights.
        allow_nan: let the model accept missing values even if none were allowed in training.
    """
    run = Run.open(path)
    fitted: dict[str, torch.Tensor] = {}
    if (run / MODEL).exists():
        try:
            state, fitted, metadata = _read_model(run)
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
    if space.features is not None and features is not None:
        space = replace(space, features=replace(space.features, module=features))
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
    model = Model(settle(method, space), config, space, metrics=run.read_metrics() or {}, path=run.path)
    if not fitted:
        return model
    dtype = next(method.parameters()).dtype
    try:
        found = _fitted({name: _as(dtype, name, tensor) for name, tensor in fitted.items()})
        model = replace(model, **found, imputer=_read_imputer(run, metadata, dtype))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise RunError(f"{run / CALIBRATION} is damaged: {error!r}") from error
    shapes = {model.rows.train.shape[1:], model.rows.valid.shape[1:]} if model.rows is not None else set()
    calibration = model.calibration
    if calibration is None or {calibration.reference.rows.shape[1:], calibration.deviation.noise.shape, *shapes} != {
        model.shape
    }:
        raise RunError(f"{run / CALIBRATION} is of data of another shape; the model takes {model.shape}")
    return model


def load_for_new_data(path: str | Path, device: str | torch.device = "cpu") -> Model:
    """Load the model of a run; it accepts missing values if its likelihood can handle them, and else refuses them."""
    try:
        return load_run(path, device=device, allow_nan=True)
    except ConfigError:
        return load_run(path, device=device)


def _as(dtype: torch.dtype, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the precision in which the model predicts, except for those compared with numbers of 64
    bits."""
    kept = name in DOUBLE or not tensor.is_floating_point()
    return tensor if kept else tensor.to(dtype)


def _fitted(saved: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the fitted parts of a model by name."""
    if "radius" in saved:
        saved = _from_before(saved)
    found = {name: under(name, saved) for name in PARTS}
    deviation = from_tensors(Deviation, under("deviation", found["calibration"]))
    return {
        name: from_tensors(kind, found[name], **({"deviation": deviation} if name == "calibration" else {}))
        for name, kind in PARTS.items()
        if found[name]
    }


def _from_before(saved: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of the former format by their present names."""
    if "shift" in saved and saved["shift"].numel():
        warnings.warn(
            "this run was calibrated by lapae 0.2 on rows that its principal components had seen: its p-values may not "
            "hold for new rows. Train it again",
            stacklevel=4,
        )
    empty = saved["reference"][:0]
    out = {f"calibration.deviation.{name}": value for name, value in under("spread", saved).items()}
    out |= {f"calibration.score.{name}": value for name, value in under("surprise", saved).items()}
    moved = {"reference.rows": "rows", "reference.scores": "reference", "intervals.more": "more"}
    out |= {f"calibration.{name}": saved[old] for name, old in moved.items()}
    out["calibration.reference.own"] = saved["own"].long()
    out["calibration.intervals.radius.table"] = saved["radius"]
    out["calibration.intervals.radius.levels"] = torch.from_numpy(LEVELS)
    out["calibration.tiles.scores"] = saved.get("images", empty)
    codes = under("memory", saved)
    if codes:
        density = to_tensors(CodeDensity.fit(codes["codes"], codes["unseen"]))
        out |= {"codes.codes": codes["codes"], "codes.scale": codes["scale"]}
        out |= {f"codes.density.{name}": value for name, value in density.items()}
    filling = under("filling", saved) or {"train": saved["known"], "valid": saved["seen"]}
    return out | {f"rows.{name}": value for name, value in filling.items()} | {"rows.scarce": saved["scarce"]}


def _read_imputer(run: Run, metadata: Mapping[str, Any], dtype: torch.dtype) -> Imputer | None:
    """Return the imputer of a run if it was fitted to this very model; a damaged file is ignored."""
    if not (run / IMPUTER).exists():
        return None
    try:
        saved, about = read_tensor_file(run / IMPUTER)
        if about.get("of") != metadata.get("calibration") or about.get("format") != OF_IMPUTER:
            return None
        tensors = {name: _as(dtype, name, tensor) for name, tensor in saved.items()}
        return from_tensors(IMPUTERS[about["kind"]], tensors)
    except (RunError, KeyError, TypeError, ValueError) as error:
        warnings.warn(f"{run / IMPUTER} is damaged, and is fitted again ({error})", stacklevel=4)
        return None


def _read_model(run: Run) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], dict[str, Any]]:
    """Read weights and posterior, the fitted parts, and their metadata."""
    lacking = ""
    for attempt in range(PATIENCE):
        weights, metadata = read_tensor_file(run / MODEL)
        if metadata.get("format") not in (FORMAT, BEFORE):
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
    """Raise RunError if the model would be larger than the content of the file, so that a forged file takes no
    memory."""
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
