"""`lapae sample`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from lapae.cli.new_data import UNNAMED, Device, Out, Run, open_model
from lapae.cli.parsing import parse
from lapae.errors import ConfigError


@dataclass(frozen=True)
class SampleCommand:
    """Generate new data: rows of a table column by column, other data by decoding codes drawn from their density."""

    run: Run
    """Folder of a trained run."""
    out: Out
    """.npz, .npy or .csv file; for images also a .png (all in one) or a folder (one .png each)."""
    n: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 16
    """Number of samples."""
    given: tuple[str, ...] = ()
    """Values that all generated rows have, such as color=red passengers=2; the other columns are drawn given these."""
    noise: bool | None = None
    """Add the residuals of held-out rows; default: yes, except for images."""
    options: Annotated[Device, UNNAMED] = field(default_factory=Device)


def main(arguments: Sequence[str]) -> int:
    command: SampleCommand = parse(SampleCommand, arguments, "lapae sample")
    suffix = command.out.suffix.lower()
    if suffix not in (".npz", ".npy", ".csv", ".png", ""):
        raise ConfigError(f"{command.out}: expected an output that ends in .npz, .npy, .csv or .png, or a folder")
    if command.n < 1:
        raise ConfigError(f"n = {command.n}: expected at least 1")

    from lapae.runs.files import check_place, whole, whole_folder
    from lapae.runs.outputs import csv_rows, grid, image_bytes, save_image, write_arrays
    from lapae.space import Column
    from lapae.space.frames import table_cells

    if suffix:
        check_place(command.out)
    model = open_model(command.run, command.options)
    if suffix in (".png", "") and (model.space.kind != "image" or model.shape[0] not in (1, 3)):
        raise ConfigError(
            f"{command.out}: only images can be written as pictures; the model generates data of shape {model.shape}"
        )
    if bad := next((text for text in command.given if "=" not in text), None):
        raise ConfigError(f"--given {bad}: expected column=value")
    given = dict(text.split("=", 1) for text in command.given)
    x = model.sample(command.n, command.options.seed, noise=command.noise, given=given)
    if suffix == ".csv":
        flat = x.reshape(len(x), -1)
        names = model.space.names or tuple(f"x{i}" for i in range(flat.shape[1]))
        cells = table_cells(flat, model.space.columns or [Column(name) for name in names])
        with csv_rows(command.out, names) as write:
            write(cells)
    elif suffix in (".npz", ".npy"):
        write_arrays(command.out, {"x": x})
    elif suffix == ".png":
        with whole(command.out) as path:
            save_image(path, grid(image_bytes(model.space.arrange(x), model.space.most)))
    else:
        with whole_folder(command.out) as folder:
            for i, image in enumerate(image_bytes(model.space.arrange(x), model.space.most)):
                save_image(folder / f"{i:0{len(str(command.n - 1))}d}.png", image)
    if command.options.json:
        print(json.dumps({"out": str(command.out), "n": command.n, "shape": list(x.shape[1:])}))
    elif model.space.kind == "table":
        print(f"{command.out}: {command.n} rows of {x.shape[1]} columns")
    else:
        print(f"{command.out}: {command.n} samples of shape {x.shape[1:]}")
    return 0
