"""Text files of a run: regular files of bounded size, and JSON with a digest of its content."""

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
"""Maximum size of a text file: a larger one is not ours and is not read into memory."""
DIGEST = "digest"
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def check_regular(found: os.stat_result) -> None:
    """Raise OSError for everything but regular files: reading a pipe would wait, and a device never ends."""
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'something else')}, expected a file")


def read_text(path: Path) -> bytes:
    """Return the content of a regular file of at most 16 MB; raise OSError for everything else."""
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
    """Return a table as JSON with its digest; NaN and infinity, which JSON does not have, become null."""
    value = json.loads(json.dumps(plain(value), allow_nan=False))  # as it will be read: keys are texts
    return (json.dumps({**value, DIGEST: digest_of(value)}, indent=2) + "\n").encode()


def unsealed(content: bytes) -> dict[str, Any]:
    """Return the table of `sealed` JSON; raise ValueError if the content is not what was written."""
    try:
        value = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is no JSON of ours") from error
    if not isinstance(value, dict) or value.pop(DIGEST, None) != digest_of(value):
        raise ValueError("its content does not match its digest")
    return value


def plain(value: Any) -> Any:
    """Return `value` with None for every number that JSON cannot represent."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digest_of(value: Any) -> str:
    """Return the SHA-256 of plain JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
