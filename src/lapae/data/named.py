"""Data sets with a name, and the registry that lists them.

Another package adds a set through the entry point group `lapae.datasets`. The entry's target is a `NamedSet`:

    [project.entry-points."lapae.datasets"]
    mine = "my_package:mine"        # mine = Entry("what it holds", "my_package.reading:MINE")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lapae.data.download import Download, fetch_files, missing
from lapae.data.source import Records
from lapae.errors import DataError
from lapae.registry import Entry, Registry


@dataclass(frozen=True)
class NamedSet:
    """A data set that can be named instead of a file. Its files are in a folder with its name."""

    read: Callable[..., Records]
    """Function of the folder, and of those options in `takes` that were given."""
    download: Download | None = None
    """Files to download; None for a set that comes with a package or is downloaded by hand."""
    by_hand: str = ""
    """How to get a set that is not downloaded; "{folder}" stands for its folder."""
    parts: tuple[str, ...] = ()
    """Names that the folder must contain for a set that is downloaded by hand."""
    takes: frozenset[str] = frozenset()
    """Options of `lapae.data.load` that it supports."""

    @property
    def has_folder(self) -> bool:
        """Whether it is in a folder and does not come with a package."""
        return self.download is not None or bool(self.parts)

    def missing(self, folder: Path) -> list[str]:
        """Return the names of the files that are not in the folder."""
        if self.download is not None:
            return missing(self.download, folder)
        return [name for name in self.parts if not (folder / name).exists()]

    def fetch(self, folder: Path) -> None:
        """Download the files, or verify the checksums of existing ones."""
        if self.download is not None:
            fetch_files(self.download, folder)
        elif lacking := self.missing(folder):
            raise DataError(f"{folder}: {', '.join(lacking)} not found. {self.by_hand.format(folder=folder)}")

    def records(self, folder: Path, **options: Any) -> Records:
        """Read the set, after downloading missing files."""
        if self.missing(folder):
            self.fetch(folder)
        return self.read(folder, **options)


DATASETS: Registry[Entry] = Registry(
    "data set",
    {
        "digits": Entry(
            "1,797 handwritten digits, 8x8 gray, 10 classes; comes with scikit-learn", "lapae.data.digits:DIGITS"
        )
    },
    group="lapae.datasets",
)
"""An entry leads to a `NamedSet`."""
