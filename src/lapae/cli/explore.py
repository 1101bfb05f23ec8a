"""`lapae explore`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lapae.cli.new_data import UNNAMED, Device, PageCommand, open_model
from lapae.cli.parsing import parse
from lapae.errors import LapaeError
from lapae.view.sizes import Sizes

if TYPE_CHECKING:
    from lapae.model import Model
    from lapae.view.explore.server import Server
    from lapae.view.named_splits import NamedSplits


@dataclass(frozen=True)
class ExploreCommand(PageCommand):
    """Explore a run in a browser: move in its latent space, look at single samples, fill in missing values.

    The page is served until Ctrl-C, only to this machine and to those who have its address. Nothing is written to disk.
    """

    port: Annotated[int, tyro.conf.arg(metavar="INT")] = 8765
    """Port to listen on; 0 for any free port."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines connect. The URL of the page contains a secret: whoever has it
    can see the data of the run."""
    open: bool = True
    """Open the page in the browser."""
    sizes: Annotated[Sizes, UNNAMED] = field(default_factory=Sizes)


def main(arguments: Sequence[str]) -> int:
    command: ExploreCommand = parse(ExploreCommand, arguments, "lapae explore")
    command.sizes.check()
    try:
        server = prepare(command)
    except KeyboardInterrupt:
        print("\nended", file=sys.stderr)
        return 0
    from lapae.view.explore.serve import serve

    serve(server, open=command.open)
    return 0


def prepare(command: ExploreCommand) -> Server:
    """The server of a run, listening."""
    from lapae.view.explore.explorer import Options
    from lapae.view.explore.serve import prepare

    model = open_model(command.run, Device(command.device))
    model, splits, reason = load(model, command.data, command.data_dir)
    if reason is not None:
        print(f"lapae: warning: {reason}", file=sys.stderr)
    options = Options(**vars(command.sizes))
    name = command.run.resolve().name
    return prepare(model, splits, name, host=command.host, port=command.port, options=options, no_data=reason)


def load(model: Model, file: Path | None, data_dir: str | None) -> tuple[Model, NamedSplits, str | None]:
    """Return the model and the data of its run or of a file; or no data and why: a model can be explored without."""
    from lapae.cli.run_folder import read_given, run_data
    from lapae.fit import calibrate
    from lapae.view.named_splits import NamedSplits

    if file is not None:
        x, ids = read_given(model, file)
        return model, NamedSplits.given(x, ids=ids), None
    try:
        data = run_data(model, data_dir)
    except LapaeError as error:
        return model, NamedSplits(), f"the data of the run cannot be loaded ({error})"
    if model.calibration is None:  # training has not finished
        model = calibrate(model, data)
    return model, NamedSplits.of(data), None
