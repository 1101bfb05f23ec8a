"""Reads a sample from a file that was dropped on the page. Its type is found from its content, not from its name."""

from __future__ import annotations

from codecs import getincrementaldecoder
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from lapae.data import DataError, Reader, open_input
from lapae.data.arrays import open_npy
from lapae.data.image_files import read_header
from lapae.data.images import SKIP
from lapae.model import Model
from lapae.view.explore.requests import BadRequest

MOST_BYTES = 8 * 2**20
MOST_PIXELS = 2**24
"""Maximum number of pixels of an image: fewer than in a data set, because anyone may send one."""
MOST_LINE = 2**20
"""Maximum number of bytes of a row: millions of empty cells would fill the memory."""
MOST_UPLOADED_ROWS = 8192
"""Maximum number of rows of a file to choose from."""


class Upload(NamedTuple):
    """A sample of a file."""

    stored: np.ndarray
    """(*shape) in storage units, NaN where missing."""
    row: int
    n: int
    """Number of samples in the file, at most MOST_UPLOADED_ROWS."""
    note: str
    """What was done to make it fit."""


def read_upload(body: bytes, model: Model, row: int = 0) -> Upload:
    """Read sample `row` of a file: an image, a .csv table or a .npy array that fits the model."""
    if not body:
        raise BadRequest("the file is empty")
    suffix = _suffix(body)
    try:
        with TemporaryDirectory(prefix="lapae-") as folder:
            path = Path(folder) / f"upload{suffix}"
            path.write_bytes(body)
            try:
                note = _image_note(path, model) if suffix == ".png" else ""
                return _pick(_open(path, model), row, note)
            except DataError as error:
                told = str(error).replace(str(path), "the file").replace(SKIP, "")
                raise BadRequest(told) from None
    except MemoryError:
        raise BadRequest("the file is too large") from None
    except OSError as error:
        reason = error.strerror or error
        message = f"the file cannot be kept while it is read, in the temporary folder of this machine: {reason}"
        raise BadRequest(message, HTTPStatus.INSUFFICIENT_STORAGE) from None


def _suffix(body: bytes) -> str:
    if body.startswith(b"\x93NUMPY"):
        return ".npy"
    if body.startswith(b"PK\x03\x04"):
        raise BadRequest("an archive: expected an image, a .csv or a .npy file")
    if body[:2] in (b"P1", b"P2", b"P3") and body[2:3].isspace():
        return ".png"  # images written as text; any suffix of an image will do
    try:  # a letter may be cut in two at the end
        text = "\0" not in getincrementaldecoder("utf-8")().decode(body[:4096])
    except UnicodeDecodeError:
        text = False
    if text and max(map(len, body.split(b"\n"))) > MOST_LINE:
        raise BadRequest(f"a line of more than {MOST_LINE:,} bytes: expected a table")
    return ".csv" if text else ".png"


def _open(path: Path, model: Model) -> Reader:
    """Open the file as an input, without checking its values: how unusual they are is the question."""
    if path.suffix != ".npy":
        return open_input(path, model.space, resize=True, alpha=True, any_colour=True, any_range=True)
    try:
        return open_input(path, model.space, any_range=True)
    except DataError:
        raw = open_npy(path)
        shape = tuple(model.shape)
        single = {shape, shape[1:] if shape[0] == 1 else shape, (*shape[1:], shape[0])}
        if raw.shape not in single:
            raise
        np.save(path, np.array(raw)[None])  # one sample without a batch axis
        return open_input(path, model.space, any_range=True)


def _pick(source: Reader, row: int, note: str) -> Upload:
    parts: list[Any] = []
    n = 0
    for block in source.blocks(lambda done: None):
        parts.append(block.x)
        n += len(block.x)
        if n >= MOST_UPLOADED_ROWS:
            break
    if not n:
        raise DataError(f"{source.path}: holds no data")
    if row >= n:
        raise BadRequest(f"row {row}: the file has {n} samples, counted from 0")
    x = np.concatenate(parts)[row]
    stored = source.space.arrange(x[None])[0] if source.space.kind == "image" else x  # as the page has it
    return Upload(stored, row, min(n, MOST_UPLOADED_ROWS), note)


def _image_note(path: Path, model: Model) -> str:
    """Describe what is done to an image so that it fits."""
    header = read_header(path)
    height, width = header.size
    if height * width > MOST_PIXELS:
        raise DataError(f"{path}: {height}x{width} pixels: expected at most {MOST_PIXELS:,}")
    if len(model.shape) != 3:
        return ""
    done = []
    if header.size != tuple(model.shape[1:]):
        done.append(f"scaled from {height}x{width} to {model.shape[1]}x{model.shape[2]} pixels")
    if model.shape[0] == 1 and not header.gray:
        done.append("turned gray")
    return ", ".join(done)
