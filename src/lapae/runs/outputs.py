"""Results of a command, written block by block under a temporary name and renamed at the end."""

from __future__ import annotations

import csv
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import numpy as np

from lapae.runs.files import whole


@contextmanager
def csv_rows(path: Path, header: Sequence[str] | None, delimiter: str = ",") -> Iterator[Any]:
    """Yield a function that writes rows (lists of cells) to a .csv file; floats are written so that they are read back
    exactly."""
    with whole(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        if header is not None:
            writer.writerow(header)
        yield writer.writerows


@contextmanager
def parquet_rows(path: Path, names: Sequence[str]) -> Iterator[Any]:
    """Yield a function that writes frames of one schema to a .parquet file, under `names`."""
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]

    with whole(path) as temporary:
        writer: Any = None

        def write(frame: Any) -> None:
            nonlocal writer
            table = pa.Table.from_pandas(frame.set_axis(list(names), axis=1), preserve_index=False)
            writer = writer or parquet.ParquetWriter(temporary, table.schema)
            writer.write_table(table.cast(writer.schema))

        try:
            yield write
        finally:
            if writer is not None:
                writer.close()


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays to an .npz file, or only the first one to a .npy file."""
    with whole(path) as temporary, temporary.open("wb") as file, _uninterrupted():
        if path.suffix.lower() == ".npy":
            np.save(file, next(iter(arrays.values())))
        else:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay signals until the body has ended, because an exception within zipfile causes further errors."""
    if current_thread() is not main_thread():  # signals are the main thread's
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
    for number in came[:1]:
        signal.raise_signal(number)


def image_bytes(x: np.ndarray, most: float) -> np.ndarray:
    """Return images (..., C, H, W) from 0 to `most` as uint8 (..., H, W, C), or (..., H, W) if C is 1."""
    pixels = np.moveaxis(np.clip(np.rint(x * (255 / most)), 0, 255).astype(np.uint8), -3, -1)
    return pixels[..., 0] if pixels.shape[-1] == 1 else pixels


def save_image(path: Path, pixels: np.ndarray) -> None:
    """Write one image (H, W) or (H, W, C) as a .png file; `path` may be a temporary name."""
    from PIL import Image

    with path.open("wb") as file:
        Image.fromarray(pixels).save(file, format="PNG")


SEEN, GAP = 80, 4
"""Minimum side of an image in a picture of several, and the gap between two, in pixels."""


def grid(images: np.ndarray) -> np.ndarray:
    """Return images (n, H, W[, C]) as a square grid on white; small ones are enlarged."""
    factor = max(1, -(-SEEN // min(images.shape[1:3])))
    images = images.repeat(factor, 1).repeat(factor, 2)
    n, height, width = images.shape[:3]
    columns = int(np.ceil(np.sqrt(n)))
    rows = -(-n // columns)
    sheet = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, *images.shape[3:]), 255, np.uint8)
    for i, image in enumerate(images):
        top, left = GAP + (i // columns) * (height + GAP), GAP + (i % columns) * (width + GAP)
        sheet[top : top + height, left : left + width] = image
    return sheet
