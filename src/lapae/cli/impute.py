"""`lapae impute`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lapae.cli.new_data import (
    UNNAMED,
    Intake,
    Out,
    Run,
    Source,
    check_missing,
    check_out,
    finish,
    open_model,
    open_source,
)
from lapae.cli.parsing import parse
from lapae.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from lapae.data import Block, Reader
    from lapae.data.table import TableReader
    from lapae.model import Model

PARQUET = (".parquet", ".pq")
FORMATS = (".csv", ".tsv", *PARQUET, ".npy", ".npz")


@dataclass(frozen=True)
class ImputeCommand:
    """Fill in missing values of new data: empty cells or NaN in a table, NaN in an array, transparent pixels of images.

    The output has the format of the input: a table keeps its columns, its order and every cell that was there; a folder
    of images gives a folder of .png images.
    """

    run: Run
    """Folder of a trained run."""
    input: Source
    """.csv, .parquet, .npy or .npz file, image, or folder of images."""
    out: Out
    """File of the same kind to write, or a folder for images."""
    options: Annotated[Intake, UNNAMED] = field(default_factory=Intake)


def main(arguments: Sequence[str]) -> int:
    command: ImputeCommand = parse(ImputeCommand, arguments, "lapae impute")
    out, options = command.out, command.options
    if command.input.is_dir():
        if out.suffix:
            raise ConfigError(f"{out}: the input is a folder of images, expected a folder to write")
    else:
        suffix = command.input.suffix.lower()
        check_out(out, command.input, (suffix if suffix in FORMATS else ".png",))
    from lapae.data.arrays import ArrayReader
    from lapae.data.table import TableReader

    model = open_model(command.run, options)
    if options.seed is not None:
        model.config = replace(model.config, train=replace(model.config.train, seed=options.seed))
    source = open_source(command.input, model, options, alpha=True, written=True)
    blocks = filled(model, source)
    if source.is_series:
        from lapae.cli.steps import filled_steps

        blocks = filled_steps(source, blocks)
    if isinstance(source, TableReader):
        n, holes = write_table(source, out, blocks)
    elif isinstance(source, ArrayReader):
        n, holes = write_array(source, out, blocks)
    else:
        n, holes = write_images(out, blocks, single=not command.input.is_dir(), model=model)
    return finish(source, out, n, options, imputed=holes)


def filled(model: Model, source: Reader) -> Iterator[tuple[Block, np.ndarray, np.ndarray]]:
    """Blocks, their data (B, *shape) in storage units without a hole, and where the holes were."""
    import numpy as np

    from lapae.data.progress import progress

    with progress("imputing", source.size) as advance:
        for block in source.blocks(advance):
            check_missing(model, block, source.path)
            x = block.x
            missing = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
            rows = missing.reshape(len(x), -1).any(1)
            if rows.any():
                x = x.copy()
                x[rows] = model.impute(x[rows])
            yield block, x, missing


def write_table(source: TableReader, out: Path, blocks: Iterator[Any]) -> tuple[int, int]:
    """Cells that were there as they were, the others in the type of their column."""
    from lapae.runs.outputs import csv_rows, parquet_rows
    from lapae.space.frames import cells, uncode

    columns = source.columns
    n = holes = 0
    csv = out.suffix.lower() not in PARQUET
    with csv_rows(out, source.header, source.file.delimiter) if csv else parquet_rows(out, source.names) as write:
        for block, x, missing in blocks:
            frame = block.written
            for i, (place, column) in enumerate(zip(source.features, columns, strict=True)):
                gone = missing[:, i]
                if gone.any():
                    made = x[gone, i]
                    values = cells(made, column, source.file.decimal) if csv else uncode(made, column).tolist()
                    frame[place] = frame[place].astype(object) if csv else frame[place]
                    frame.iloc[gone.nonzero()[0], place] = values
            write(frame.to_numpy().tolist() if csv else frame)
            n, holes = n + len(x), holes + int(missing.sum())
    return n, holes


def write_array(source: Any, out: Path, blocks: Iterator[Any]) -> tuple[int, int]:
    """An array of the shape and the type of the input's."""
    import numpy as np

    from lapae.runs.files import npy_rows
    from lapae.runs.outputs import write_arrays

    n = holes = 0
    shape = source.raw.shape[1:]

    def as_given(x: np.ndarray) -> np.ndarray:
        moved = x
        if x.shape[1:] != shape and len(shape) == 3:  # the channels lie elsewhere than in training
            pixels = source.space.arrange(x)
            moved = pixels if pixels.shape[1:] == shape else np.moveaxis(pixels, 1, -1)
        return moved.reshape(len(x), *shape).astype(source.raw.dtype, copy=False)

    parts = []
    with npy_rows(out, source.size) if out.suffix.lower() == ".npy" else _collect(parts) as write:
        for _, x, missing in blocks:
            write(as_given(x))
            n, holes = n + len(x), holes + int(missing.sum())
    if parts:
        write_arrays(out, {"x": np.concatenate(parts)})
    return n, holes


def _collect(parts: list) -> Any:
    from contextlib import nullcontext

    return nullcontext(parts.append)


def write_images(out: Path, blocks: Iterator[Any], *, single: bool, model: Model) -> tuple[int, int]:
    """A .png for each image, under its name."""

    from lapae.runs.files import whole, whole_folder
    from lapae.runs.outputs import image_bytes, save_image

    space = model.space
    n = holes = 0
    with (whole if single else whole_folder)(out) as place:
        for block, x, missing in blocks:
            for (name,), pixels in zip(block.cells, image_bytes(space.arrange(x), space.most), strict=True):
                file = Path(name)
                target = place if single else (place / file).with_suffix(".png")
                target.parent.mkdir(parents=True, exist_ok=True)
                if not single and target.exists():
                    raise ConfigError(f"two images would be written as {file.with_suffix('.png')}: rename one")
                save_image(target, pixels)
            n, holes = n + len(x), holes + int(missing.sum())
    return n, holes
