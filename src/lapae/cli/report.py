"""`lapae report`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lapae.cli.parsing import parse


@dataclass(frozen=True)
class ReportCommand:
    """Write the report of a run: one HTML page that opens from disk, without a network."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a trained run."""
    data: Path | None = None
    """A file, or a folder of images, to report on instead of the data that the run was trained on."""
    n_samples: int | None = None
    """Networks drawn for each mean and deviation; where not given one pass that carries a variance, or 20 networks of a
    method that has no such pass."""
    points: int = 1500
    """Data on the latent map at most."""
    examples: int = 8
    """Data shown with their reconstructions, and most unusual ones."""
    seed: int = 0
    """Of subsets and draws."""
    data_dir: str | None = None
    """Folder of the named data sets, where it is not the one the run was trained from."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto is cuda where there is one."""
    json: bool = False
    """Print one JSON object to stdout."""


def main(arguments: Sequence[str]) -> int:
    command: ReportCommand = parse(ReportCommand, arguments, "lapae report")
    from lapae.cli.run_folder import open_run, read_given
    from lapae.errors import ConfigError
    from lapae.runs import Run
    from lapae.storage import load_run
    from lapae.train.devices import choose_device
    from lapae.view.material import Material
    from lapae.view.report.page import REPORT, Sizes, report_html, write_page, write_report

    for name in ("n_samples", "points", "examples"):
        value = getattr(command, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} = {value}: expected at least 1")
    sizes = Sizes(command.n_samples, command.points, command.examples, command.seed)
    if command.data is None:
        run, model, data = open_run(command.run, command.device, command.data_dir)
        size = write_report(run, model, data, sizes)
    else:
        run, model = Run.open(command.run), load_run(command.run, device=choose_device(command.device))
        x, ids = read_given(model, command.data)
        size = write_page(run / REPORT, report_html(model, Material.given(x, ids=ids), sizes, run, file=command.data))
    path = (run / REPORT).resolve()
    print(json.dumps({"report": str(path), "bytes": size}) if command.json else f"{path} ({size / 1e6:.1f} MB)")
    return 0
