"""One function that returns data: a name, a file or a folder in, four splits out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lapae.data.arrays import read_npy, read_npz
from lapae.data.celeba import HOW_TO_GET, missing_celeba, read_celeba
from lapae.data.data import Data
from lapae.data.digits import read_digits
from lapae.data.download import fetch_files, missing
from lapae.data.images import read_images
from lapae.data.mnist import DOWNLOADS, read_mnist
from lapae.data.places import data_folder
from lapae.data.source import Records
from lapae.data.table import read_csv
from lapae.errors import DataError, did_you_mean

DESCRIPTIONS = {
    "digits": "1,797 handwritten digits, 8x8 gray, 10 classes; comes with scikit-learn",
    "mnist": "70,000 handwritten digits, 28x28 gray, 10 classes",
    "fashion_mnist": "70,000 pieces of clothing, 28x28 gray, 10 classes",
    "celeba": "202,599 faces, 64x64 colour, 40 attributes; fetched by hand",
}
LARGEST_IMAGE_SIZE = 4096
SUFFIXES = (".npy", ".npz", ".csv")


def load(
    source: str | Path,
    *,
    data_dir: str | Path | None = None,
    validation: float | int | None = None,
    calibration: float | int | None = None,
    test: float | int | None = None,
    seed: int = 0,
    label_column: str | int | None = None,
    image_size: int | None = None,
    allow_nan: bool = False,
    skip_bad: bool = False,
    limit: int | None = None,
) -> Data:
    """Load a data set and split it.

    source: a name (digits, mnist, fashion_mnist, celeba), a .npy, .npz or .csv file, or a folder of images. A `Path`
        is never a name.
    data_dir: where the named sets lie, or are downloaded to; else `$LAPAE_DATA`, else `~/.cache/lapae/data`.
    validation, calibration, test: fractions, or counts; where not given by the rules of `lapae.data.splits`. Sets
        with splits of their own keep them.
    seed: of the splits.
    label_column: the column of a .csv that holds the classes, by name or by number from 0.
    image_size: height and width that the images of a folder, or of CelebA, are resized to.
    allow_nan: take NaN, and empty cells of a .csv, as missing values.
    skip_bad: leave out images of a folder that cannot be read, with a warning each.
    limit: use at most this many data of each split.
    """
    records = _read(source, data_folder(data_dir), label_column, image_size, allow_nan, skip_bad)
    options = {"validation": validation, "calibration": calibration, "test": test, "seed": seed, "limit": limit}
    try:
        return Data.divide(records, **options)
    except DataError as error:
        raise DataError(f"{source}: {error}") from error


def _read(
    source: str | Path,
    folder: Path,
    label_column: str | int | None,
    image_size: int | None,
    allow_nan: bool,
    skip_bad: bool,
) -> Records:
    """Find the reader of a source. An option that has no meaning for it is an error, not ignored."""
    path = Path(source).expanduser()
    name = source if isinstance(source, str) and source in DESCRIPTIONS else None
    if name is None and not path.exists():
        hint = did_you_mean(str(source), DESCRIPTIONS)
        raise DataError(
            f"{source}: no such file, folder or data set{hint}; expected one of {', '.join(DESCRIPTIONS)}, "
            f"a {', '.join(SUFFIXES)} file, or a folder of images"
        )
    suffix = "" if name else path.suffix.lower()
    is_folder = not name and path.is_dir()
    if label_column is not None and (suffix != ".csv" or is_folder):
        raise DataError(f"{source}: label_column={label_column!r} is for .csv files")
    if image_size is not None and not is_folder and name != "celeba":
        raise DataError(f"{source}: image_size={image_size} is for folders of images and for celeba")
    if image_size is not None and not 1 <= image_size <= LARGEST_IMAGE_SIZE:
        raise DataError(f"image_size must be from 1 to {LARGEST_IMAGE_SIZE}, got {image_size}")
    if skip_bad and not is_folder:
        raise DataError(f"{source}: skip_bad is for folders of images")
    if name:
        return _read_named(name, folder / name, image_size)
    if is_folder:
        return read_images(path, image_size, skip_bad=skip_bad)
    if suffix == ".csv":
        return read_csv(path, label_column=label_column, allow_nan=allow_nan)
    if suffix in (".npy", ".npz"):
        return (read_npy if suffix == ".npy" else read_npz)(path, allow_nan=allow_nan)
    raise DataError(f"{source}: expected a file that ends in {', '.join(SUFFIXES)}, or a folder of images")


def _read_named(name: str, folder: Path, image_size: int | None) -> Records:
    if name == "digits":
        return read_digits()
    if name == "celeba":
        return read_celeba(folder, image_size)
    if missing(DOWNLOADS[name], folder):
        fetch_files(DOWNLOADS[name], folder)
    return read_mnist(folder, name)


def check_data(source: str) -> None:
    """DataError where a run is one of the estimator: its data are not to be found."""
    if source == "X":
        raise DataError(
            "this is a run of the estimator, which does not keep the data that it was fitted to: use --data"
        )


@dataclass(frozen=True)
class DataSet:
    """A named data set, as `lapae data` lists it."""

    name: str
    description: str
    present: bool
    where: Path | None
    """Its folder, there or not; None for data that come with a package."""


def data_sets(data_dir: str | Path | None = None) -> list[DataSet]:
    """All named data sets, and whether they are there."""
    folder = data_folder(data_dir)
    return [
        DataSet(name, description, _present(name, folder / name), None if name == "digits" else folder / name)
        for name, description in DESCRIPTIONS.items()
    ]


def fetch(name: str, data_dir: str | Path | None = None) -> Path | None:
    """Download a named data set, or verify the checksums of the files that are there. Returns its folder."""
    if name not in DESCRIPTIONS:
        raise DataError(f"no data set {name!r}{did_you_mean(name, DESCRIPTIONS)}; there are {', '.join(DESCRIPTIONS)}")
    if name == "digits":
        return None
    folder = data_folder(data_dir) / name
    if name in DOWNLOADS:
        fetch_files(DOWNLOADS[name], folder)
    elif missing_celeba(folder):
        raise DataError(HOW_TO_GET.format(folder=folder))
    return folder


def _present(name: str, folder: Path) -> bool:
    if name == "celeba":
        return not missing_celeba(folder)
    return name == "digits" or not missing(DOWNLOADS[name], folder)
