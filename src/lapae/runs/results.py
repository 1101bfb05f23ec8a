"""Results of tasks, kept by the run: `tasks/<task>.json` with numbers and a table, and pictures in `figures/`."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lapae.errors import RunError
from lapae.runs.files import make_folder, sync_folder, write_whole
from lapae.runs.numbers import number
from lapae.runs.run import Run
from lapae.runs.texts import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TASKS, FIGURES = "tasks", "figures"
INK = "#80808a"
"""Colour of text and lines in saved pictures with a transparent background: legible on white and on black."""


@dataclass(frozen=True)
class Table:
    """The most important numbers. Cells are text, numbers or None."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]

    @classmethod
    def by_name(cls, parts: Mapping[str, Mapping[str, Any]]) -> Table:
        """Return a table with a row for each name and a column for each value."""
        columns = list(dict.fromkeys(key for values in parts.values() for key in values))
        rows = [(name, *(values.get(key) for key in columns)) for name, values in parts.items()]
        return cls(("", *(column.replace("_", " ") for column in columns)), rows)

    def texts(self) -> list[tuple[str, ...]]:
        """Return the rows as formatted text."""
        return [tuple(number(cell) for cell in row) for row in self.rows]

    def __str__(self) -> str:
        rows = [self.columns, *self.texts()]
        widths = [max(len(row[c]) for row in rows) for c in range(len(self.columns))]
        lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)


class Result(Protocol):
    """Result of a task."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain JSON types."""
        ...

    def figures(self) -> dict[str, Figure]:
        """Return pictures by file name."""
        ...

    def table(self) -> Table:
        """Return the most important numbers."""
        ...


@dataclass(frozen=True)
class Record:
    """A task result as it is stored in a run."""

    task: str
    options: dict[str, Any]
    result: dict[str, Any]
    figures: list[str]
    """File names in `figures/`."""
    seconds: float | None
    table: Table


def save_result(run: Run, task: str, options: Any, result: Result, seconds: float | None = None) -> Record:
    """Write a result and its pictures, each file whole; pictures of an earlier result of the task are removed.

    `options` is the dataclass of the task's options, or a mapping of them.
    """
    for folder in (TASKS, FIGURES):
        make_folder(run / folder)
    earlier = next((record.figures for record in load_results(run) if record.task == task), [])
    names: list[str] = []
    for name, figure in result.figures().items():
        file = f"{file_name(name, taken=names)}.svg"
        write_whole(run / FIGURES / file, svg(figure))
        names.append(file)
    values: dict[str, Any] = dict(options) if isinstance(options, Mapping) else asdict(options)
    record = Record(task, plain(values), plain(result.to_dict()), names, seconds, result.table())
    run.write_json(f"{TASKS}/{task}.json", asdict(record))
    for gone in set(earlier) - set(names):
        (run / FIGURES / gone).unlink(missing_ok=True)
    sync_folder(run / FIGURES)
    return record


def load_results(run: Run) -> list[Record]:
    """Return all task results of a run, by name; a damaged or foreign file raises an error that names it."""
    records = []
    for path in sorted((run / TASKS).glob("*.json")):
        try:
            records.append(_read(run.read_json(f"{TASKS}/{path.name}")))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunError(f"{path} is not a task result: {error}") from error
    return records


def _read(values: dict[str, Any]) -> Record:
    """Return the record of a file."""
    if not isinstance(values["result"], dict) or not all(_is_file_name(name) for name in values["figures"]):
        raise ValueError("result is no table, or figures are no file names")
    table = values.pop("table")
    table = Table(tuple(table["columns"]), table["rows"])
    if any(len(row) != len(table.columns) for row in table.rows):
        raise ValueError("the rows of its table differ in length")
    return Record(**values, table=table)


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name and name not in ("", ".", "..")


def file_name(name: str, taken: Sequence[str] = ()) -> str:
    """Return a safe file name, without suffix, for a name with any content, such as a path."""
    stem = re.sub(r"[^\w.-]+", "_", name).strip("._")[-80:] or "figure"
    count, found = 2, stem
    while any(Path(other).stem == found for other in taken):
        found, count = f"{stem}-{count}", count + 1
    return found


def svg(figure: Figure) -> bytes:
    """Return a vector picture on a transparent background, with text and lines in a grey that is legible on white and
    black."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_color(INK)  # pyright: ignore[reportAttributeAccessIssue]
    for axes in figure.axes:
        axes.patch.set_alpha(0)
        axes.tick_params(colors=INK, which="both")
        for spine in axes.spines.values():
            spine.set_color(INK)
            spine.set_visible(spine.spine_type not in ("top", "right"))
        for image in axes.images:
            image.set_interpolation("none")  # pixels as they are: the browser scales them
        legend = axes.get_legend()
        if legend is not None:
            legend.get_frame().set_alpha(0)
    file = io.BytesIO()
    # texts stay texts, and the same figure has the same bytes
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "lapae"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()
