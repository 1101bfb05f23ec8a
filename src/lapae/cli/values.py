"""Values that a model predicts, written in the format of the input together with the ends of their intervals.

`lapae impute` predicts those that are missing, `lapae reconstruct` all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lapae.cli.new_data import UNNAMED, Intake, Many, Out, Run, Source, check_missing, check_out, finish, open_source
from lapae.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from lapae.data import Block, Reader
    from lapae.data.table import TableReader
    from lapae.model import Model
    from lapae.space import Column, Space

PARQUET = (".parquet", ".pq")
ARRAYS = (".npy", ".npz")
FORMATS = (".csv", ".tsv", *PARQUET, *ARRAYS)
ENDS = ("low", "high")


@dataclass(frozen=True)
class ValuesCommand:
    """A command that predicts values."""

    run: Run
    """Folder of a trained run."""
    input: Source
    """.csv, .parquet, .npy or .npz file, image, or folder of images; or many tables: a folder or a glob in quotes."""
    out: Out
    """File of the same type to write, or a folder for images; .npz for arrays with intervals; for many tables a folder,
    which will contain a .parquet file for each."""
    options: Annotated[Intake, UNNAMED] = field(default_factory=Intake)
    many: Annotated[Many, UNNAMED] = field(default_factory=Many)


@dataclass(frozen=True)
class Made:
    """A block of data with the values that the model predicts."""

    block: Block
    x: np.ndarray
    """(B, *shape) in storage units."""
    ours: np.ndarray
    """(B, *shape): whether a value was predicted by the model."""
    ends: tuple[np.ndarray, np.ndarray] | None = None
    """Where the values lie: (low, high)."""


Make = Callable[["Model", "np.ndarray"], tuple[Any, Any, Any]]
"""Function of a model and data (B, *shape) that returns x, ours and ends of `Made`."""


def write_values(
    command: ValuesCommand,
    open_model: Callable[[], Model],
    make: Make,
    done: str,
    level: float | None,
    *,
    whole: bool = True,
) -> int:
    """Write what `make` returns for the input, in the format of the input.

    Args:
        command: the input and the output.
        open_model: returns the trained model; called after the output has been checked.
        make: predicts the values of a block of data.
        done: what was done to the values, such as "imputed".
        level: of the intervals, if any.
        whole: whether predictions of whole numbers are whole.
    """
    out, options = command.out, command.options
    if level is not None and not 0 < level < 1:
        raise ConfigError(f"level = {level}: expected a number between 0 and 1, such as 0.9")
    if command.input.is_dir():
        if out.suffix:
            raise ConfigError(f"{out}: the input is a folder of images, expected a folder to write")
    else:
        suffix = command.input.suffix.lower()
        if command.input.is_symlink():
            from lapae.data.opening import format_of

            suffix = format_of(command.input)
        suffix = ".npz" if suffix in ARRAYS and level is not None else suffix
        check_out(out, command.input, (suffix if suffix in FORMATS else ".png",))
    from lapae.data.arrays import ArrayReader
    from lapae.data.table import TableReader

    model = open_model()
    if model.space.features is not None:
        raise ConfigError("a run of features cannot reconstruct or impute pixels: train one without --features")
    source = open_source(command.input, model, options, alpha=True, written=True)
    blocks = _made(model, source, make)
    if source.is_series:
        from lapae.cli.steps import made_steps

        blocks = made_steps(source, blocks)
    elif model.space.tile:
        from lapae.cli.tiles import made_images

        blocks = made_images(blocks)
    n = made = 0

    def counted() -> Iterator[Made]:
        nonlocal n, made
        for block in blocks:
            n, made = n + len(block.x), made + int(block.ours.sum())
            yield block

    if isinstance(source, TableReader):
        write_table(source, out, counted(), ends=level is not None, whole=whole)
    elif isinstance(source, ArrayReader):
        write_array(source, out, counted())
    else:
        write_images(out, counted(), single=not command.input.is_dir(), space=model.space)
    return finish(source, out, n, options, said=None, **{done: made})


def _made(model: Model, source: Reader, make: Make) -> Iterator[Made]:
    from lapae.data.progress import progress

    with progress("writing", source.size) as advance:
        for block in source.blocks(advance):
            check_missing(model, block, source.path)
            yield Made(block, *make(model, block.x))


def write_table(source: TableReader, out: Path, blocks: Iterator[Made], *, ends: bool, whole: bool = True) -> None:
    """Write a table: given cells as they were, predicted ones in the type of their column (as real numbers if not
    `whole`). With `ends`, columns of numbers are followed by the ends of their intervals; both ends of a given value
    are the value."""
    import pandas as pd

    from lapae.runs.outputs import csv_rows, parquet_rows
    from lapae.space.columns import WITH_INTERVALS
    from lapae.space.frames import cells, uncode

    csv = out.suffix.lower() not in PARQUET
    features = {place: (i, source.columns[i]) for i, place in enumerate(source.features)}
    between = {place for place, (_, column) in features.items() if ends and column.kind in WITH_INTERVALS}
    names = [n for i, name in enumerate(source.names) for n in (name, *(f"{name}_{e}" for e in ENDS if i in between))]

    def as_real(column: Column) -> Column:
        numbers = column.kind == "count" or (column.kind == "boolean" and not column.in_words)
        return replace(column, kind="number", dtype="float64") if numbers else column

    def written(values: np.ndarray, column: Column) -> list[Any]:
        return cells(values, column, source.file.decimal) if csv else uncode(values, column).tolist()

    def shown(made: Made) -> Iterator[Any]:
        """The columns to write."""
        frame = made.block.written
        for place in range(frame.shape[1]):
            if place not in features:
                yield frame[place]
                continue
            i, column = features[place]
            ours = made.ours[:, i]
            if ours.any():
                frame[place] = frame[place].astype(object) if csv else frame[place]
                frame.iloc[ours.nonzero()[0], place] = written(made.x[ours, i], column if whole else as_real(column))
            yield frame[place]
            real = as_real(column)
            for values in (made.ends or ()) if place in between else ():
                end = pd.Series(written(values[:, i], real), index=frame.index)
                yield end.where(pd.Series(ours, index=frame.index), frame[place]) if csv else end

    header = names if source.header is not None else None
    with csv_rows(out, header, source.file.delimiter) if csv else parquet_rows(out, names) as write:
        for made in blocks:
            frame = pd.concat(list(shown(made)), axis=1)
            write(frame.to_numpy().tolist() if csv else frame)


def write_array(source: Any, out: Path, blocks: Iterator[Made]) -> None:
    """Write an array with the shape and type of the input; an .npz file also has the arrays low and high, if any."""
    import numpy as np

    from lapae.runs.files import npy_rows
    from lapae.runs.outputs import write_arrays

    shape, kind = source.raw.shape[1:], source.raw.dtype

    def as_given(x: np.ndarray, kind: Any = kind) -> np.ndarray:
        moved = x
        if x.shape[1:] != shape and len(shape) == 3:  # the channel axis differs from training
            pixels = source.space.arrange(x)
            moved = pixels if pixels.shape[1:] == shape else np.moveaxis(pixels, 1, -1)
        if kind.kind in "ui" and x.dtype.kind == "f":
            moved = np.clip(np.rint(moved), np.iinfo(kind).min, np.iinfo(kind).max)
        return moved.reshape(len(x), *shape).astype(kind, copy=False)

    parts: dict[str, list] = {"x": []}
    one = out.suffix.lower() == ".npy"
    with npy_rows(out, source.size) if one else nullcontext(parts["x"].append) as write:
        for block in blocks:
            write(as_given(block.x))
            for name, values in zip(ENDS, block.ends or (), strict=False):
                parts.setdefault(name, []).append(as_given(values, np.result_type(kind, np.float32)))
    if not one:
        write_arrays(out, {name: np.concatenate(values) for name, values in parts.items() if values})


def write_images(out: Path, blocks: Iterator[Made], *, single: bool, space: Space) -> None:
    """Write a .png for each image under its name; the names of the ends of intervals end in _low and _high."""
    from lapae.runs.files import whole, whole_folder
    from lapae.runs.outputs import image_bytes, save_image

    with ExitStack() as places:
        root = None if single else places.enter_context(whole_folder(out))
        for block in blocks:
            sets = {"": block.x, **{f"_{name}": values for name, values in zip(ENDS, block.ends or (), strict=False)}}
            for suffix, values in sets.items():
                pixels = image_bytes(space.arrange(values), space.most)
                for (name,), image in zip(block.block.cells, pixels, strict=True):
                    file = Path(name)
                    if root is None:
                        target = places.enter_context(whole(out.with_stem(out.stem + suffix)))
                    else:
                        target = (root / file).with_name(f"{file.stem}{suffix}.png")
                        target.parent.mkdir(parents=True, exist_ok=True)
                        if target.exists():
                            raise ConfigError(f"two images would be written as {target.relative_to(root)}: rename one")
                    save_image(target, image)
