"""`lapae embed`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from lapae.cli.new_data import (
    UNNAMED,
    Out,
    Predictive,
    Run,
    Source,
    check_out,
    finish,
    hand_over,
    open_model,
    open_source,
    predicted,
)


@dataclass(frozen=True)
class EmbedCommand:
    """Codes of new data under a trained run, with their deviations.

    A .csv has a row for each datum, in the order of the input: the columns of a table that are no features (or the name
    of the image file), the code z0, z1, … and its deviation z0_std, z1_std, …. An .npz has the arrays z and z_std, a
    .npy the codes alone.
    """

    run: Run
    """Folder of a trained run."""
    input: Source
    """.csv, .npy or .npz file, image, or folder of images."""
    out: Out
    """.csv, .npz or .npy file to write."""
    options: Annotated[Predictive, UNNAMED] = field(default_factory=Predictive)


def main(arguments: Sequence[str]) -> int:
    """Parse, embed block by block, write."""
    command = tyro.cli(EmbedCommand, args=list(arguments), prog="lapae embed")
    suffix = check_out(command.out, command.input, (".csv", ".npz", ".npy"))
    import numpy as np

    from lapae.data import DataError
    from lapae.files import whole
    from lapae.outputs import csv_rows, write_npz
    from lapae.processes import join, rank

    join()
    options = command.options
    model = open_model(command.run, options)
    source = open_source(command.input, model, options)
    blocks = predicted(model, source, options, ("z_mean", "z_var"), "embedding")
    if rank() > 0:
        return hand_over(blocks)
    first = next(blocks, None)
    if first is None:
        raise DataError(f"{command.input}: there are no data to embed")
    n, k = 0, first.found["z_mean"].shape[1]
    if suffix == ".csv":
        header = [*first.names, *(f"z{i}" for i in range(k)), *(f"z{i}_std" for i in range(k))]
        with csv_rows(command.out, header) as write:
            while first is not None:
                codes = np.concatenate([first.found["z_mean"], np.sqrt(first.found["z_var"])], 1).tolist()
                write([*cell, *map(repr, code)] for cell, code in zip(first.cells, codes, strict=True))
                n += len(codes)
                first = next(blocks, None)
        return finish(source, command.out, n, options, latent_dim=k)
    parts = [first.found, *(rows.found for rows in blocks)]
    z = np.concatenate([part["z_mean"] for part in parts])
    if suffix == ".npz":
        write_npz(command.out, {"z": z, "z_std": np.concatenate([np.sqrt(part["z_var"]) for part in parts])})
    else:
        with whole(command.out) as path, path.open("wb") as file:
            np.save(file, z)
    return finish(source, command.out, len(z), options, latent_dim=k)
