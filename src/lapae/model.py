"""A trained model: the method at its best weights and what one needs to use it. Saved into a run, loaded from one."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from lapae.config import Config
from lapae.curvature.likelihoods import Likelihood
from lapae.errors import LapaeError, RunError
from lapae.methods import Method
from lapae.methods.building import Modules, Shape, build_method
from lapae.runs import CHECKPOINT, METRICS, MODEL, POSTERIOR, Run, digest, read_tensor_file, tensor_file
from lapae.runs.files import write_whole
from lapae.runs.toml import config_from_dict, config_to_dict
from lapae.space import Space
from lapae.train.checkpoint import load_checkpoint, load_state

FORMAT = "lapae model 2"
PATIENCE = 3
"""Times that a model is read whose two files are not of one training."""


@dataclass
class TrainedModel:
    """A method at its best weights, with its configuration and what it knows of its data."""

    method: Method
    config: Config
    space: Space
    """What its data are."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The final numbers of training."""
    history: list[dict[str, Any]] = field(default_factory=list)
    """One record an epoch; empty for a model that was loaded."""
    path: Path | None = None
    """The run folder, where it is in one."""

    @property
    def shape(self) -> Shape:
        """Of one datum in the model."""
        return self.space.model_shape

    @property
    def likelihood(self) -> Likelihood:
        """Of the decoder's output."""
        return self.method.likelihood

    def save(self, run: Run) -> None:
        """Write model.safetensors, posterior.safetensors where there is one, and metrics.json: the run is finished."""
        state = self.method.state_dict()
        posterior = {name: tensor for name, tensor in state.items() if name.startswith("posterior.")}
        weights = {name: tensor for name, tensor in state.items() if name not in posterior}
        metadata = {"format": FORMAT, "config": config_to_dict(self.config), "space": self.space.to_dict()}
        (run / METRICS).unlink(missing_ok=True)
        if posterior:
            write_whole(run / POSTERIOR, tensor_file(posterior, {"format": FORMAT}))
        else:
            (run / POSTERIOR).unlink(missing_ok=True)
        # Of two files: a kill between them leaves this posterior beside the weights of an earlier training.
        metadata |= {"has_posterior": bool(posterior), "posterior": digest(posterior)}
        write_whole(run / MODEL, tensor_file(weights, metadata))
        run.write_json(METRICS, self.metrics)
        self.path = run.path


OWN_MODULES = "if it was trained with modules of your own, give them again in Python: load_run(path, network=...)"


def load_run(
    path: str | Path,
    *,
    network: Modules | None = None,
    likelihood: Likelihood | None = None,
    device: str | torch.device = "cpu",
    allow_nan: bool = False,
) -> TrainedModel:
    """The trained model of a run folder, at its best weights.

    `network` and `likelihood` are needed where the model was trained with modules or a likelihood of one's own. A run
    that is not finished gives its best weights so far, with a warning. `allow_nan` has the model take missing values
    even where none were allowed in training.
    """
    run = Run.open(path)
    if (run / MODEL).exists():
        try:
            state, metadata = _read_model(run)
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
        method = build_method(bare, space, network=network, likelihood=likelihood)
    try:
        load_state(method, state, origin)
    except RunError as error:
        if network is not None:
            raise
        raise RunError(f"{error}; {OWN_MODULES}") from error
    method.to(device).eval()
    return TrainedModel(method, config, space, run.read_metrics() or {}, path=run.path)


def _read_model(run: Run) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Weights and posterior, and what is said of them."""
    for attempt in range(PATIENCE):
        weights, metadata = read_tensor_file(run / MODEL)
        if metadata.get("format") != FORMAT:
            raise RunError(f"{run / MODEL} is not a model of lapae: expected format {FORMAT!r}")
        if not metadata.get("has_posterior"):
            return weights, metadata
        posterior = read_tensor_file(run / POSTERIOR)[0]
        if metadata.get("posterior", digest(posterior)) == digest(posterior):
            return weights | posterior, metadata
        if attempt < PATIENCE - 1:
            time.sleep(1)  # another process may be writing them
    raise RunError(f"{run / POSTERIOR} is not that of {run / MODEL}: they are of two trainings")


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
