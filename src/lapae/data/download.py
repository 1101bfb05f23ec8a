"""Download of data sets: checksummed, resumable, with a progress bar."""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lapae.data.bounds import check_file
from lapae.data.progress import progress
from lapae.errors import DataError

TIMEOUT_SECONDS = 30
BLOCK_BYTES = 2**16


@dataclass(frozen=True)
class Download:
    """The files of a data set, and where to download them."""

    mirrors: tuple[str, ...]
    """Addresses of the files, tried in order; each ends with a slash."""
    files: dict[str, tuple[int, str]]
    """Size in bytes and SHA-256 of each file, by name."""


def missing(download: Download, folder: Path) -> list[str]:
    """Return the names of the files that are not in the folder."""
    return [name for name in download.files if not (folder / name).is_file()]


def fetch_files(download: Download, folder: Path) -> None:
    """Download all files of a data set into `folder`. Existing files are verified and kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made ({error.strerror}); choose another data folder") from error
    if absent := missing(download, folder):
        size = sum(download.files[name][0] for name in absent) / 1e6
        host = urllib.parse.urlsplit(download.mirrors[0]).hostname
        print(f"lapae: downloading {size:.1f} MB from {host} to {folder}", file=sys.stderr)
    for name, (size, digest) in download.files.items():
        path = folder / name
        if path.exists():
            check_file(path)
            if _sha256(path) != digest:
                came = f"{path}: its SHA-256 is {_sha256(path)}, expected {digest}"
                raise DataError(f"{came}; remove the file to have it fetched again")
            continue
        _fetch(download, path, size, digest)


def _fetch(download: Download, path: Path, size: int, digest: str) -> None:
    """Download one file from the first mirror that has it complete."""
    part = path.with_name(path.name + ".part")
    failures = []
    for mirror in download.mirrors:
        url = mirror + path.name
        # a second round starts anew where what an earlier, broken download left behind was not sound
        for _ in range(2):
            resumed = part.exists()
            try:
                with progress(path.name, size, unit_bytes=True) as advance:
                    _receive(url, part, size, advance)
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                failures.append(f"{url}: {getattr(error, 'reason', None) or error}")
                break
            if _sha256(part) == digest:
                os.replace(part, path)
                return
            part.unlink()
            if not resumed:
                failures.append(f"{url}: the file that came has the wrong SHA-256, expected {digest}")
                break
    names = ", ".join(missing(download, path.parent))
    reasons = "\n  ".join(failures)
    raise DataError(f"could not download {path.name}. Put these files into {path.parent}: {names}\n  {reasons}")


def _receive(url: str, part: Path, size: int, advance: Callable[[int], None]) -> None:
    """Append the missing bytes to `part`, up to `size` bytes; it is kept if the connection breaks."""
    have = part.stat().st_size if part.exists() else 0
    if have >= size:
        return  # the checksum decides
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:
        if have and not (reply.status == 206 and reply.headers.get("Content-Range", "").startswith(f"bytes {have}-")):
            have = 0  # the server sends the whole file
        advance(have)
        with part.open("ab" if have else "wb") as file:
            while have < size and (block := reply.read(min(BLOCK_BYTES, size - have))):
                file.write(block)
                have += len(block)
                advance(len(block))
            file.flush()
            os.fsync(file.fileno())
    if have < size:
        raise ConnectionError(f"the connection ended after {have:,} of {size:,} bytes; try again to continue")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
