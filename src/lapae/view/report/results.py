"""Task results in a run: `tasks/<task>.json` and their pictures in `figures/`, and the tables that are made of them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapae.errors import RunError
from lapae.runs import Run, plain
from lapae.runs.files import sync_folder, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lapae.tasks import Result

TASKS, FIGURES = "tasks", "figures"
INK = "#80808a"
"""Of text and lines in saved pictures, whose ground is clear: it reads on white and on black."""


@dataclass(frozen=True)
class Table:
    """A few numbers as text."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Record:
    """A task result as it is kept in a run."""

    task: str
    options: dict[str, Any]
    result: dict[str, Any]
    figures: list[str]
    """File names in `figures/`."""
    seconds: float | None = None


def save_result(run: Run, task: str, options: Any, result: Result, seconds: float | None = None) -> Record:
    """Write a result and its pictures, each file whole; pictures of an earlier result of the task go."""
    for folder in (TASKS, FIGURES):
        try:
            (run / folder).mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot make the folder {run / folder}: {error.strerror}") from error
    earlier = next((record.figures for record in load_results(run) if record.task == task), [])
    names: list[str] = []
    for name, figure in result.figures().items():
        file = f"{file_name(name, taken=names)}.png"
        write_whole(run / FIGURES / file, png(figure))
        names.append(file)
    values: dict[str, Any] = dict(options) if isinstance(options, Mapping) else asdict(options)
    record = Record(task, plain(values), plain(result.to_dict()), names, seconds)
    run.write_json(f"{TASKS}/{task}.json", asdict(record))
    for gone in set(earlier) - set(names):
        (run / FIGURES / gone).unlink(missing_ok=True)
    sync_folder(run / FIGURES)
    return record


def load_results(run: Run) -> list[Record]:
    """All task results of a run, by name; a file that is none of ours is an error that names it."""
    records = []
    for path in sorted((run / TASKS).glob("*.json")):
        try:
            values = json.loads(path.read_bytes())
            record = Record(**values)
            if not isinstance(record.result, dict) or not all(_is_file_name(name) for name in record.figures):
                raise ValueError("result is no table, or figures are no file names")
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RunError(f"{path} is not a task result: {error}") from error
        records.append(record)
    return records


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and Path(name).name == name and name not in ("", ".", "..")


def file_name(name: str, taken: Sequence[str] = ()) -> str:
    """A safe file name without its end, for a name that may hold anything, a path for example."""
    stem = re.sub(r"[^\w.-]+", "_", name).strip("._")[-80:] or "figure"
    number, found = 2, stem
    while f"{found}.png" in taken:
        found, number = f"{stem}-{number}", number + 1
    return found


def png(figure: Figure, *, dpi: int = 110) -> bytes:
    """A picture on clear ground, with text and lines in a grey that reads on white and on black."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_color(INK)  # pyright: ignore[reportAttributeAccessIssue]
    for axes in figure.axes:
        axes.patch.set_alpha(0)
        axes.tick_params(colors=INK, which="both")
        for spine in axes.spines.values():
            spine.set_color(INK)
            spine.set_visible(spine.spine_type not in ("top", "right"))
        legend = axes.get_legend()
        if legend is not None:
            legend.get_frame().set_alpha(0)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dpi, transparent=True)
    return file.getvalue()


def number(value: Any, digits: int = 4) -> str:
    """A number as text; other things as they are."""
    if value is None:
        return "–"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def table(record: Record) -> Table:
    """The numbers of a task result that one looks at first."""
    try:
        return _TABLES.get(record.task, _flat)(record.result)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"the result of the task {record.task!r} is not of the form that lapae writes: {error}"
        ) from error


def _ood(result: Mapping[str, Any]) -> Table:
    rows = []
    for name, scores in result["sets"].items():
        for score, found in scores.items():
            auroc = found["auroc"]
            interval = f"{auroc['value']:.3f} ({auroc['low']:.3f} to {auroc['high']:.3f})"
            fpr = next((found[key]["value"] for key in found if key.startswith("fpr")), None)
            rows.append((name, score.replace("_", " "), interval, number(found["auprc"]["value"], 3), number(fpr, 3)))
    return Table(("against", "score", "AUROC (95 % interval)", "AUPRC", "FPR at 95 % TPR"), rows)


def _calibration(result: Mapping[str, Any]) -> Table:
    levels = result["levels"]
    shown = [level for level in (0.5, 0.9, 0.99) if level in levels]
    rows = []
    for space in dict.fromkeys([*result["bins"], *result["coverage"]]):
        bins, covered = result["bins"].get(space, {}), result["coverage"].get(space)
        inside = [number(covered[levels.index(level)], 3) if covered else "–" for level in shown]
        correlation, ence = (number(bins.get(key), 3) for key in ("rank_correlation", "ence"))
        rows.append((space.replace("_", " "), correlation, ence, *inside))
    columns = ("deviation of", "rank correlation with the error", "ENCE")
    return Table((*columns, *(f"inside {100 * level:.0f} %" for level in shown)), rows)


def _semi_supervised(result: Mapping[str, Any]) -> Table:
    triples = zip(result["n_labels"], result["accuracy"], result["accuracy_std"], strict=True)
    rows = [(str(n), f"{mean:.3f} ± {std:.3f}") for n, mean, std in triples]
    return Table(("labels (of each class)" if "attributes" not in result else "labels", "accuracy"), rows)


def _by_input(result: Mapping[str, Any]) -> Table:
    """Tables of tables: classification by input, generation by source."""
    parts = {name: values for name, values in result.items() if isinstance(values, dict) and name != "imputation"}
    columns = list(dict.fromkeys(key for values in parts.values() for key in values))
    rows = [(name, *(number(values.get(key)) for key in columns)) for name, values in parts.items()]
    return Table(("", *(column.replace("_", " ") for column in columns)), rows)


IMPUTATION = {
    "mse_missing": "mean squared error of a missing value",
    "error_missing": "squared error of the missing part",
    "error_missing_samples": "the same, of single samples",
    "error_whole": "squared error of the whole reconstruction",
    "error_whole_samples": "the same, of single samples",
    "missing": "share of values that were missing",
    "mode_distance": "distance between two modes, a value",
}


def _flat(result: Mapping[str, Any]) -> Table:
    rows = [
        (IMPUTATION.get(name, name.replace("_", " ")), number(value))
        for name, value in result.items()
        if not isinstance(value, dict | list)
    ]
    return Table(("", "value"), rows)


_TABLES = {
    "ood": _ood,
    "calibration": _calibration,
    "semi-supervised": _semi_supervised,
    "classification": _by_input,
    "generation": _by_input,
    "imputation": _flat,
}
