"""The report of a run: one HTML file that needs nothing else, no network and no other file."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lapae import __version__
from lapae.data import Data
from lapae.data.progress import progress as progress_bar
from lapae.errors import ConfigError, RunError
from lapae.model import Model
from lapae.predict.decode import n_decoders
from lapae.runs import Run
from lapae.runs.files import write_whole
from lapae.runs.numbers import number
from lapae.runs.results import FIGURES, Record, load_results
from lapae.tasks import TASKS
from lapae.tasks.base import subset, tensor
from lapae.view.describe import labelings, summary
from lapae.view.display import Display, choose_display, shorts, tiles
from lapae.view.latent_map import LatentSpace, latent_space, plane
from lapae.view.report.examples import examples, test_data
from lapae.view.report.training import curves, facts, headline, read_history
from lapae.view.web import asset

REPORT = "report.html"
MOST_BYTES = 5_000_000
FIGURE_BYTES = 1_800_000
"""For the pictures of tasks, so that the page stays below MOST_BYTES; what does not fit is named instead."""
SIDES = {1: 32, 3: 20, 6: 16}
"""Tiles along a side of a map by the number of maps."""
MIME = {".svg": "image/svg+xml", ".png": "image/png"}
"""Of the pictures of tasks; runs of earlier versions have PNG files."""


@dataclass(frozen=True)
class Sizes:
    """How much a report shows."""

    n_samples: int = 50
    """Networks drawn for each mean and deviation."""
    points: int = 1500
    """Training data on the latent map at most."""
    examples: int = 8
    """Reconstructed test data, and half as many again of the most uncertain."""
    seed: int = 0
    """Of subsets and draws."""


def write_report(run: Run, model: Model, data: Data, sizes: Sizes | None = None) -> int:
    """Write report.html of a run. Returns its size in bytes."""
    content = report_html(run, model, data, sizes or Sizes()).encode()
    if len(content) > MOST_BYTES:
        raise RunError(f"the report would have {len(content):,} bytes, more than {MOST_BYTES:,}: show fewer --points")
    write_whole(run / REPORT, content)
    return len(content)


def report_html(run: Run, model: Model, data: Data, sizes: Sizes) -> str:
    """The page as text."""
    if tuple(data.shape) != tuple(model.shape):
        raise ConfigError(f"the model was trained on data of shape {tuple(model.shape)}, got {tuple(data.shape)}")
    index = subset(data.train, sizes.points, sizes.seed)
    raw = tensor(model, data.train, index)
    space = latent_space(model.method, raw.nan_to_num(0.0))
    display = choose_display(model, raw)
    side = SIDES.get(len(space.pairs), 16)
    shown = test_data(data, model, sizes.examples, sizes.seed)
    n_tiles = n_decoders(model.method, sizes.n_samples) * side**2 * len(space.pairs)
    with progress_bar("report", n_tiles + len(shown)) as advance:
        latent = _latent(model, data, space, display, index, side, sizes, advance)
        looked_at = examples(model, data, display, shown, n=sizes.examples, n_samples=sizes.n_samples, seed=sizes.seed)
        advance(len(shown))
    figures, left_out = _figures(run, records := load_results(run))
    return _template().render(
        name=run.path.resolve().name,
        method=model.config.method.title,
        data=data.name,
        version=__version__,
        summary=summary(model, data),
        facts=facts(model, data),
        headline=headline(model),
        curves=curves(model, read_history(run)),
        examples=looked_at,
        view=display.kind,
        channels=len(display.channels),
        n_channels=model.shape[-1],
        spread=latent["spread"],
        learned=model.method.learns_variance,
        ensemble=model.method.distinct_draws is not None,
        latent=latent,
        axes=space.names,
        projected=space.share is not None,
        share=space.share,
        latent_dim=space.codes.shape[1],
        results=[_result(record, figures) for record in sorted(records, key=_order)],
        left_out=left_out,
        style=Markup(asset("shared.css")),
        script=Markup(asset("map.js") + asset("report.js")),
    )


def _template():
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = number
    return environment.from_string(asset("report.html"))


def _latent(
    model: Model,
    data: Data,
    space: LatentSpace,
    display: Display,
    index: np.ndarray,
    side: int,
    sizes: Sizes,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Everything that the live map needs, in plain JSON types."""
    planes = []
    for axes in space.pairs:
        found = plane(
            model.method, space, axes, side=side, n_samples=sizes.n_samples, seed=sizes.seed, progress=progress
        )
        made = tiles(model, display, found.decoded, side)
        planes.append({"axes": list(axes), "heat": shorts(found.total.reshape(-1)), **made})
    return {
        "side": side,
        "axes": [
            {"name": name, "low": float(low), "high": float(high)}
            for name, (low, high) in zip(space.names, space.limits, strict=True)
        ],
        "points": shorts(space.points),
        "labelings": labelings(data, index),
        "view": display.to_dict(),
        "planes": planes,
        # one network that learns no noise says one thing at a code: there is nothing to shade
        "spread": any(max(found["heat"]) > 0 for found in planes),
    }


def _figures(run: Run, records: list[Record]) -> tuple[dict[str, str], list[str]]:
    """Pictures of the tasks as URLs, as many as fit; and the names of the others."""
    urls: dict[str, str] = {}
    left_out, room = [], FIGURE_BYTES
    for name in (name for record in records for name in record.figures):
        try:
            content = (run / FIGURES / name).read_bytes()
        except OSError:
            left_out.append(name)
            continue
        kind = MIME.get(Path(name).suffix)
        if kind is None or len(content) > room:
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
    pictures = [{"name": name, "url": figures[name]} for name in record.figures if name in figures]
    return {"title": title, "about": note, "table": record.table, "options": options, "figures": pictures}


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
