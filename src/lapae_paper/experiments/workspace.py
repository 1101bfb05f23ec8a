"""Working folder of experiments: trained models by configuration, data by name, results written whole.

A trial is trained once, in a run folder named after its configuration; a second experiment that asks for the same
trial, or the same experiment after an interruption, finds it there, finished or at its last checkpoint. What an
experiment measures of a model is kept as JSON: models that are measured may be deleted, and are not trained again.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lapae
from lapae import __version__
from lapae.config import Config, DataConfig
from lapae.errors import RunError
from lapae.runs import METRICS, Run, plain
from lapae.runs.files import make_folder, write_whole
from lapae.runs.texts import digest_of
from lapae_paper.experiments.base import Experiment, Size, Trial

if TYPE_CHECKING:
    from lapae.data import Data
    from lapae.model import Model

COMMIT_VARIABLE = "LAPAE_COMMIT"
DRAWN = ("picture", "scores", "drawn")
"""Parts of a measurement that are for figures: large, and no part of a record."""
NOT_IDENTITY = {
    "data": ("data_dir",),
    "method": ("pretrained", "predictive", "n_samples"),
    "train": ("device", "capture", "checkpoint_every", "tensorboard", "verbose"),
}
"""Options that say where and how a model is trained, and do not change the model."""


@dataclass
class Workspace:
    """Working folder and options of one experiment."""

    experiment: Experiment
    size: Size
    root: Path
    """Folder with `runs/`, `data/` and a folder for each experiment."""
    device: str = "auto"
    data_dir: str | None = None
    kept_only: bool = False
    """Whether to train and measure nothing: the plan is what has been measured, on any machine."""
    record: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """Measurements of a record to extend, by name in the plan, with `kept_only`; those in the folder come first."""
    _models: dict[str, Model] = field(default_factory=dict)
    _used: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Measurements that were asked for."""

    @cached_property
    def plan(self) -> Mapping[str, Trial]:
        """Return the trials to train, by name."""
        plan = self.experiment.plan(self.size)
        return {name: trial for name, trial in plan.items() if name in self._found_kept} if self.kept_only else plan

    @cached_property
    def _found_kept(self) -> dict[str, dict[str, Any]]:
        """Measurements by name in the plan, wherever they were made; of two, that of the newest file."""
        found = dict(self.record)
        for path in sorted(self.folder_of_measures.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            kept = _read(path)
            if kept is not None and "name" in kept:
                found[kept["name"]] = kept
        return found

    def rows(self) -> dict[str, dict[str, list[Any]]]:
        """Return what is measured of the models "ROW, seed N": by row and name, the values of all seeds but None."""
        found: dict[str, dict[str, list[Any]]] = {}
        for name in self.plan:
            row = found.setdefault(name.rpartition(", seed ")[0], {})
            for key, value in self.measured(name).items():
                if value is not None:
                    row.setdefault(key, []).append(value)
        return found

    def named(self, start: str) -> list[str]:
        """Return the names of the plan "start, seed N", by seed."""
        return [name for name in self.plan if name.rpartition(", seed ")[0] == start]

    def model(self, name: str) -> Model:
        """Return the model with a name in the plan, on the device; it is trained now if it is not yet."""
        if name not in self._models:
            self._models = {name: self._load(self.plan[name], self.torch_device)}  # keeps one
        return self._models[name]

    def _load(self, trial: Trial, device: str) -> Model:
        """Load a trained model; if its files are damaged, it is made again, from its checkpoint if possible."""
        from lapae.storage import load_run

        self.fit(trial)
        folder = self.folder(trial)
        try:
            return load_run(folder, device=device)
        except RunError as error:
            warnings.warn(f"{error}; it is made again", stacklevel=2)
        (folder / METRICS).unlink(missing_ok=True)  # its presence says that there is nothing to do
        self.fit(trial)
        return load_run(folder, device=device)

    def measured(self, name: str) -> Any:
        """Return what the experiment measures of the model with a name, as plain JSON; measured now if it is not yet.

        Results of another machine or device are measured again, so that all come from one.
        """
        kept = self.kept(name)
        if kept is None:
            assert self.experiment.measure is not None
            path = self._measurement(name)
            found = json.loads(json.dumps(plain(self.experiment.measure(self, name, self.model(name)))))
            kept = {"name": name, "machine": self.machine, "commit": commit(), "date": _today()}
            kept |= {"digest": digest_of(found), "found": found}
            try:
                make_folder(path.parent)
                write_whole(path, json.dumps(kept).encode())
            except RunError as error:
                warnings.warn(f"{error}; measured again if this is interrupted", stacklevel=2)
        self._used[name] = kept
        return kept["found"]

    def kept(self, name: str) -> dict[str, Any] | None:
        """Return the measurement of a model that an earlier call has kept: "found" and by which "commit"."""
        if self.kept_only:
            return self._found_kept.get(name)
        kept = _read(self._measurement(name))
        return kept if kept is not None and kept["machine"] == self.machine else None

    def done(self, name: str) -> bool:
        """Whether nothing is left to do for the model with a name: it is measured, or trained and not to measure."""
        if self.experiment.measure is None:
            return Run(self.folder(self.plan[name])).finished
        return self.kept(name) is not None

    def _measurement(self, name: str) -> Path:
        return self.folder_of_measures / f"{key(self.plan[name])}.json"

    @property
    def measurements(self) -> dict[str, dict[str, Any]]:
        """Measurements that were asked for, by name in the plan, without what is for figures: what a record keeps."""
        return {
            name: {
                **{key: kept.get(key) for key in ("machine", "commit", "date")},
                "found": {key: value for key, value in kept["found"].items() if key not in DRAWN},
            }
            for name, kept in self._used.items()
        }

    @property
    def draws_all(self) -> bool:
        """Whether what is for figures is there: not if measurements of a record stand in for those of this folder."""
        return not any(kept is self.record.get(name) for name, kept in self._used.items())

    @property
    def made(self) -> dict[str, Any]:
        """Where the measurements come from: "machine", "commits" and last "date"; here and now if there are none."""
        used = list(self._used.values()) or [{"machine": self.machine, "commit": commit()}]
        return {
            "machine": "; ".join(sorted({kept["machine"] for kept in used})),
            "commits": sorted({kept.get("commit") or "unknown" for kept in used}),
            "date": max(kept.get("date", _today()) for kept in used),
        }

    @property
    def machine(self) -> str:
        import torch

        where = torch.cuda.get_device_name() if self.torch_device == "cuda" else f"{platform.machine()} CPU"
        return f"{where}, torch {torch.__version__}, lapae {__version__}"

    @property
    def folder_of_measures(self) -> Path:
        """Folder where an experiment keeps its measurements, one file per model."""
        return self.root / self.experiment.name / "measured"

    def forget(self) -> None:
        """Delete the measurements: the experiment will be repeated."""
        shutil.rmtree(self.folder_of_measures, ignore_errors=True)

    def fit(self, trial: Trial) -> None:
        """Train a trial in its run folder, from its last checkpoint if there is one, unless it is done."""
        from lapae.fit import fit

        folder = self.folder(trial)
        if Run(folder).finished:
            return
        if trial.start is not None:
            self._load(trial.start, "cpu")
        config, run = self._placed(trial), Run(folder)
        make_folder(folder)
        while True:
            try:
                with run.lock():
                    if not run.finished:  # by the process that held the lock
                        fit(config, run=run, resume=True)
                return
            except RunError as error:
                if "is in use" not in str(error):
                    raise
                time.sleep(1.0)

    def data(self, source: str | DataConfig) -> Data:
        """Return a data set of a plan, by name or as a trial configures it."""
        from lapae.fit import load_data

        return load_data(self._found(DataConfig(source=source) if isinstance(source, str) else source))

    def _found(self, config: DataConfig) -> DataConfig:
        """Return the configuration with the place of its files."""
        config = replace(config, calibration_fraction=0.0)  # the paper trains on all but the validation data
        if not self.size.quick:
            return replace(config, data_dir=self.data_dir)
        from lapae_paper.experiments.quick_data import place

        folder = self.root / "data"
        return replace(config, data_dir=str(folder), source=place(config.source, folder))

    def as_task(self) -> dict[str, Any]:
        """Return what another process needs to make this workspace."""
        places = {"root": str(self.root), "device": self.device, "data_dir": self.data_dir}
        return {"experiment": self.experiment.name, **asdict(self.size), **places}

    def folder(self, trial: Trial) -> Path:
        """Return the run folder of a trial."""
        return self.root / "runs" / key(trial)

    @property
    def torch_device(self) -> str:
        from lapae.train.devices import choose_device

        return choose_device(self.device)

    def _placed(self, trial: Trial) -> Config:
        """Return the configuration of a trial here: where its data are, its device, its pretrained run."""
        config = trial.config
        start = {} if trial.start is None else {"pretrained": str(self.folder(trial.start))}
        return replace(
            config,
            data=self._found(config.data),
            method=replace(config.method, **start),
            train=replace(config.train, device=self.device, verbose=False),
        )


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _read(path: Path) -> dict[str, Any] | None:
    """Read a measurement; None if there is none yet, or it is damaged."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        kept = json.loads(path.read_bytes())
        if kept["digest"] == digest_of(kept["found"]) and isinstance(kept["machine"], str):
            return kept
    return None


@cache
def commit() -> str | None:
    """Return the commit of the code that runs, with "+" if it was changed since; outside of a checkout $LAPAE_COMMIT.

    The variable serves machines that are sent the files of a commit without its history.
    """
    import subprocess

    source = Path(lapae.__file__).parents[1]
    if not (source.parent / ".git").exists():
        return os.environ.get(COMMIT_VARIABLE)
    git = ["git", "-C", str(source)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "."], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return head[:10] + ("+" if changed.strip() else "")


def key(trial: Trial) -> str:
    """Return a folder name that identifies a model: a readable part and a digest."""
    from lapae.runs.toml import config_to_dict

    values = config_to_dict(trial.config.resolved())
    for section, names in NOT_IDENTITY.items():
        for name in names:
            values[section].pop(name, None)
    start = None if trial.start is None else key(trial.start)
    identity = {"config": values, "start": start, "lapae": __version__}
    digest = digest_of(identity)[:10]
    config = trial.config
    parts = [config.data.source, config.model.network, config.method.method]
    parts += [config.method.hessian] if hasattr(config.method, "hessian") else []
    return "-".join([*parts, f"seed{config.train.seed}", digest])
