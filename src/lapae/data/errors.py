"""The one error that data raise, and the hint at a name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class DataError(ValueError):
    """Data that cannot be used. The message names the file, and the row or column where there is one."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The text " (did you mean 'mnist'?)", or nothing where no known name is near."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
