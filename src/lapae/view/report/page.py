"""The report of a model: one HTML file that needs neither a network nor another file."""

from __future__ import annotations

import base64
import math
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup

from lapae import __version__
from lapae.data import Data
from lapae.data.progress import progress as progress_bar
from lapae.errors import RunError
from lapae.evaluate import TASKS
from lapae.fit import calibrate
from lapae.model import Model
from lapae.predict.decode import n_decoders
from lapae.runs import Run
from lapae.runs.files import write_whole
from lapae.runs.numbers import number
from lapae.runs.results import FIGURES, Record, load_results
from lapae.view.describe import summary
from lapae.view.display import Display, choose_display
from lapae.view.latent_map import LatentSpace, beside_usual, latent_space, networks_of, usual_samples
from lapae.view.named_splits import GIVEN, WORDS, NamedSplits
from lapae.view.report.calibration import calibration
from lapae.view.report.chart import histogram, p_histogram
from lapae.view.report.errors import reconstruction
from lapae.view.report.examples import examples
from lapae.view.report.marginals import sampled
from lapae.view.report.planes import cost_of_code, planes, side_of
from lapae.view.report.training import curves, facts
from lapae.view.report.unusual import Scores, most_unusual, score
from lapae.view.report.widths import widths
from lapae.view.sizes import ReportSizes
from lapae.view.verdicts import Verdicts
from lapae.view.web import LINK, REPORT, asset

MOST_BYTES = 5_000_000
FIGURE_BYTES = 1_800_000
"""Maximum number of bytes for the pictures of tasks, so that the page stays below MOST_BYTES; the others are named
instead."""
SCRIPTS = ("numbers.js", "map.js", "stage.js", "report.js")
MIME = {".svg": "image/svg+xml", ".png": "image/png"}
"""File types of the pictures of tasks; runs of earlier versions have PNG files."""


def write_report(run: Run, model: Model, data: Data, sizes: ReportSizes | None = None, path: Path | None = None) -> int:
    """Write the report of a run, by default into its folder; return its size in bytes."""
    if model.calibration is None:  # training has not finished
        model = calibrate(model, data)
    page = report_html(model, NamedSplits.of(data), sizes or ReportSizes(), run)
    return write_page(path or run / REPORT, page)


def write_page(path: Path, page: str) -> int:
    """Write a page as a whole; return its size in bytes."""
    content = page.encode()
    if len(content) > MOST_BYTES:
        raise RunError(f"the report would have {len(content):,} bytes, more than {MOST_BYTES:,}: show fewer --points")
    write_whole(path, content)
    return len(content)


def report_html(
    model: Model, splits: NamedSplits, sizes: ReportSizes, run: Run | None = None, *, file: Path | None = None
) -> str:
    """Return the page as text.

    Args:
        model: the model to report on.
        splits: the samples to show.
        sizes: how much to show.
        run: the run folder of the model, if any: results of tasks and training curves are shown too.
        file: the file that the samples are from, if not from the run.
    """
    verdicts = Verdicts(model)
    shown = (_samples if model.space.features is None else _pictures)(verdicts, splits, sizes)
    scores = shown["judged"]
    counts = _counts(scores, verdicts)
    records = [] if run is None else sorted(load_results(run), key=_order)
    figures, left_out = ({}, []) if run is None else _figures(run, records)
    return _template().render(
        **shown,
        name=model.space.name if run is None else run.path.resolve().name,
        explorer="model.explore(X)" if run is None else _command(run, file),
        link=Markup(LINK),
        model=model,
        version=__version__,
        summary=summary(model),
        verdict=_verdict(counts),
        not_learned=dict(model.space.left_out),
        glance=_glance(counts, shown["measured"], shown["calibration"], shown["widths"]),
        counts=counts,
        scores=histogram(_series(scores, verdicts), verdicts.threshold),
        # of samples used neither for training nor for calibration
        p_values=p_histogram(scores.p[np.isin(scores.part, (GIVEN, "test"))]),
        words=WORDS,
        results=[_result(record, figures) for record in records],
        left_out=left_out,
        facts=facts(model, splits),
        curves=curves(model, model.history if run is None else run.read_history()),
        style=Markup(asset("shared.css")),
        script=Markup("".join(map(asset, SCRIPTS)) if shown["latent"] else ""),
    )


def _samples(verdicts: Verdicts, splits: NamedSplits, sizes: ReportSizes) -> dict[str, Any]:
    """Return what the page shows of samples that the model reconstructs; `judged` are their scores."""
    model, main, seed = verdicts.model, splits.parts[splits.main], sizes.seed
    index = main.some(sizes.points, seed)
    found: dict[str, Any] = {}
    with progress_bar("report", 5) as done:
        x = model.tensor(np.asarray(main.x[index]))
        n_samples = networks_of(model, sizes.n_samples)
        usual = usual_samples(verdicts, splits, sizes.points)
        space = latent_space(model.method, torch.cat([x, usual]).nan_to_num(0.0), n_axes=3, usual=len(usual))
        display = (
            choose_display(model, usual, space.codes[len(x) :]) if len(usual) else choose_display(model, x, space.codes)
        )
        done(1)
        judged = score(verdicts, splits, seed)
        done(1)
        side = side_of(cost_of_code(model, space) * n_decoders(model.method, n_samples), len(space.pairs))
        maps = planes(model, space, display, side, n_samples, seed)
        done(1)
        found["measured"] = reconstruction(verdicts, splits, display, seed)
        found["calibration"] = calibration(verdicts, splits, seed)
        found["widths"] = widths(verdicts, splits, display, seed)
        done(1)
        found["unusual"] = most_unusual(verdicts, splits, display, judged, sizes.examples)
        found["examples"] = examples(verdicts, splits, display, sizes.examples, seed)
        done(1)
    found["sampled"] = sampled(model, np.asarray(main.x[index]), seed)
    found["latent"] = _latent(splits, space, display, index, side, maps)
    return found | {"judged": judged, "display": display, "space": space}


def _pictures(verdicts: Verdicts, splits: NamedSplits, sizes: ReportSizes) -> dict[str, Any]:
    """Return what the page shows of images whose features are learned: there is nothing to reconstruct."""
    judged, display = score(verdicts, splits, sizes.seed), Display("photo")
    nothing = dict.fromkeys(("measured", "calibration", "widths", "examples", "sampled", "latent", "space"))
    unusual = most_unusual(verdicts, splits, display, judged, sizes.examples)
    return nothing | {"unusual": unusual, "judged": judged, "display": display}


def _command(run: Run, file: Path | None) -> str:
    """Return the command that explores the samples of a report."""
    data = [] if file is None else ["--data", str(file)]
    return shlex.join(["lapae", "explore", str(run.path), *data])


@cache
def _template() -> Template:
    environment = Environment(
        loader=FunctionLoader(asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = number
    return environment.get_template("report.html")


def _latent(
    splits: NamedSplits, space: LatentSpace, display: Display, index: np.ndarray, side: int, maps: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return everything that the live map needs as plain JSON types."""
    return {
        "side": side,
        **space.to_dict(),
        "labelings": splits.labelings(index) or beside_usual(len(index), len(space.codes) - len(index)),
        "view": display.to_dict(),
        "planes": maps,
        # a single network that learns no noise has no standard deviation: there is nothing to shade
        "spread": any(max(found["heat"]) > 0 for found in maps),
    }


def _series(scores: Scores, verdicts: Verdicts) -> dict[str, np.ndarray]:
    """Return the anomaly scores of held-out samples, and beside them those of training samples or of given ones."""
    train, given = scores.part == "train", scores.part == GIVEN
    if given.all():
        held_out = verdicts.calibration.reference.scores.numpy()
        return {"held-out samples": held_out, "given samples": scores.anomaly_score}
    if train.all() or not train.any():
        return {"samples": scores.anomaly_score}
    return {"training samples": scores.anomaly_score[train], "held-out samples": scores.anomaly_score[~train]}


def _verdict(counts: dict[str, Any]) -> str:
    """Say in words whether more samples are unusual than chance explains, at two standard deviations.

    p-values that compare with the same m held-out samples vary together: the number of n that are flagged is
    beta-binomial, with 1 + n / (m + 1) times the variance of independent ones.
    """
    n, rate, rare = counts["n"], counts["level"], counts["rare"]
    spread = math.sqrt(n * rate * (1 - rate) * (1 + n / (counts["references"] + 1)))
    if rare > rate * n + 2 * spread:
        return f"More unusual samples than chance explains: {rare:,} of {n:,}; about {counts['expected']} are expected."
    return f"No more unusual samples than chance explains: {rare:,} of {n:,}; about {counts['expected']} are expected."


def _counts(scores: Scores, verdicts: Verdicts) -> dict[str, Any]:
    """Count unusual samples, and how many one would expect by chance."""
    n = len(scores.p)
    return {
        "n": n,
        "complete": scores.complete,
        "rare": int((scores.p <= verdicts.rate).sum()),
        "expected": number(round(verdicts.rate * n)),
        "level": verdicts.rate,
        "references": verdicts.n_references,
        "among": WORDS["calibration"],
        "least": number(1 / (verdicts.n_references + 1), 2),
    }


def _glance(
    counts: dict[str, Any], measured: dict[str, Any] | None, held: dict[str, Any] | None, known: dict[str, Any] | None
) -> list[Any]:
    """Return the headline figures: title, number, explanation, anchor."""
    by_chance = f"with a p-value of at most {counts['level']:g}; about {counts['expected']} by chance"
    out = [("unusual samples", f"{counts['rare']:,} of {counts['n']:,}", by_chance, "unusual")]
    if measured is not None:
        explained = measured["explained"]
        out.append(("variance explained", explained["ours"], f"PCA: {explained['pca']}", "errors"))
    if held is not None:
        out.append(("inside 90 % intervals", held["inside"], held["verdict"].partition(":")[0], "calibration"))
    if known is not None:
        out.append(("width of intervals", known["times"], "that of held-out samples", "widths"))
    return out


def _figures(run: Run, records: list[Record]) -> tuple[dict[str, str], list[str]]:
    """Return pictures of the tasks as URLs, as many as fit, and the names of the others."""
    urls: dict[str, str] = {}
    left_out, room = [], FIGURE_BYTES
    for name in (name for record in records for name in record.figures):
        kind = MIME.get(Path(name).suffix)
        try:
            content = (run / FIGURES / name).read_bytes()
        except OSError:
            content = None
        if kind is None or content is None or len(content) > room:
            left_out.append(name)
            continue
        room -= len(content)
        urls[name] = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    return urls, left_out


def _order(record: Record) -> tuple[int, str]:
    known = list(TASKS)
    return (known.index(record.task) if record.task in known else len(known), record.task)


def _result(record: Record, figures: dict[str, str]) -> dict[str, Any]:
    task = TASKS.get(record.task)
    title, note = (record.task, "") if task is None else (task.title, task.note)
    given = {k: v for k, v in record.options.items() if v not in (None, [], ())}
    options = ", ".join(f"{k.replace('_', ' ')} {_text(v)}" for k, v in given.items())
    pictures = {name: figures[name] for name in record.figures if name in figures}
    paper = task is not None and str(task.target).startswith("lapae_paper")
    found = {"id": f"task-{record.task}", "title": title, "about": note, "open": not paper}
    return found | {"table": record.table, "options": options, "figures": pictures}


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
