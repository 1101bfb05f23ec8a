"""Data for a network that was trained elsewhere, which gets values in the units of its training data."""

from __future__ import annotations

from dataclasses import replace

from lapae.errors import DataError
from lapae.space.columns import Column
from lapae.space.space import Space

BYTE = 255.0
"""What integer images are divided by."""


def for_trained(space: Space, *, integers: bool, logits: bool) -> Space:
    """Return `space` with `unit` set: the network gets floats as they are, and integer images divided by 255.

    The model still compares values in units of their standard deviation (`lapae.networks.units` converts to the units
    of the network and back), so that no column counts more because its unit is small.

    Args:
        space: description of the data.
        integers: whether their type is one of whole numbers.
        logits: whether the network returns logits, which have no unit; then only images are scaled.
    """
    others = [column for column in space.columns or () if column.kind not in ("number", "count")]
    if others:
        kinds = ", ".join(f"{column.name!r} ({column.kind})" for column in others[:3])
        raise DataError(
            f"a trained network gets X as it is, and {kinds}{' …' if len(others) > 3 else ''} cannot go in as numbers: "
            "turn X into the numbers that the network was trained on first, such as pandas.get_dummies(X).astype(float)"
        )
    columns = None if space.columns is None else tuple(Column(column.name) for column in space.columns)
    plain = logits and space.kind != "image"
    scaling = {"offset": 0.0, "scale": 1.0} if plain else {}
    return replace(space, columns=columns, unit=BYTE if integers and space.kind == "image" else 1.0, **scaling)
