"""The reader that new data call for, by their name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lapae.data import DataError
from lapae.data.decode import SUFFIXES
from lapae.data.inputs.arrays import ArrayInput
from lapae.data.inputs.base import Input
from lapae.data.inputs.images import ImageInput
from lapae.data.inputs.tables import CsvInput

if TYPE_CHECKING:
    from lapae.model import Model


def open_input(
    source: str | Path,
    model: Model,
    *,
    resize: bool = False,
    skip_bad: bool = False,
    alpha: bool = False,
    any_colour: bool = False,
    any_range: bool = False,
) -> Input:
    """The data at `source` for `model`.

    `alpha`: pixels of an image that are transparent are missing. `any_colour`: a model of gray images takes colour ones
    too. `any_range`: the values of tables and arrays may be far from those of the training data.
    """
    path = Path(source).expanduser()
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    suffix = path.suffix.lower()
    if path.is_dir() or suffix in SUFFIXES:
        return ImageInput(path, model, resize=resize, skip_bad=skip_bad, alpha=alpha, any_colour=any_colour)
    if suffix == ".csv":
        return CsvInput(path, model, any_range=any_range)
    if suffix in (".npy", ".npz"):
        return ArrayInput(path, model, any_range=any_range)
    raise DataError(f"{path}: expected a .csv, .npy or .npz file, an image, or a folder of images")
