"""Results on disk: one folder per experiment (tables, pictures, raw numbers), and one page of all there are.

NAME/result.json   settings, tables, raw numbers; its presence says that the experiment is done
NAME/*.png         figures
results.md, index.html   every experiment that is done
"""

from __future__ import annotations

import base64
import json
import re
import warnings
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from lapae import __version__
from lapae.runs import plain
from lapae.runs.files import make_folder, write_whole
from lapae_paper.experiments.base import EXPERIMENTS, Experiment, Outcome, Table
from lapae_paper.experiments.workspace import Workspace, key

RESULT = "result.json"
DPI = 90
"""Resolution of saved pictures, which are embedded in pages."""
LARGE = 190_000
"""Number of bytes above which a picture is made smaller."""


def save(workspace: Workspace, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """Write the results of an experiment."""
    folder = workspace.root / workspace.experiment.name
    make_folder(folder)
    names = []
    for name, figure in outcome.figures.items():
        write_whole(folder / f"{name}.png", picture(figure))
        names.append(f"{name}.png")
    record = plain(
        {
            "experiment": workspace.experiment.name,
            "plan": identity(workspace),
            "quick": workspace.size.quick,
            "lapae": __version__,
            **workspace.made,
            "seconds": round(seconds, 1),
            "tables": [
                {"title": t.title, "columns": list(t.columns), "rows": [list(r) for r in t.rows]}
                for t in (table.without_paper() if workspace.size.quick else table for table in outcome.tables)
            ],
            "figures": names,
            "notes": outcome.notes,
            "raw": outcome.raw,
            "measured": workspace.measurements,
            "draws_all": workspace.draws_all,
        }
    )
    text = json.dumps(record, indent=1, allow_nan=False)
    write_whole(folder / RESULT, f"{text}\n".encode())
    for old in set(folder.glob("*.png")) - {folder / name for name in names}:  # last: a result has its pictures
        old.unlink(missing_ok=True)
    return record


def identity(workspace: Workspace) -> list[str]:
    """Return the keys of the models of an experiment: other models are another experiment."""
    return sorted(key(trial) for trial in workspace.plan.values())


def load(root: Path, name: str) -> dict[str, Any] | None:
    """Read the result of an experiment; None if there is none yet, or with a warning if it is damaged."""
    path = root / name / RESULT
    try:
        record = json.loads(path.read_bytes())
        _ = settings(record), tables(record), record["plan"], record["notes"]  # what pages and `all` ask for
        if any(figure != Path(figure).name for figure in record["figures"]):
            raise ValueError("a figure that is elsewhere")
        missing = [figure for figure in record["figures"] if not (root / name / figure).is_file()]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        warnings.warn(f"{path} is damaged and ignored ({error!r:.80}): run {name} again", stacklevel=2)
        return None
    if missing:
        warnings.warn(f"{path} is ignored, as there is no {missing[0]} beside it: run {name} again", stacklevel=2)
        return None
    return record


def tables(record: dict[str, Any]) -> list[Table]:
    """Return the tables of a result."""
    return [Table(t["title"], tuple(t["columns"]), [tuple(row) for row in t["rows"]]) for t in record["tables"]]


def picture(figure: Any) -> bytes:
    """Render a figure as PNG on white; with a palette if it would be large, as noise does not compress."""
    import io

    from PIL import Image

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, facecolor="white")
    if len(drawn.getvalue()) < LARGE:
        return drawn.getvalue()
    small = io.BytesIO()
    image = Image.open(drawn).convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE)
    image.save(small, "png", optimize=True)
    return small.getvalue()


def write_pages(root: Path) -> list[Path]:
    """Write results.md and index.html with every finished experiment, in the paper's order."""
    found = [(entry, record) for name, entry in EXPERIMENTS.items() if (record := load(root, name)) is not None]
    parts = ["# Results\n", *([f"{head([record for _, record in found])}\n"] if found else [])]
    for entry, record in found:
        parts += [f"## {entry.name}: {entry.about}\n", f"The paper's {entry.of}. {settings(record)}\n"]
        for table in tables(record):
            parts += [f"**{table.title}**\n", f"{table.markdown()}\n"]
        parts += [f"- {note}" for note in record["notes"]] + ([""] if record["notes"] else [])
        parts += [f"![{name}]({entry.name}/{name})\n" for name in record["figures"]]
    write_whole(root / "results.md", "\n".join(parts).encode())
    write_whole(root / "index.html", _html(root, found).encode())
    return [root / "results.md", root / "index.html"]


def settings(record: dict[str, Any]) -> str:
    """Describe size, machine and time in a sentence."""
    size = "Quick size, on embedded data: the pipeline, not the paper's result" if record["quick"] else "Full size"
    return f"{size}. {record['machine']}; {record['seconds']:.0f} s."


def head(records: Sequence[dict[str, Any]]) -> str:
    """Write where the numbers come from, as a Markdown table: one row per experiment."""
    rows = []
    for record in records:
        seeds: dict[str, set[str]] = {}
        for setting, seed in (re.match(r"(.*)-seed(\d+)-", name).groups() for name in record["plan"]):  # pyright: ignore
            seeds.setdefault(setting, set()).add(seed)
        counts = sorted({len(found) for found in seeds.values()})
        shown = "-" if not counts else " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
        machine, _, version = record["machine"].rpartition(", lapae ")
        commits = ", ".join(record.get("commits", ["unknown"]))
        size = " (quick)" if record["quick"] else ""
        rows.append(
            (
                record["experiment"] + size,
                str(len(record["plan"])),
                shown,
                version,
                commits,
                record.get("date", "unknown"),
                machine,
            )
        )
    return Table("", ("experiment", "models", "seeds", "lapae", "commit", "date", "device"), rows).markdown()


def _html(root: Path, found: list[tuple[Experiment, dict[str, Any]]]) -> str:
    from jinja2 import Environment

    def embedded(entry: Experiment, name: str) -> str:
        return "data:image/png;base64," + base64.b64encode((root / entry.name / name).read_bytes()).decode()

    page = files("lapae_paper.experiments").joinpath("page.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True).from_string(page)
    return template.render(
        experiments=[
            {
                "name": entry.name,
                "of": entry.of,
                "about": entry.about,
                "settings": settings(record),
                "tables": tables(record),
                "notes": record["notes"],
                "figures": [(name, embedded(entry, name)) for name in record["figures"]],
            }
            for entry, record in found
        ],
        version=__version__,
    )
