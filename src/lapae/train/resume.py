"""Checks of a resumed run: its options and its data must be those with which it started."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import numpy as np

from lapae.config import Config
from lapae.data import Data
from lapae.data.source import Lazy
from lapae.errors import ConfigError, RunError
from lapae.runs import CHECKPOINT, CONFIG, NEXT, PREVIOUS, Run
from lapae.runs.toml import config_from_dict, config_to_dict, read_config
from lapae.space import Space, chunks
from lapae.train.checkpoint import Checkpoint, load_checkpoint

MAY_CHANGE = {
    "data": {"data_dir"},
    "model": set(),
    "method": {"predictive", "n_samples"},
    "train": {
        *("epochs", "patience", "device", "precision", "tensorboard", "verbose", "false_alarm_rate"),
    },
}
"""Options that a resumed run may change; changing any other would make it a different run."""


def has_config(run: Run) -> bool:
    """Return whether there is anything to resume."""
    return any((run / name).exists() for name in (CONFIG, CHECKPOINT, PREVIOUS, NEXT))


def saved_config(run: Run) -> Config:
    """Return the configuration of a run: that of its checkpoint, which has a digest, or else of config.toml."""
    checkpoint = load_checkpoint(run)
    if checkpoint is not None:
        config = config_from_dict(checkpoint.about.get("config"), checkpoint.path)
        if (run / CONFIG).exists() and not _says(run / CONFIG, config):
            warnings.warn(
                f"{run / CONFIG} is damaged or was changed: the options are those of the checkpoint", stacklevel=2
            )
        return config
    if not (run / CONFIG).exists():
        raise RunError(f"{run.path} cannot be resumed: it has neither a checkpoint nor a {CONFIG}")
    return read_config(run / CONFIG)


def _says(path: Path, config: Config) -> bool:
    """Return whether a configuration file can be read and contains `config`."""
    try:
        return config_to_dict(read_config(path).resolved()) == config_to_dict(config.resolved())
    except ConfigError:
        return False


def data_digest(data: Data) -> str:
    """Return the BLAKE2 digest of all values of all splits, or of the files that they are decoded from."""
    found = hashlib.blake2b(digest_size=32)
    for split in (data.train, data.valid, data.calib, data.test):
        x = split.x
        found.update(f"{x.dtype.str} {tuple(x.shape)} ".encode())
        for part in x.stored() if isinstance(x, Lazy) else (values for _, values in chunks(x)):
            found.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def check_same_data(checkpoint: Checkpoint, data: Data, digest: str) -> None:
    """Raise RunError if the data, whose `data_digest` is given, are not those of the checkpoint to resume from."""
    now = data.space
    try:
        before = Space.from_dict(checkpoint.about["space"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{checkpoint.path} is damaged: its description of the data is not valid ({error!r})") from error
    if checkpoint.state.n_data != len(data.train.x):
        return  # `Checkpoint.restore` says so
    for name in ("kind", "shape", "columns", "label_names"):
        was, found = getattr(before, name), getattr(now, name)
        if was != found:
            raise RunError(f"{checkpoint.path} is of other data: {name} was {was}, and is {found} now")
    for name in ("offset", "scale"):  # up to rounding: another machine may sum in another order
        was, found = getattr(before, name), getattr(now, name)
        if not np.allclose(was, found, rtol=1e-5, atol=1e-5 * float(np.max(before.scale))):
            raise RunError(f"{checkpoint.path} is of other data: the values to train on have changed since")
    if checkpoint.about.get("data", digest) != digest:  # earlier versions looked at some of the data, in "digest"
        raise RunError(f"{checkpoint.path} is of other data of this kind: the values to train on have changed since")


def as_before(saved: Config, wanted: Config) -> Config:
    """Return `wanted` with its open options as they are in `saved`."""
    before, asked = config_to_dict(saved.resolved()), config_to_dict(wanted.resolved())
    if before["method"]["method"] != asked["method"]["method"]:
        return wanted
    tables = {
        part: table | {name: before[part].get(name) for name, value in table.items() if value is None}
        for part, table in asked.items()
    }
    return config_from_dict(tables, "the options of a resumed run").resolved()


def check_resumable(saved: Config, wanted: Config) -> None:
    """Raise ConfigError if `wanted` differs from `saved` in an option that a resumed run cannot change."""
    for section, before in config_to_dict(saved.resolved()).items():
        after = config_to_dict(as_before(saved, wanted))[section]
        for name, value in before.items():
            if after.get(name) != value and name not in MAY_CHANGE[section]:
                raise ConfigError(
                    f"a resumed run cannot change {name} (from {value!r} to {after.get(name)!r}): start a new one"
                )
