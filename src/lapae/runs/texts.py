"""Text files of a run: regular files of bounded size, and JSON that carries a digest of what it says."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
from pathlib import Path
from typing import Any

MOST_BYTES = 16 * 2**20
"""In a text file: what is larger is none of ours, and is not taken into memory."""
DIGEST = "digest"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def check_regular(found: os.stat_result) -> None:
    """OSError for all but a regular file: a pipe would be waited for, a device never ends."""
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, expected a file")


def read_text(path: Path) -> bytes:
    """The content of a regular file of at most 16 MB; an OSError for all else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_regular(os.fstat(descriptor))
        if os.fstat(descriptor).st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it is larger than {MOST_BYTES / 2**20:.0f} MB")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MOST_BYTES)
    finally:
        os.close(descriptor)


def sealed(value: dict[str, Any]) -> bytes:
    """A table as JSON with its digest; NaN and infinity, which JSON has not, become null."""
    value = json.loads(json.dumps(plain(value), allow_nan=False))  # as it will be read: keys are texts
    return (json.dumps({**value, DIGEST: _digest(value)}, indent=2) + "\n").encode()


def unsealed(content: bytes) -> dict[str, Any]:
    """Inverse of `sealed`; a ValueError where the content is not what was written."""
    try:
        value = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is no JSON of ours") from error
    if not isinstance(value, dict) or value.pop(DIGEST, None) != _digest(value):
        raise ValueError("its content does not match its digest")
    return value


def plain(value: Any) -> Any:
    """`value` with every number that JSON cannot write as None."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
