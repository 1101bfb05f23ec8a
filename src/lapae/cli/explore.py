"""`lapae explore`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from lapae.cli.new_data import Device, Run, open_model
from lapae.errors import ConfigError, LapaeError

if TYPE_CHECKING:
    from lapae.data import Data
    from lapae.model import Model
    from lapae.view.explore.server import Server


@dataclass(frozen=True)
class ExploreCommand:
    """Look at a run in a browser: move in its latent space, look at single data, fill in what is missing.

    A page is served to this machine alone, until Ctrl-C. Nothing is written.
    """

    run: Run
    """Folder of a trained run."""
    port: Annotated[int, tyro.conf.arg(metavar="INT")] = 8765
    """Where to listen; 0 is any free port."""
    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 for other machines. The page then has a secret in its address: whoever has that
    sees the data of the run."""
    open: bool = True
    """Open the page in the browser."""
    n_samples: int | None = None
    """Networks drawn for each mean and deviation; as the model predicts where not given."""
    points: int = 1500
    """Data on the latent map at most."""
    seed: int = 0
    """Of subsets and draws."""
    data_dir: str | None = None
    """Folder of the named data sets, where it is not the one the run was trained from."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto is cuda where there is one."""


def main(arguments: Sequence[str]) -> int:
    """Parse, serve until Ctrl-C."""
    command = tyro.cli(ExploreCommand, args=list(arguments), prog="lapae explore")
    for name in ("n_samples", "points"):
        value = getattr(command, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} = {value}: expected at least 1")
    try:
        server = prepare(command)
        print(f"{command.run} at {server.url} (Ctrl-C ends)", flush=True)
        if command.open:
            import threading
            import webbrowser

            # beside the server: some browsers return only when their page is there
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
        try:
            server.serve_forever()
        finally:
            server.server_close()
            server.routes.close()
    except KeyboardInterrupt:  # how this command ends
        print("\nended", file=sys.stderr)
    return 0


def prepare(command: ExploreCommand) -> Server:
    """The server of a run, listening."""
    from lapae.view.explore.explorer import Explorer, Options
    from lapae.view.explore.opening import opening
    from lapae.view.explore.routes import Routes
    from lapae.view.explore.server import Server, is_loopback
    from lapae.view.material import Material

    if not is_loopback(command.host):
        print("lapae: warning: whoever has the address below can see the data of this run", file=sys.stderr)
    model = open_model(command.run, Device(command.device))
    data, reason = load(model, command.data_dir)
    if reason is not None:
        print(f"lapae: warning: {reason}", file=sys.stderr)
    options = Options(command.n_samples, command.points, seed=command.seed)
    explorer = Explorer(model, Material() if data is None else Material.of(data), options)
    name = command.run.resolve().name
    return Server(Routes(explorer, opening(explorer, name, reason)), command.host, command.port)


def load(model: Model, data_dir: str | None) -> tuple[Data | None, str | None]:
    """The data of a run, or why there are none: a model can be looked at without."""
    from lapae.data import DataError
    from lapae.data.catalog import check_data
    from lapae.fit import load_data

    try:
        check_data(model.config.data.source)
    except DataError as error:
        return None, str(error)
    source = model.config.data if data_dir is None else replace(model.config.data, data_dir=data_dir)
    try:
        data = load_data(source)
    except (DataError, LapaeError) as error:
        return None, f"the data of the run cannot be loaded ({error})"
    if tuple(data.shape) != tuple(model.shape):
        found, expected = tuple(data.shape), tuple(model.shape)
        return None, f"the data of the run have changed: shape {found}, the model takes {expected}"
    return data, None
