"""Record of the paper: a page whose head and tables are written from JSON, and whether it is as old as the code.

    docs/results.md       prose; between `<!-- NAME N -->` and `<!-- end -->` stands table N of an experiment
    docs/results/*.json   results of the full size, one file per experiment
    docs/images/results   their figures

`lapae reproduce all --page docs/results.md` writes all three, `lapae reproduce --page docs/results.md --check` fails if
the page and the JSON differ or if the code was changed since.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lapae import __version__
from lapae.errors import ConfigError, DataError
from lapae.runs.files import make_folder, write_whole
from lapae_paper.experiments.base import EXPERIMENTS
from lapae_paper.experiments.claims import claims
from lapae_paper.experiments.results import head, tables

WATCHED = ("curvature", "posterior", "methods", "train")
"""Packages of lapae that decide the numbers."""
BLOCK = re.compile(r"<!-- (head|claims|[a-z-]+ \d+) -->\n.*?<!-- end -->", re.S)
DIGITS = 6
"""Significant digits of numbers that are kept."""

Records = Mapping[str, dict[str, Any]]
"""Results by name of the experiment."""


def records_of(page: Path) -> dict[str, dict[str, Any]]:
    """Read the results of a page, in the paper's order."""
    folder = page.with_suffix("")
    found = {}
    for name in EXPERIMENTS:
        path = folder / f"{name}.json"
        if path.exists():
            try:
                found[name] = json.loads(path.read_text("utf-8"))
            except ValueError as error:
                raise DataError(f"{path} is not JSON ({error})") from error
    if not found:
        raise DataError(f"{folder} holds no results: expected NAME.json for one of {', '.join(EXPERIMENTS)}")
    return found


def measurements_of(page: Path, name: str) -> dict[str, dict[str, Any]]:
    """Return the measurements of an experiment that are kept with a page, by name in its plan."""
    path = page.with_suffix("") / f"{name}.json"
    return json.loads(path.read_text("utf-8")).get("measured", {}) if path.exists() else {}


def filled(text: str, records: Records) -> str:
    """Return the text of a page with its head and tables as the results say."""

    def block(match: re.Match[str]) -> str:
        name, _, number = match[1].rpartition(" ")
        if match[1] == "head":
            content = head(list(records.values()))
        elif match[1] == "claims":
            content = claims(records).markdown()
        elif name not in records or not 0 < int(number) <= len(records[name]["tables"]):
            raise ConfigError(f"the page asks for {match[1]!r}, which the results do not have")
        else:
            content = tables(records[name])[int(number) - 1].markdown()
        return f"<!-- {match[1]} -->\n\n{content}\n\n<!-- end -->"

    return BLOCK.sub(block, text)


def publish(page: Path, found: Sequence[dict[str, Any]], root: Path) -> None:
    """Keep results of the full size with a page, and write its head and tables.

    Args:
        page: the page, a Markdown file that exists.
        found: results to keep; none to write the page from those that are kept.
        root: folder with the figures, one folder per experiment.
    """
    quick = [record["experiment"] for record in found if record["quick"]]
    if quick:
        raise ConfigError(f"{quick[0]} is of the quick size, which is no record: leave out --quick or --page")
    pictures, text = page.parent / "images" / page.stem, _text(page)
    for record in found:
        make_folder(page.with_suffix(""))
        path = page.with_suffix("") / f"{record['experiment']}.json"
        drawn = record.pop("draws_all", True)
        if not drawn:  # what figures show is not in a record that is extended: they stay as they are
            record["figures"] = json.loads(path.read_text("utf-8"))["figures"]
        content = json.dumps(_rounded(record), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        for figure in record["figures"]:
            if not drawn or f"images/{page.stem}/{figure})" not in text:  # faces are not ours to publish
                continue
            make_folder(pictures)
            write_whole(pictures / figure, (root / record["experiment"] / figure).read_bytes())
        write_whole(path, f"{content}\n".encode())
    write_whole(page, filled(text, records_of(page)).encode())


def faults(page: Path) -> list[str]:
    """Return what is wrong with a record, one sentence each: page and JSON differ, or it is older than the code."""
    records = records_of(page)
    found = []
    if filled(_text(page), records) != _text(page):
        found.append(f"{page} differs from its JSON: write it with lapae reproduce --page {page}")
    missing = [name for name in EXPERIMENTS if name not in records]
    if missing:
        found.append(f"no results of {', '.join(missing)}")
    old = sorted({record["lapae"] for record in records.values()} - {__version__})
    if old:
        found.append(f"results of lapae {', '.join(old)}, this is {__version__}")
    n = commits_since(records, page.parent)
    if n is None:
        found.append("the commits of the results are not known here")
    elif n:
        found.append(f"{n} commits to {', '.join(WATCHED)} came after the results")
    return found


def commits_since(records: Records, repository: Path) -> int | None:
    """Return how many commits to the packages that decide the numbers came after the oldest result; None if unknown."""
    commits = {commit for record in records.values() for commit in record.get("commits", ["unknown"])}
    counts = [_count(commit.rstrip("+"), repository) for commit in commits]
    known = [count for count in counts if count is not None]
    return max(known) if known and len(known) == len(counts) else None


def age(page: Path) -> str:
    """Say in a sentence how many commits came after the results of a page."""
    n = commits_since(records_of(page), page.parent)
    packages = ", ".join(f"`{name}`" for name in WATCHED[:-1]) + f" and `{WATCHED[-1]}`"
    return f"Commits to {packages} since the oldest of these results: {'unknown' if n is None else n}."


def _count(commit: str, repository: Path) -> int | None:
    git = ["git", "-C", str(repository)]
    try:
        root = subprocess.run([*git, "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=True)
        paths = [f"{root.stdout.strip()}/src/lapae/{name}" for name in WATCHED]
        command = [*git, "rev-list", "--count", "--no-merges", f"{commit}..HEAD", "--", *paths]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def _text(page: Path) -> str:
    try:
        return page.read_text("utf-8")
    except OSError as error:
        raise DataError(f"cannot read the page {page} ({error.strerror})") from error


def _rounded(value: Any) -> Any:
    """Return plain JSON with numbers of `DIGITS` significant digits."""
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
