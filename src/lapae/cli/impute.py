"""`lapae impute`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lapae.cli.many import is_many, map_many
from lapae.cli.new_data import open_model
from lapae.cli.parsing import parse
from lapae.cli.values import ValuesCommand, write_values

if TYPE_CHECKING:
    import numpy as np

    from lapae.model import Model


@dataclass(frozen=True)
class ImputeCommand(ValuesCommand):
    """Fill in missing values of new data: empty cells or NaN in a table, NaN in an array, transparent pixels of images.

    The output has the format of the input: a table keeps its columns, its order and all given cells; for a folder of
    images, a folder of .png images is written. With --level the ends of intervals are also written: as columns NAME_low
    and NAME_high, arrays low and high of an .npz file, or images NAME_low.png and NAME_high.png.
    """

    level: float | None = None
    """Also write intervals that contain the missing values with this probability, such as 0.9."""
    guess: Literal["median", "mean"] = "median"
    """How numbers in a table are imputed: the median minimises the absolute error and keeps whole numbers whole; the
    mean minimises the squared error."""


def main(arguments: Sequence[str]) -> int:
    command: ImputeCommand = parse(ImputeCommand, arguments, "lapae impute")
    if is_many(command):
        return map_many(command, "impute", level=command.level, guess=command.guess)
    level = command.level

    def make(model: Model, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return x without missing values, where these were, and intervals."""
        import numpy as np

        missing = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
        rows = missing.reshape(len(x), -1).any(1)
        ends = None if level is None else (x.copy(), x.copy())
        if rows.any():
            given, x = x[rows], x.copy()
            x[rows] = model.impute(given, guess=command.guess)
            if ends is not None and level is not None:
                ends[0][rows], ends[1][rows] = model.impute_interval(given, level)
        return x, missing, ends

    def opened() -> Model:
        return open_model(command.run, command.options).predicting(seed=command.options.seed)

    return write_values(command, opened, make, "imputed", level, whole=command.guess == "median")
