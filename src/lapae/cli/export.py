"""`lapae export`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lapae.cli.new_data import Out, Run
from lapae.cli.parsing import parse


@dataclass(frozen=True)
class ExportCommand:
    """Export a trained run as one ONNX graph: raw data in; reconstruction, intervals, score and p-value out."""

    run: Run
    """Folder of a trained run."""
    out: Out
    """File to write; its name ends in .onnx."""


def main(arguments: Sequence[str]) -> int:
    command: ExportCommand = parse(ExportCommand, arguments, "lapae export")
    from lapae.export import export
    from lapae.runs.files import check_place
    from lapae.storage import load_run

    check_place(command.out)
    export(load_run(command.run), command.out)
    print(f"{command.out}: {command.out.stat().st_size:,} bytes")
    return 0
