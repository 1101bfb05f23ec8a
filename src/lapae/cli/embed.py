"""`lapae embed`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lapae.cli.many import is_many, map_many
from lapae.cli.new_data import PredictCommand, check_out, finish
from lapae.cli.parsing import parse

if TYPE_CHECKING:
    from lapae.model import Model


@dataclass(frozen=True)
class EmbedCommand(PredictCommand):
    """Write the embeddings (latent codes) of new samples, with their standard deviations.

    A .csv file has one row per sample, in the order of the input: the columns of a table that are not features (or the
    name of the image file), the code z0, z1, … and its standard deviation z0_std, z1_std, …. An .npz file contains the
    arrays z and z_std, a .npy file only the codes.
    """


def encoded(model: Model, x: Any) -> dict[str, Any]:
    """Return the latent codes of samples x, flat, and their standard deviations."""
    z, z_std = model.encode(x)
    return {"z": z.reshape(len(z), -1), "z_std": z_std.reshape(len(z), -1)}


def main(arguments: Sequence[str]) -> int:
    command: EmbedCommand = parse(EmbedCommand, arguments, "lapae embed")
    if is_many(command):
        return map_many(command, "embed")
    suffix = check_out(command.out, command.input, (".csv", ".npz", ".npy"))
    import numpy as np

    from lapae.runs.outputs import csv_rows, write_arrays

    options = command.options
    model, source, blocks = command.predictions(encoded, "embedding")
    first = next(blocks, None)
    n, k = 0, math.prod(model.code_shape)
    if suffix == ".csv":
        header = [
            *(first.names if first else source.carried),
            *(f"z{i}" for i in range(k)),
            *(f"z{i}_std" for i in range(k)),
        ]
        with csv_rows(command.out, header) as write:
            while first is not None:
                codes = np.concatenate([first.found["z"], first.found["z_std"]], 1).tolist()
                write([*cell, *map(repr, code)] for cell, code in zip(first.cells, codes, strict=True))
                n += len(codes)
                first = next(blocks, None)
        return finish(source, command.out, n, options, latent_dim=k)
    parts = [rows.found for rows in (first, *blocks) if rows is not None]
    parts = parts or [{"z": np.empty((0, k)), "z_std": np.empty((0, k))}]
    z, z_std = (np.concatenate([part[name] for part in parts]) for name in ("z", "z_std"))
    write_arrays(command.out, {"z": z, "z_std": z_std})
    return finish(source, command.out, len(z), options, latent_dim=k)
