"""Limits of what may be read: regular files, and no more than fits into memory."""

from __future__ import annotations

import os
from pathlib import Path

from lapae.errors import DataError
from lapae.runs.texts import check_regular

SHARE = 0.8
"""Share of the free memory that data may use."""


def check_file(path: Path) -> os.stat_result:
    """Return the status of a regular file; raise DataError for anything else."""
    try:
        found = path.stat()
        check_regular(found)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return found


def check_memory(where: str | Path, n_bytes: int, advice: str) -> None:
    """Raise DataError if there is not enough memory for `n_bytes`, before it is allocated."""
    free = free_memory()
    if free is not None and n_bytes > SHARE * free:
        raise DataError(f"{where}: {_giga(n_bytes)} unpacked, and {_giga(free)} of memory are free; {advice}")


def free_memory() -> int | None:
    """Return the bytes that are available without swapping, within the limit of a container; None if unknown."""
    found = []
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found += [1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):
        pass
    try:
        limit, used = (Path("/sys/fs/cgroup", name).read_text() for name in ("memory.max", "memory.current"))
        found.append(max(0, int(limit) - int(used)))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        pass
    return min(found, default=None)


def _giga(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:,.1f} GB"
