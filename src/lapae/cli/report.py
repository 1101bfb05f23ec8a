"""`lapae report`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from lapae.cli.new_data import UNNAMED, Out, PageCommand
from lapae.cli.parsing import parse
from lapae.view.sizes import ReportSizes


@dataclass(frozen=True)
class ReportCommand(PageCommand):
    """Write the report of a run: one HTML page that opens from disk, without a network connection."""

    out: Out | None = None
    """File to write; default: report.html in the run, or report-NAME.html for the samples of a file NAME."""
    sizes: Annotated[ReportSizes, UNNAMED] = field(default_factory=ReportSizes)
    json: bool = False
    """Print one JSON object to stdout."""


def main(arguments: Sequence[str]) -> int:
    command: ReportCommand = parse(ReportCommand, arguments, "lapae report")
    command.sizes.check()
    from lapae.cli.run_folder import open_run, read_given
    from lapae.runs import Run
    from lapae.storage import load_run
    from lapae.train.devices import choose_device
    from lapae.view.named_splits import NamedSplits
    from lapae.view.report.page import REPORT, report_html, write_page, write_report

    if command.data is None:
        run, model, data = open_run(command.run, command.device, command.data_dir)
        path = run / REPORT if command.out is None else command.out
        size = write_report(run, model, data, command.sizes, path)
    else:
        run, model = Run.open(command.run), load_run(command.run, device=choose_device(command.device))
        x, ids = read_given(model, command.data)
        path = run / f"report-{command.data.stem}.html" if command.out is None else command.out
        size = write_page(
            path, report_html(model, NamedSplits.given(x, ids=ids), command.sizes, run, file=command.data)
        )
    path = path.resolve()
    print(json.dumps({"report": str(path), "bytes": size}) if command.json else f"{path} ({size / 1e6:.1f} MB)")
    return 0
