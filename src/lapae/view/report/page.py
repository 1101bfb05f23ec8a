"""The report of a run: one HTML file that needs nothing else, no network and no other file."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lapae._version import __version__
from lapae.data import Data
from lapae.data.progress import progress as progress_bar
from lapae.errors import ConfigError, RunError
from lapae.model import TrainedModel
from lapae.runs import Run
from lapae.runs.files import write_whole
from lapae.tasks.base import subset, tensor
from lapae.view.report.examples import examples, test_data
from lapae.view.report.latent import LatentSpace, latent_space, plane
from lapae.view.report.results import FIGURES, Record, load_results, number, table
from lapae.view.report.summary import METHODS, curves, facts, headline, read_history, summary
from lapae.view.report.views import View, choose_view, shorts, tiles

REPORT = "report.html"
MOST_BYTES = 5_000_000
FIGURE_BYTES = 1_800_000
"""For the pictures of tasks, so that the page stays below MOST_BYTES; what does not fit is named instead."""
SIDES = {1: 32, 3: 20, 6: 16}
"""Tiles along a side of a map by the number of maps."""
ABOUT = {
    "ood": (
        "Out-of-distribution detection",
        "How well scores tell test data from data of another kind. AUROC 1 is perfect, 0.5 is chance.",
    ),
    "imputation": (
        "Missing data",
        "A part of each test datum is hidden and filled in by sampled networks; errors are against the truth.",
    ),
    "classification": (
        "Classification of imputed data",
        "A classifier of clean data sees data with a part filled in: how often it is right, and whether it knows.",
    ),
    "generation": (
        "Generation",
        "New data from noise. Diversity and distance to the training data stand beside those of held-out data.",
    ),
    "semi-supervised": (
        "Few labels",
        "Nearest neighbours among the codes of a few labelled data, each embedded many times.",
    ),
    "calibration": (
        "Calibration of the deviation",
        "Is the error large where the predicted deviation is? Of values inside p % intervals, p % should be.",
    ),
}


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


def write_report(run: Run, model: TrainedModel, data: Data, sizes: Sizes | None = None) -> int:
    """Write report.html of a run. Returns its size in bytes."""
    content = report_html(run, model, data, sizes or Sizes()).encode()
    if len(content) > MOST_BYTES:
        raise RunError(f"the report would have {len(content):,} bytes, more than {MOST_BYTES:,}: show fewer --points")
    write_whole(run / REPORT, content)
    return len(content)


def report_html(run: Run, model: TrainedModel, data: Data, sizes: Sizes) -> str:
    """The page as text."""
    if tuple(data.shape) != tuple(model.shape):
        raise ConfigError(f"the model was trained on data of shape {tuple(model.shape)}, got {tuple(data.shape)}")
    index = subset(data.train, sizes.points, sizes.seed)
    raw = tensor(model, data.train, index)
    space = latent_space(model.method, raw.nan_to_num(0.0))
    view = choose_view(model, raw)
    side = SIDES.get(len(space.pairs), 16)
    shown = test_data(data, model, sizes.examples, sizes.seed)
    with progress_bar("report", side**2 * len(space.pairs) + len(shown)) as advance:
        latent = _latent(model, data, space, view, index, side, sizes, advance)
        looked_at = examples(model, data, view, shown, n=sizes.examples, n_samples=sizes.n_samples, seed=sizes.seed)
        advance(len(shown))
    figures, left_out = _figures(run, records := load_results(run))
    return _template().render(
        name=run.path.resolve().name,
        method=METHODS.get(model.config.method.method, model.config.method.method),
        data=data.name,
        version=__version__,
        summary=summary(model, data),
        facts=facts(model, data),
        headline=headline(model),
        curves=curves(model, read_history(run)),
        examples=looked_at,
        view=view.kind,
        channels=len(view.channels),
        n_channels=model.shape[-1],
        spread=latent["spread"],
        learned=model.config.method.method in ("ae-var", "vae"),
        ensemble=model.method.distinct_draws is not None,
        latent=latent,
        axes=space.names,
        projected=space.share is not None,
        share=space.share,
        latent_dim=space.codes.shape[1],
        results=[_result(record, figures) for record in sorted(records, key=_order)],
        left_out=left_out,
        style=Markup(_file("page.css")),
        script=Markup(_file("map.js") + _file("page.js")),
    )


def _template():
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = number
    return environment.from_string(_file("page.html"))


def _file(name: str) -> str:
    return files("lapae.view.report").joinpath(name).read_text(encoding="utf-8")


def _latent(
    model: TrainedModel,
    data: Data,
    space: LatentSpace,
    view: View,
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
        made = tiles(model, view, found.decoded, side)
        planes.append({"axes": list(axes), "heat": shorts(found.total.reshape(-1)), **made})
    return {
        "side": side,
        "axes": [
            {"name": name, "low": float(low), "high": float(high)}
            for name, (low, high) in zip(space.names, space.limits, strict=True)
        ],
        "points": shorts(space.points),
        "labelings": labelings(data, index),
        "view": view.to_dict(),
        "planes": planes,
        # one network that learns no noise says one thing at a code: there is nothing to shade
        "spread": any(max(found["heat"]) > 0 for found in planes),
    }


def labelings(data: Data, index: np.ndarray) -> list[dict[str, Any]]:
    """Ways to colour the data: by class, or by one attribute at a time."""
    if data.train.y is None:
        return []
    y = np.asarray(data.train.y)[index]
    if y.ndim == 1:
        names = list(data.label_names or [])
        names += [str(i) for i in range(len(names), int(y.max(initial=0)) + 1)]
        return [{"name": "class", "names": names, "values": y.astype(int).tolist()}]
    titles = data.label_names or [f"attribute {a + 1}" for a in range(y.shape[1])]
    return [
        {"name": title, "names": [f"not {title}", title], "values": y[:, a].astype(int).tolist()}
        for a, title in enumerate(titles)
    ]


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
        if len(content) > room:
            left_out.append(name)
            continue
        room -= len(content)
        urls[name] = "data:image/png;base64," + base64.b64encode(content).decode()
    return urls, left_out


def _order(record: Record) -> tuple[int, str]:
    known = list(ABOUT)
    return (known.index(record.task) if record.task in known else len(known), record.task)


def _result(record: Record, figures: dict[str, str]) -> dict[str, Any]:
    title, about = ABOUT.get(record.task, (record.task, ""))
    given = {k: v for k, v in record.options.items() if v not in (None, [], ())}
    options = ", ".join(f"{k.replace('_', ' ')} {_text(v)}" for k, v in given.items())
    pictures = [
        {"name": name, "url": figures[name], "wide": _is_wide(figures[name])}
        for name in record.figures
        if name in figures
    ]
    return {"title": title, "about": about, "table": table(record), "options": options, "figures": pictures}


def _is_wide(url: str) -> bool:
    """Whether a picture would be too small to read at the width of a phone: from the header of the PNG."""
    header = base64.b64decode(url.partition(",")[2][:44])
    width, height = (int.from_bytes(header[i : i + 4], "big") for i in (16, 20))
    return width > 2 * height


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
