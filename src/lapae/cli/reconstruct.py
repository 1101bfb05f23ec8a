"""`lapae reconstruct`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from lapae.cli.many import is_many, map_many
from lapae.cli.new_data import UNNAMED, PredictOptions, open_model, with_options
from lapae.cli.parsing import parse
from lapae.cli.values import ValuesCommand, write_values

if TYPE_CHECKING:
    import numpy as np

    from lapae.model import Model


@dataclass(frozen=True)
class ReconstructCommand(ValuesCommand):
    """Write what the model expects in place of every value, with prediction intervals.

    The output has the format of the input, together with the ends of intervals: columns NAME_low and NAME_high of a
    table, arrays low and high of an .npz file, or images NAME_low.png and NAME_high.png. Columns that are not features
    are copied.
    """

    options: Annotated[PredictOptions, UNNAMED] = field(default_factory=PredictOptions)
    level: float = 0.9
    """Share of the values of new data that the intervals contain."""


def main(arguments: Sequence[str]) -> int:
    command: ReconstructCommand = parse(ReconstructCommand, arguments, "lapae reconstruct")
    if is_many(command):
        return map_many(command, "reconstruct", level=command.level)

    def make(model: Model, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, Any]:
        import numpy as np

        mean, *ends = model.expected(x, command.level)
        mean = model.space.rounded(mean) if model.space.kind == "table" else mean
        return mean, np.ones(x.shape, bool), tuple(ends)

    def opened() -> Model:
        return with_options(open_model(command.run, command.options), command.options)

    return write_values(command, opened, make, "reconstructed", command.level)
