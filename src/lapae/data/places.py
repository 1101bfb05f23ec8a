"""Where data sets lie, and where decoded images are kept."""

from __future__ import annotations

import os
from pathlib import Path

DATA_VARIABLE = "LAPAE_DATA"
CACHE_VARIABLE = "LAPAE_CACHE"


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The folder of the named sets: the argument, else `$LAPAE_DATA`, else `~/.cache/lapae/data`."""
    if data_dir is None:
        data_dir = os.environ.get(DATA_VARIABLE) or Path("~/.cache/lapae/data")
    return Path(data_dir).expanduser()


def cache_folder() -> Path:
    """The folder of decoded images, `$LAPAE_CACHE` or `~/.cache/lapae`: apart from the data, which may be read-only."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/lapae").expanduser()
