"""What the commands that use a trained run have in common: `embed`, `score`, `impute` and `sample`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from lapae.errors import ConfigError
from lapae.train.devices import own_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np

    from lapae.data import Block, Reader
    from lapae.model import Model

Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Source = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
Out = Annotated[Path, tyro.conf.arg(aliases=["-o"])]
UNNAMED = tyro.conf.arg(name="")
"""A group of options without a name of its own, in the flags (`--options.seed`) and in the help ("options options")."""


@dataclass(frozen=True)
class Device:
    """Device and random seed of a trained model."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if there is one."""
    seed: int | None = None
    """Seed of the networks drawn; default: that of training."""
    json: bool = False
    """Print one JSON object to stdout."""


@dataclass(frozen=True)
class PageCommand:
    """A command that makes a page about a run."""

    run: Run
    """Folder of a trained run."""
    data: Path | None = None
    """A file, or a folder of images, to look at instead of the data that the run was trained on."""
    data_dir: str | None = None
    """Folder of the named data sets, if it is not the one that the run was trained from."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if there is one."""


@dataclass(frozen=True)
class Intake(Device):
    """Handling of data that do not quite fit."""

    resize: bool = False
    """Scale images to the size that the model takes."""
    skip_bad: bool = False
    """Skip images that cannot be read, instead of stopping at the first."""
    any_range: bool = False
    """Accept tables and arrays even if half of their values (or of those of a column) lie 100 standard deviations or
    more from the training mean. This usually means different units, so by default such data are refused."""


@dataclass(frozen=True)
class PredictOptions(Intake):
    """Options of predictions."""

    predictive: Literal["mc", "linearized", "moments"] | None = None
    """How uncertainty is computed; default: as in the run."""
    n_samples: int | None = None
    """Number of networks that mc draws; default: as in the run."""


@dataclass(frozen=True)
class Rows:
    """What was found for a block of samples.

    Attributes:
        names: names of the cells.
        cells: the first cells of each row of the output (an index, a label; a file).
        found: values (B, …) of each quantity, by name.
        block: the samples.
    """

    names: list[str]
    cells: list[list[str]]
    found: dict[str, np.ndarray]
    block: Block | None = None


@dataclass(frozen=True)
class Many:
    """Tables in many files (INPUT is a folder or a glob in quotes, --out a folder)."""

    jobs: int = 1
    """Number of processes on this machine that share the parts of the input."""
    resume: bool = False
    """Complete the missing parts of the output folder after a job was killed."""
    engine: Literal["dask", "ray", "spark"] | None = None
    """Run on a cluster, whose workers must all be able to access the run, the input and the output."""
    address: str | None = None
    """Address of the scheduler of the engine; default: workers on this machine, as many as --jobs."""
    series: str | None = None
    """For a run that was trained on a series: the column that says to which series of a file a row belongs; the rows of
    a series must be together. Default: each file is one series."""
    time: str | None = None
    """Column by which the steps of a series are ordered; default: their order in the file."""


@dataclass(frozen=True)
class PredictCommand:
    """A command that predicts something for every sample."""

    run: Run
    """Folder of a trained run."""
    input: Source
    """.csv, .parquet, .npy or .npz file, image, or folder of images; or many tables: a folder or a glob in quotes."""
    out: Out
    """.csv, .npz or .npy file to write; for many tables a folder, which will contain a .parquet file for each."""
    options: Annotated[PredictOptions, UNNAMED] = field(default_factory=PredictOptions)
    many: Annotated[Many, UNNAMED] = field(default_factory=Many)

    def predictions(
        self, of: Callable[[Model, Any], dict[str, Any]], what: str, at_once: int | None = None
    ) -> tuple[Model, Reader, Iterator[Rows]]:
        """Return the model, the input, and what `of` returns for each block of at most `at_once` samples."""
        model = with_options(open_model(self.run, self.options), self.options)
        source = open_source(self.input, model, self.options)
        source.at_once = source.at_once if at_once is None else at_once
        return model, source, predicted(model, source, of, what)


def with_options(model: Model, options: PredictOptions) -> Model:
    """Return the model, predicting as the options say."""
    if options.n_samples is not None and options.n_samples < 1:
        raise ConfigError(f"n_samples = {options.n_samples}: expected at least 1")
    try:
        return model.predicting(predictive=options.predictive, n_samples=options.n_samples, seed=options.seed)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def open_model(run: Path, options: Device) -> Model:
    """Load the model of a run on the device of the options."""
    from lapae.storage import load_for_new_data

    return load_for_new_data(run, own_device(options.device))


def open_source(path: Path, model: Model, options: Intake, *, alpha: bool = False, written: bool = False) -> Reader:
    """Open the input of a command with its options."""
    from lapae.data import open_input

    how = {"resize": options.resize, "skip_bad": options.skip_bad, "any_range": options.any_range}
    return open_input(path, model.space, alpha=alpha, written=written, **how)


def check_missing(model: Model, block: Block, path: Path) -> None:
    """Raise DataError if values are missing and the likelihood does not accept that."""
    import numpy as np

    from lapae.data import DataError

    if not model.likelihood.missing and block.x.dtype.kind == "f" and np.isnan(block.x).any():
        raise DataError(f"{path}: has missing values, which the {model.config.model.likelihood} likelihood cannot take")


def predicted(model: Model, source: Reader, of: Callable[[Model, Any], dict[str, Any]], what: str) -> Iterator[Rows]:
    """Yield what `of` returns for the input, block by block, with a progress bar."""
    from lapae.data.progress import progress

    with progress(what, source.size) as advance:
        for block in source.blocks(advance):
            check_missing(model, block, source.path)
            try:
                found = of(model, block.x)
            except ValueError as error:
                raise ConfigError(str(error)) from error
            yield Rows(block.names, block.cells, found, block)


def warn_of_unobserved(model: Model, path: Path, blocks: Iterator[Rows]) -> Iterator[Rows]:
    """Yield blocks as they are, and at the end warn of columns or channels that have no value in any of them."""
    import warnings

    import numpy as np

    names = model.space.names or tuple(f"{i} (from 0)" for i in range(model.space.shape[-1]))
    known = np.full(len(names), model.space.kind == "image")
    some = False
    for rows in blocks:
        if not known.all() and rows.block is not None and len(rows.block.x):
            some = True
            known |= ~np.isnan(np.asarray(rows.block.x, float)).reshape(-1, len(known)).all(0)
        yield rows
    if some and not known.all():
        told = ", ".join(name for name, there in zip(names, known.tolist(), strict=True) if not there)
        warnings.warn(f"{path}: no value at all in {told}: it has no part in the scores", stacklevel=2)


def verdicts(p: Any, rate: float) -> list[str]:
    """Return cells of the column `outlier` for p-values (n,): 1 if and only if p <= rate, empty where p is NaN."""
    return ["" if value != value else str(int(value <= rate)) for value in p.tolist()]


def check_out(out: Path, source: Path, suffixes: tuple[str, ...]) -> str:
    """Return the suffix of the output; raise an error if it is none of `suffixes`, the input itself or not writable."""
    from lapae.runs.files import check_place

    if out.suffix.lower() not in suffixes:
        raise ConfigError(f"{out}: expected an output that ends in {', '.join(suffixes)}")
    if out.exists() and source.exists() and out.samefile(source):
        raise ConfigError(f"{out} is the input itself: choose another output")
    check_place(out)
    return out.suffix.lower()


def finish(source: Reader, out: Path, n: int, options: Device, *, said: str | None = None, **numbers: Any) -> int:
    """Print what was skipped and what was written: `said`, or the number of samples."""
    for message in source.skipped:
        print(f"lapae: skipped: {message}", file=sys.stderr)
    if options.json:
        print(json.dumps({"out": str(out), "n": n, "skipped": len(source.skipped), **numbers}))
    else:
        left = f", {len(source.skipped)} skipped" if source.skipped else ""
        print(f"{out}: {said or f'{n} samples'}{left}")
    return 0
